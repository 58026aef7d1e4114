"""The files of a lock's folder, with what a container of its image starts."""

from __future__ import annotations

from envspec.lock.docker_served import File, Health, Served
from envspec.lock.files import files_of
from envspec.model import ImageSettings, Lock


def lock_files(lock: Lock) -> dict[str, bytes]:
    """Every file of the lock's folder: `lock.files.files_of` with what a container of the image starts.

    Raises:
        UsageError: settings that no image can have: a working folder that is the system's, a token for everybody.
    """
    if lock.base_image is None:
        return files_of(lock)
    return files_of(lock, _served(lock.image))


def _served(settings: ImageSettings) -> Served:
    # Only where there is an image: most that is locked by hand has one, a lock for macOS has not.
    from envspec.image.content import InMemory, Kind
    from envspec.image.services import HOME, USER, ServicesSource, services_config

    conduct = services_config(settings)
    check = conduct.healthcheck
    health = check and Health(
        tuple(check["Test"][1:]), check["Interval"], check["Timeout"], check["StartPeriod"], check["Retries"]
    )
    entries = list(ServicesSource(settings).entries())
    return Served(
        entrypoint=conduct.entrypoint or (),
        user=conduct.user or "",
        name=USER if conduct.user else "",
        home=f"/{HOME}" if conduct.user else "",
        ports=conduct.ports,
        env=conduct.env,
        health=health or None,
        folders=tuple((f"/{each.path}", each.mode) for each in entries if each.kind is Kind.FOLDER and each.uid),
        files=tuple(
            File(f"/{each.path}", each.mode, each.data.content.decode())
            for each in entries
            if isinstance(each.data, InMemory)
        ),
    )
