"""Which lock an argument means. On the way of commands that need no lock's content: it imports next to nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.lock.head import LOCK_FILE
from envspec.lock.names import places

#: Where a project keeps its locks, each in a folder of its name.
LOCKS: Final = "locks"


def find_lock(argument: str, cwd: Path) -> Path:
    """The folder that LOCK names: a folder, its `envspec.lock`, or a name under `locks/`.

    Raises:
        UsageError: no such lock; names those that look alike.
    """
    given = Path(argument)
    candidates = [given.parent if given.name == LOCK_FILE else given, Path(LOCKS) / argument]
    for candidate in candidates:
        if any(place.is_file() for place in places(cwd / candidate, LOCK_FILE)):
            return cwd / candidate
    if (cwd / given).is_file():
        raise UsageError(f"{argument} is not a lock", hint=f"name a folder that holds an {LOCK_FILE}, or a lock's name")
    there = names_of_locks(cwd)
    found = f"{argument} holds no {LOCK_FILE}" if (cwd / given).is_dir() else f"there is no lock {argument}"
    raise UsageError(found, hint=_advice(given.name, there))


def names_of_locks(cwd: Path) -> list[str]:
    """The names under `locks/`, sorted."""
    folder = cwd / LOCKS
    if not folder.is_dir():
        return []
    return sorted(item.name for item in folder.iterdir() if (item / LOCK_FILE).is_file())


def _advice(wanted: str, there: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(wanted, there, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if there:
        return f"under {LOCKS}/ there are: {', '.join(there)}"
    return "`envspec lock SPEC` writes one"
