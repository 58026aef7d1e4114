"""Locks of the system's on files and folders that may be renamed or removed while somebody waits for them.

Importing it costs next to nothing: it is on the way of commands that find all done already.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

#: Network shares without locks: nothing is held there.
_UNLOCKABLE: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


def try_lock(path: Path, opened: Callable[[], int]) -> int | None:
    """A descriptor that holds `path` against others; None while somebody else does.

    opened: opens `path`, making it where it is not there. The lock belongs to the open file: a program that inherits
    the descriptor holds it as well, and the system lets go when the last of them has ended, however it ended.
    """
    import fcntl

    while True:
        descriptor = opened()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as fault:
            if fault.errno not in _UNLOCKABLE:
                os.close(descriptor)
                raise
        # Whoever held it before may have renamed or removed it since it was opened: then this lock is of nothing.
        if is_same_file(path, descriptor):
            return descriptor
        os.close(descriptor)


async def lock(path: Path, opened: Callable[[], int], every_s: float = 0.1) -> int:
    """As `try_lock`; while somebody else holds it, waits for their end."""
    import asyncio

    for _ in count():
        descriptor = try_lock(path, opened)
        if descriptor is not None:
            return descriptor
        await asyncio.sleep(every_s)
    raise AssertionError("count() has no end")


async def lock_file(path: Path, every_s: float = 0.1) -> int:
    """Opens a file, made where it is not there, and holds it; while somebody else does, waits for their end."""
    return await lock(path, lambda: _open_file(path), every_s)


async def lock_folder(path: Path, every_s: float = 0.1) -> int:
    """As `lock_file`, for a folder."""
    return await lock(path, lambda: _open_folder(path), every_s)


def is_same_file(path: Path, descriptor: int) -> bool:
    """Whether what is at `path` is what was opened there."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _open_file(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _open_folder(path: Path) -> int:
    path.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY)
