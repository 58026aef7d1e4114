"""Names inside a lock's folder, and how a file in it is read while another run may be writing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: Files that are written whole and decided, but not yet moved to their places (see `journal.py`): they count already.
COMMITTED: Final = ".envspec-commit"
#: Files that are still being written: they count for nothing.
STAGED: Final = ".envspec-stage-"


def places(directory: Path, name: str) -> tuple[Path, Path]:
    """Where the file `name` of the lock in `directory` may be, in the order to look: files only move to the later."""
    return directory / COMMITTED / name, directory / name


def read_current(directory: Path, name: str) -> bytes:
    """The bytes of one file of a lock; OSError of its own place where it can't be read."""
    committed, own = places(directory, name)
    try:
        return committed.read_bytes()
    except OSError:
        return own.read_bytes()


def state(directory: Path, name: str) -> tuple[int, int] | None:
    """Something that stays while nobody writes the file anew, also when it is moved to its own place."""
    for path in places(directory, name):
        try:
            found = path.stat()
        except OSError:
            continue
        return found.st_ino, found.st_mtime_ns
    return None


def stage_prefix(directory: Path) -> str:
    """How the names of folders begin that a run writes beside the lock in `directory`, until it exchanges them."""
    return f".{directory.name}.envspec-"
