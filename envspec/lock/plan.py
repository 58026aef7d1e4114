"""What has to change in a lock's folder: which files are written, which go, and which are not envspec's to touch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.errors import StaleLock
from envspec.lock.disk import CannotWrite
from envspec.lock.head import LOCK_FILE, unseal
from envspec.names import FILE_NAME

#: What every file made by envspec says within its first bytes.
_SIGNATURE: Final = b"envspec lock"
_SIGNED_WITHIN: Final = 400
# Where the document is damaged it can't say which files go with it; those of these names that bear the signature do.
_MADE: Final = re.compile(r"requirements\.[a-z0-9-]+\.txt|conda-[a-z0-9-]+\.lock|conda-lock\.yml|Dockerfile")


@dataclass(frozen=True, slots=True)
class Plan:
    """written: name -> new bytes, of files whose bytes differ. kept: envspec's files that are right already.
    removed: files of the lock that stood there and don't belong any more."""

    written: Mapping[str, bytes]
    kept: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not self.written and not self.removed

    @property
    def ours(self) -> frozenset[str]:
        return self.kept | self.removed | self.written.keys()


def make_plan(directory: Path, files: Mapping[str, bytes]) -> Plan:
    """Compare `files` with what stands in `directory`, which may not exist yet.

    Raises:
        CannotWrite: `directory` is a file, or holds a file of one of these names that envspec did not write.
        ValueError: a name in `files` that can't be a lock's file.
    """
    for name in files:
        if not FILE_NAME.fits(name):
            raise ValueError(f"not a name for a file of a lock: {name!r}")
    if not directory.exists():
        return Plan(written=dict(files))
    if not directory.is_dir():
        raise CannotWrite(
            f"{directory} is a file, not a folder", hint="move it away, or choose another folder by `--output DIR`"
        )
    listed = _listed(directory)
    written = {name: data for name, data in files.items() if not _holds(directory / name, data)}
    for name in written:
        _refuse_foreign(directory / name, listed | {LOCK_FILE})
    return Plan(
        written=written,
        kept=frozenset(files.keys() - written.keys()),
        removed=frozenset(name for name in listed - files.keys() if _is_file(directory / name)),
    )


def is_lock_file(name: str) -> bool:
    """Whether envspec gives files of locks such a name."""
    return _MADE.fullmatch(name) is not None


def _listed(directory: Path) -> frozenset[str]:
    """The files that the lock in `directory` says are its own."""
    document = directory / LOCK_FILE
    if not document.is_file():
        return frozenset()
    try:
        head, _ = unseal(document.read_bytes(), str(document))
    except StaleLock:
        return frozenset(
            item.name for item in directory.iterdir() if is_lock_file(item.name) and _is_signed(directory / item.name)
        )
    return frozenset(filter(FILE_NAME.fits, head.files))


def _refuse_foreign(path: Path, listed: frozenset[str]) -> None:
    if path.is_dir() and not path.is_symlink():
        raise CannotWrite(f"{path} is a folder, where the lock has a file", hint="move it away, then try again")
    if path.name not in listed and path.exists() and not _is_signed(path):
        raise CannotWrite(
            f"{path} is there already and was not written by envspec",
            hint="move it away, or choose another folder by `--output DIR`",
        )


def _holds(path: Path, data: bytes) -> bool:
    return _is_file(path) and path.stat().st_size == len(data) and path.read_bytes() == data


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_signed(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _SIGNATURE in file.read(_SIGNED_WITHIN)
