"""Locks of other tools as packages of an envspec.lock: nothing is resolved.

A reader is a module with `read(path, selection)`, and a line in READERS.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from envspec.adopt.rows import ForeignLock, Selection
from envspec.errors import UsageError
from envspec.names import normalised

#: Pattern of the name of a lock -> the module that reads it.
READERS: Final = {
    "uv.lock": "uv",
    "pylock.toml": "pylock",
    "pylock.*.toml": "pylock",
    "poetry.lock": "poetry",
    "pixi.lock": "pixi",
    "conda-lock.yml": "conda_lock",
    "*.conda-lock.yml": "conda_lock",
    "*requirements*.txt": "requirements",
}


def is_foreign(path: Path) -> bool:
    """Whether a file is a lock of another tool, by its name."""
    return _reader_of(path.name) is not None


def _reader_of(name: str) -> str | None:
    for pattern, module in READERS.items():
        if fnmatchcase(name, pattern):
            return module
    return None


def read_lock(path: Path, selection: Selection) -> ForeignLock:
    """Read a lock of another tool.

    Raises:
        OSError: it can't be read.
        UsageError: it is none that is known, or not of its form; what is selected of it does not exist.
    """
    module = _reader_of(path.name)
    if module is None:
        raise UsageError(f"{path} is no lock that can be read", hint=f"these are: {', '.join(READERS)}")
    if module != "uv":
        found: ForeignLock = import_module(f"envspec.adopt.{module}").read(path, selection)
        return found
    # In one run a lock is read for its hash and for its packages, and each time uv would be run.
    from envspec.adopt.uv import folders_of

    text = path.read_text(encoding="utf-8", errors="replace")
    states = [path.stat()]
    for folder in (".", *folders_of(text)):
        with suppress(OSError, ValueError):
            states.append((path.parent / folder / "pyproject.toml").stat())
    return _read_uv(path, selection, tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in states))


@lru_cache(maxsize=8)
def _read_uv(path: Path, selection: Selection, _states: tuple[tuple[int, ...], ...]) -> ForeignLock:
    from envspec.adopt.uv import read

    return read(path, selection)


def selection_of(pip: Mapping[str, Any]) -> Selection:
    """What [pip] of a spec selects of a lock; pip: parsed, its values may be of any type.

    Raises:
        TypeError, ValueError: a value of another type.
    """

    def names(key: str) -> tuple[str, ...]:
        values = pip.get(key, [])
        if not isinstance(values, list):
            raise TypeError(key)
        return tuple(sorted(set(map(normalised, values))))

    return Selection(
        names("extras"), names("groups"), names("without_groups"), pip.get("default_groups") is True, names("members")
    )
