"""System locks on files and folders that may be renamed or removed while another process waits for them.

Cheap to import: commands that find all work done already import it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Network shares without locks: nothing is locked there.
_UNLOCKABLE: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})


def try_lock(path: Path, opened: Callable[[], int]) -> int | None:
    """A descriptor that locks `path`; None if another process has it locked.

    opened: opens `path`, creating it if necessary. The lock belongs to the open file: a program that inherits the
    descriptor shares it, and the system releases it when the last of them has ended, however it ended.
    """
    import fcntl

    while True:
        descriptor = opened()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in _UNLOCKABLE:
                os.close(descriptor)
                raise
        # The previous owner may have renamed or removed it since it was opened: then this locks nothing.
        if is_same_file(path, descriptor):
            return descriptor
        os.close(descriptor)


def wait_for_lock(
    path: Path, opened: Callable[[], int], every_s: float, on_wait: Callable[[], None] = lambda: None
) -> int:
    """`try_lock` until it succeeds, in a thread or a program without an event loop. on_wait: called once."""
    descriptor = try_lock(path, opened)
    if descriptor is None:
        on_wait()
        while (descriptor := try_lock(path, opened)) is None:
            time.sleep(every_s)
    return descriptor


async def lock(path: Path, opened: Callable[[], int], every_s: float = 0.1) -> int:
    import asyncio

    # flock has no asynchronous form: there is no event to wait for.
    while (descriptor := try_lock(path, opened)) is None:  # noqa: ASYNC110
        await asyncio.sleep(every_s)
    return descriptor


async def lock_file(path: Path, every_s: float = 0.1) -> int:
    """Open a file for reading and writing, created if necessary, and lock it."""

    def opened() -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    return await lock(path, opened, every_s)


def open_folder(path: Path) -> int:
    """A descriptor of a folder, created if necessary."""
    path.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
