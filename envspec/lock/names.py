"""Names inside a lock's folder, and where a reader finds a file while a write is being finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: Files that are written whole and decided, but not yet moved to their places (see `journal.py`): they count already.
COMMITTED: Final = ".envspec-commit"
#: Files that are still being written: they count for nothing.
STAGED: Final = ".envspec-stage-"


def current(directory: Path, name: str) -> Path:
    """Where the file `name` of the lock in `directory` is to be read."""
    committed = directory / COMMITTED / name
    return committed if committed.exists() else directory / name


def is_plain(name: str) -> bool:
    """Whether `name` can be a file of a lock: nothing that leads out of the folder, nothing hidden."""
    return bool(name) and not name.startswith(".") and not set(name) & {"/", "\\", "\0", "\n"}
