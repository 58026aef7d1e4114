"""Working folder, services and their user in an image: pure, from the lock alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from envspec.errors import UsageError
from envspec.image.config import RunConfig
from envspec.image.layers.types import PREFIX, Entry, EntryKind, InMemory
from envspec.models import ImageSettings, Resolution
from envspec.names import SYSTEM_FOLDERS, WHITEOUT, is_of_the_system, is_whiteout

#: The services' user. Ubuntu's images from 23.04 on have a user with this ID too, who then owns the files.
UID: Final = 1000
GID: Final = 1000
USER: Final = "envspec"
HOME: Final = "home/envspec"
#: Files of a running container: tokens, host keys, logs. A volume here keeps host keys across containers.
STATE: Final = "var/lib/envspec"
#: Folder of the image's PATH, and of init and health check.
RUNTIME: Final = "opt/envspec"
#: The image's PATH, which login shells read.
PATH_FILE: Final = f"{RUNTIME}/path"
#: Folders that every user may write to. Engines give a user who is not in /etc/passwd the home `/`, in which libraries
#: write to these: matplotlib, Hugging Face's, Jupyter, Triton. Root keeps its own home, to which nobody else writes.
_FOR_ALL: Final = (".cache", ".config", ".local", ".triton", HOME)
#: Without a name, `getpass.getuser` fails for users who are not in /etc/passwd, and with it torch.compile. Packages of
#: a mounted home do not hide locked ones.
_VARIABLES: Final = (("LOGNAME", USER), ("PYTHONNOUSERSITE", "1"), ("USER", USER))
_PYTHON: Final = (f"/{PREFIX}/bin/python", "-I", "-S")
_PIP3: Final = f'#!/bin/sh\nexec /{PREFIX}/bin/pip "$@"\n'.encode()
_NS: Final = 1_000_000_000
#: System folders that are not root's with mode 0755.
_MODES: Final = {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700}
#: Symlinks on every Debian and Ubuntu; a layer's folder would replace them and break the system.
_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "var/run", "var/lock")
_TOKENS: Final = frozenset({"JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE"})


def services_config(settings: ImageSettings) -> RunConfig:
    """The base's run config with variables of every image; with services, init as their user.

    Without services the user is the base's, root on NVIDIA's; services never run as root.

    Raises:
        UsageError: a token in the image, known to everybody who has it; a working folder that only the base may create.
    """
    workdir_path(settings.workdir)
    if not settings.services:
        return RunConfig(settings.entrypoint or None, command=settings.command or None, env=_VARIABLES)
    if fixed := sorted(_TOKENS & dict(settings.env).keys()):
        raise UsageError(
            f"[image] env: {fixed[0]} would be the same in every container, for everybody who has the image",
            hint=f"remove it; pass it to a container (`docker run -e {fixed[0]}=...`), or use the one generated at "
            "its start",
        )
    healthcheck = {
        "Test": ["CMD", *_PYTHON, f"/{RUNTIME}/health.py"],
        "Interval": 30 * _NS,
        "Timeout": 20 * _NS,
        # Jupyter's first start compiles and migrates: half a minute on a slow disk.
        "StartPeriod": 60 * _NS,
        "Retries": 3,
    }
    return RunConfig(
        entrypoint=(*_PYTHON, f"/{RUNTIME}/init.py"),
        command=settings.command or None,
        user=f"{UID}:{GID}",
        ports=tuple(f"{service.port}/tcp" for service in sorted(settings.services, key=lambda each: each.port)),
        healthcheck=healthcheck,
        env=(("HOME", f"/{HOME}"), ("SHELL", "/bin/bash"), *_VARIABLES),
    )


class ServicesSource(Struct, frozen=True):
    """The last layer: the working folder; with services also init, their settings and their user's folders.

    path: PATH of the image's containers, for login shells; empty if it is not known yet. pip: whether the environment
    has one; without, a program of that name keeps the base's from installing elsewhere.
    """

    settings: ImageSettings
    path: str = ""
    pip: bool = True

    @property
    def key(self) -> str:
        return key_of("services", self.entries())

    @property
    def title(self) -> str:
        names = ", ".join(f"{service.name} on port {service.port}" for service in self.settings.services)
        return f"user {USER}; {names}" if names else f"working folder {self.settings.workdir}"

    def entries(self) -> Iterator[Entry]:
        """Only small files: the key is computed from them."""
        return in_order(self._own_entries())

    def _own_entries(self) -> Iterator[Entry]:
        settings = self.settings
        uid, gid = owner_of(settings)
        workdir = workdir_path(settings.workdir)
        if workdir is not None:
            yield Entry(workdir, 0o755, EntryKind.FOLDER, uid=uid, gid=gid)
        yield Entry("etc/profile.d/envspec.sh", 0o644, data=InMemory(_runtime_file("profile.sh")))
        if self.path:
            yield Entry(PATH_FILE, 0o644, data=InMemory(f"{self.path}\n".encode()))
        if not self.pip:
            yield Entry(f"{PREFIX}/bin/pip", 0o755, data=InMemory(_runtime_file("pip.sh")))
            yield Entry(f"{PREFIX}/bin/pip3", 0o755, data=InMemory(_PIP3))
        if not settings.services:
            for folder in _FOR_ALL:
                yield Entry(folder, 0o1777, EntryKind.FOLDER)
            return
        yield Entry(HOME, 0o755, EntryKind.FOLDER, uid=uid, gid=gid)
        yield Entry(STATE, 0o700, EntryKind.FOLDER, uid=uid, gid=gid)
        for name in ("health.py", "init.py", "services.py", "sshd_config"):
            yield Entry(f"{RUNTIME}/{name}", 0o644, data=InMemory(_runtime_file(name)))
        yield Entry(f"{RUNTIME}/services.json", 0o644, data=InMemory(_services_json(settings)))


def key_of(form: str, entries: Iterable[Entry]) -> str:
    """The key of a layer of generated files. form: what kind of layer it is."""
    parts = []
    for entry in entries:
        digest = hashlib.sha256(entry.data.content).hexdigest() if isinstance(entry.data, InMemory) else ""
        parts.append((entry.path, entry.mode, entry.kind.value, entry.uid, entry.gid, digest, entry.target))
    return hashlib.sha256(json.dumps([form, parts]).encode()).hexdigest()


def in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries of a layer by path, with the folders above them as the system has them."""
    found: dict[str, Entry] = {}
    for entry in entries:
        for parent in reversed(PurePosixPath(entry.path).parents):
            if str(parent) != ".":
                found.setdefault(str(parent), Entry(str(parent), _MODES.get(str(parent), 0o755), EntryKind.FOLDER))
        found[entry.path] = entry
    for path in sorted(found, key=lambda path: path.split("/")):
        yield found[path]


def owner_of(settings: ImageSettings) -> tuple[int, int]:
    """User and group who own the working folder and what is in it."""
    return (UID, GID) if settings.services else (0, 0)


def workdir_path(workdir: str) -> str | None:
    """The working folder's path in a layer; None if it is a folder of the system.

    Raises:
        UsageError: it can't be created without hiding the base's files.
    """
    path = PurePosixPath(workdir)
    own_folder = 'use a folder of your own, such as "/workspace"'
    if not path.is_absolute() or ".." in path.parts:
        raise UsageError(f"[image] workdir: {workdir!r} is not an absolute path", hint=own_folder)
    folder = str(path).lstrip("/") or "."
    if any(folder == link or folder.startswith(f"{link}/") for link in _LINKS):
        raise UsageError(f"[image] workdir: {workdir} is in a folder that is a link in the base image", hint=own_folder)
    if is_whiteout(folder):
        raise UsageError(
            f"[image] workdir: {workdir} would hide files of the base image",
            hint=f"use a name that does not begin with {WHITEOUT}",
        )
    if folder in {".", *SYSTEM_FOLDERS}:
        return None
    if is_of_the_system(folder):
        # An entry for it would change its owner from root to the services' user.
        raise UsageError(f"[image] workdir: {workdir} is a folder of the system", hint=own_folder)
    return folder


def has_pip(resolution: Resolution) -> bool:
    """Whether an environment has a pip, or imports what its base's pip installs. A standalone Python brings its own."""
    names = {package.name for package in resolution.packages} | {package.name for package in resolution.conda}
    return "pip" in names or resolution.target.python.source == "standalone" or resolution.on_top_of is not None


def _services_json(settings: ImageSettings) -> bytes:
    """Read by init and health check."""
    services = []
    for service in settings.services:
        row: dict[str, str | int] = {"name": service.name, "port": service.port}
        if service.logdir:
            row["logdir"] = service.logdir
        services.append(row)
    user = {"uid": UID, "gid": GID, "user": USER, "home": f"/{HOME}"}
    document = {**user, "workdir": settings.workdir, "services": services}
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


@cache
def _runtime_file(name: str) -> bytes:
    return files("envspec.image.runtime").joinpath(name).read_bytes()
