"""Writing to disk so that it is there after a crash, and what is said when it can't be done."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.io.files import FULL

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_UNLOCKABLE: Final = frozenset({errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class CannotWrite(UsageError):
    """The lock's folder can't be written; what stood there still does."""


def cannot(directory: Path, fault: OSError) -> CannotWrite:
    """The user's message for what the system said while `directory` was written."""
    untouched = "what stood there is untouched"
    if fault.errno in FULL:
        return CannotWrite(
            f"no space to write the lock into {directory}: {fault.strerror}",
            hint=f"make room and try again; {untouched}",
        )
    if fault.errno in _FORBIDDEN:
        return CannotWrite(
            f"{directory} can't be written: {fault.strerror}",
            hint=f"make it writable, or choose another folder by `--output DIR`; {untouched}",
        )
    if fault.errno in {errno.ENOTDIR, errno.EEXIST}:
        return CannotWrite(
            f"{directory} can't be a folder: a part of that path is a file",
            hint="move the file away, or choose another folder by `--output DIR`",
        )
    return CannotWrite(
        f"{directory} can't be written: {fault.strerror or fault}",
        hint=f"choose another folder by `--output DIR`; {untouched}",
    )


def make_directories(directory: Path) -> None:
    """Create `directory` and those above it that are missing, mode 0755 whatever the umask."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    # Another run may have made it since.
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(0o755)
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))


def write_synced(path: Path, data: bytes) -> None:
    """Create `path`, which must not exist, mode 0644 whatever the umask, and have it on the disk on return."""
    with path.open("xb") as file:
        file.write(data)
        path.chmod(0o644)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Have the names in `directory` on the disk; where a system can't (Windows, some network shares), nothing."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as fault:
        if fault.errno not in _UNLOCKABLE:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive(directory: Path, wait_s: float) -> Iterator[None]:
    """Hold the directory itself locked against other runs of envspec; the system lets go when a run is killed.

    No file is left behind. Where there are no such locks (Windows, some network shares) nothing is held: every step
    that counts is one rename there as well, and the last run wins.

    Raises:
        CannotWrite: another run holds it for longer than `wait_s`.
    """
    descriptor = _lock(directory, time.monotonic() + wait_s)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(directory: Path, until: float) -> int | None:
    try:
        import fcntl

        descriptor = os.open(directory, os.O_RDONLY)
    except (ImportError, PermissionError):
        return None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.01)
                continue
            os.close(descriptor)
            raise CannotWrite(
                f"another run of envspec is writing in {directory}", hint="wait for it to end, then try again"
            ) from None
        except OSError as fault:
            os.close(descriptor)
            if fault.errno in _UNLOCKABLE:
                return None
            raise
        return descriptor
