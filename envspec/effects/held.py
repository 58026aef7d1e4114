"""Locks of the system's on files and folders that may be renamed or removed while somebody waits for them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

#: Network shares without locks: nothing is held there.
_UNLOCKABLE: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


def try_hold(path: Path, opened: Callable[[], int]) -> int | None:
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
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)


async def hold_file(path: Path, every_s: float = 0.1) -> int:
    """Opens a file, made where it is not there, and holds it; while somebody else does, waits for their end."""
    for _ in count():
        descriptor = try_hold(path, lambda: _open(path))
        if descriptor is not None:
            return descriptor
        await asyncio.sleep(every_s)
    raise AssertionError("count() has no end")


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))
