"""What an image holds and says beside its packages: working folder, services, their user. Pure, from the lock alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

from envspec.errors import UsageError
from envspec.image.config import Conduct
from envspec.image.layers.types import PREFIX, Entry, InMemory, Kind
from envspec.models import ImageSettings
from envspec.names import SYSTEM_FOLDERS, WHITEOUT, is_of_the_system, is_whiteout

#: Who runs the services. Ubuntu's images from 23.04 on have a user of that id too, so files are its own there.
UID: Final = 1000
GID: Final = 1000
USER: Final = "envspec"
HOME: Final = "home/envspec"
#: Made at a container's start: tokens, host keys, logs. A volume there keeps host keys from one container to the next.
STATE: Final = "var/lib/envspec"
#: Where init and health check lie in an image.
INSIDE: Final = "opt/envspec"
_PYTHON: Final = (f"/{PREFIX}/bin/python", "-I", "-S")
_NS: Final = 1_000_000_000
#: Folders of any system that are not what an entry of a layer is by default: root's, 0755.
_MODES: Final = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
#: Links on every Debian and Ubuntu; a folder of a layer would take their place, and the system with it.
_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "var/run", "var/lock")
_TOKENS: Final = frozenset({"JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE"})


def services_config(settings: ImageSettings) -> Conduct:
    """How a container of the image starts: as one of the base does, or by init with the lock's services.

    Without services it is who the base says, which is root on NVIDIA's; what serves is never root.

    Raises:
        UsageError: a token in the image, which everybody who has the image would know; a working folder in a place
            that only the base may make.
    """
    folder_of(settings.workdir)
    if not settings.services:
        return Conduct()
    fixed = sorted(_TOKENS & dict(settings.env).keys())
    if fixed:
        raise UsageError(
            f"[image] env: {fixed[0]} would be the same in every container, for everybody who has the image",
            hint=f"take it out; give it to a container (`docker run -e {fixed[0]}=...`), or have one made at its start",
        )
    healthcheck = {
        "Test": ["CMD", *_PYTHON, f"/{INSIDE}/health.py"],
        "Interval": 30 * _NS,
        "Timeout": 20 * _NS,
        # Jupyter's first start compiles and migrates: half a minute on a slow disk.
        "StartPeriod": 60 * _NS,
        "Retries": 3,
    }
    return Conduct(
        entrypoint=(*_PYTHON, f"/{INSIDE}/init.py"),
        user=f"{UID}:{GID}",
        ports=tuple(f"{service.port}/tcp" for service in sorted(settings.services, key=lambda each: each.port)),
        healthcheck=healthcheck,
        env=(("HOME", f"/{HOME}"), ("LOGNAME", USER), ("SHELL", "/bin/bash"), ("USER", USER)),
    )


@dataclass(frozen=True, slots=True)
class ServicesSource:
    """The last layer: the working folder, and init with its services and their user where there are some."""

    settings: ImageSettings

    @property
    def key(self) -> str:
        parts = [
            (entry.path, entry.mode, entry.kind.value, entry.uid, entry.gid, _sha256(entry)) for entry in self.entries()
        ]
        return hashlib.sha256(json.dumps(["services", parts]).encode()).hexdigest()

    @property
    def title(self) -> str:
        names = ", ".join(f"{service.name} on port {service.port}" for service in self.settings.services)
        return f"user {USER}; {names}" if names else f"working folder {self.settings.workdir}"

    def entries(self) -> Iterator[Entry]:
        """Small files only, so that the key can be taken over them."""
        found: dict[str, Entry] = {}
        for entry in (*_folders(self.settings), *_files(self.settings)):
            for parent in reversed(PurePosixPath(entry.path).parents):
                if str(parent) != ".":
                    found.setdefault(str(parent), Entry(str(parent), _MODES.get(str(parent), 0o755), Kind.FOLDER))
            found[entry.path] = entry
        yield from (found[path] for path in sorted(found, key=lambda path: path.split("/")))


def folder_of(workdir: str) -> str | None:
    """The working folder as a layer names it; None where it is one of the system's.

    Raises:
        UsageError: it can't be made without taking away what the base has there.
    """
    path = PurePosixPath(workdir)
    folder = (str(path).lstrip("/") or ".") if path.is_absolute() and ".." not in path.parts else None
    if folder is None:
        raise UsageError(f"[image] workdir: {workdir!r} is not an absolute path", hint='the usual one is "/workspace"')
    if any(folder == link or folder.startswith(f"{link}/") for link in _LINKS):
        raise UsageError(
            f"[image] workdir: {workdir} is in a folder that is a link in the base image",
            hint='take one of your own, such as "/workspace"',
        )
    if is_whiteout(folder):
        raise UsageError(
            f"[image] workdir: {workdir} would hide files of the base image",
            hint=f"take a name that does not begin with {WHITEOUT}",
        )
    if folder in {".", *SYSTEM_FOLDERS}:
        return None
    if is_of_the_system(folder):
        # An entry for it would take it from root, and give it to the user of the services.
        raise UsageError(
            f"[image] workdir: {workdir} is a folder of the system's own",
            hint='take one of your own, such as "/workspace"',
        )
    return folder


def _folders(settings: ImageSettings) -> Iterator[Entry]:
    uid, gid = (UID, GID) if settings.services else (0, 0)
    workdir = folder_of(settings.workdir)
    if workdir is not None:
        yield Entry(workdir, 0o755, Kind.FOLDER, uid=uid, gid=gid)
    if settings.services:
        yield Entry(HOME, 0o755, Kind.FOLDER, uid=uid, gid=gid)
        yield Entry(STATE, 0o700, Kind.FOLDER, uid=uid, gid=gid)


def _files(settings: ImageSettings) -> Iterator[Entry]:
    yield Entry("etc/profile.d/envspec.sh", 0o644, data=InMemory(_inside("profile.sh")))
    if not settings.services:
        return
    for name in ("health.py", "init.py", "services.py", "sshd_config"):
        yield Entry(f"{INSIDE}/{name}", 0o644, data=InMemory(_inside(name)))
    yield Entry(f"{INSIDE}/services.json", 0o644, data=InMemory(_document(settings)))


def _document(settings: ImageSettings) -> bytes:
    """What init and health check read."""
    services = [
        {"name": service.name, "port": service.port} | ({"logdir": service.logdir} if service.logdir else {})
        for service in settings.services
    ]
    values = {"uid": UID, "gid": GID, "user": USER, "home": f"/{HOME}"}
    document = {**values, "workdir": settings.workdir, "services": services}
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


@cache
def _inside(name: str) -> bytes:
    return files("envspec.image.runtime").joinpath(name).read_bytes()


def _sha256(entry: Entry) -> str:
    return hashlib.sha256(entry.data.content).hexdigest() if isinstance(entry.data, InMemory) else ""
