"""The files of a lock's folder that other programs read, one module a format. A new format is a line of EXPORTS."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from envspec.lockfile.document import dump
from envspec.lockfile.export import conda, dockerfile, requirements
from envspec.lockfile.export.types import DEFAULT, ContainerConfig
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Lock


class Export(NamedTuple):
    """A format. names: pattern of all names that its files have. files: name -> text, empty if the lock has none."""

    names: str
    files: Callable[[Lock, ContainerConfig], Mapping[str, str]]


EXPORTS: Final = (
    Export(r"requirements\.[a-z0-9-]+\.txt", lambda lock, _: requirements.files(lock)),
    Export(r"conda-[a-z0-9-]+\.lock", lambda lock, _: conda.explicit_files(lock)),
    Export(r"conda-lock\.yml", lambda lock, _: conda.conda_lock_files(lock)),
    Export(dockerfile.DOCKERFILE_NAME, dockerfile.files),
)


def files_of(lock: Lock, container: ContainerConfig = DEFAULT) -> dict[str, bytes]:
    """File name -> bytes of every file of a lock's folder, envspec.lock with the hashes of the others among them.

    container: how a container of the image starts, for the Dockerfile.
    """
    files = {}
    hashes = {}
    for export in EXPORTS:
        for name, text in export.files(lock, container).items():
            files[name] = text.encode()
            hashes[name] = hashlib.sha256(files[name]).hexdigest()
    return files | {LOCK_FILE: dump(lock, hashes).encode()}


def is_exported(name: str) -> bool:
    """Whether a file of a lock may have this name."""
    return any(re.fullmatch(export.names, name) for export in EXPORTS)
