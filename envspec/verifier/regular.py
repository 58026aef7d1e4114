"""Read files that someone else may have put there: of a repository, a lock, an environment, a cluster.

Here, because the suite's single file has no other package beside the suite's own.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, Final

#: In bytes. Locks of 10,000 packages have 16 MB, receipts less than 1 MB.
MAX_BYTES: Final = 64 << 20


class FileTooLarge(OSError):
    """A file with more bytes than its reader accepts."""


def is_real_folder(path: Path) -> bool:
    """Whether there is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def open_regular(path: Path, flags: int = 0) -> IO[bytes]:
    """Open a regular file, without waiting for a pipe or a device in its place.

    flags: of `os.open`, in addition.

    Raises:
        OSError: it can't be opened, or is a pipe, a device or a folder.
    """
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, os.O_RDONLY | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path, most_bytes: int = MAX_BYTES, flags: int = 0) -> bytes:
    """The content of a regular file; links are followed. flags: of `os.open`, in addition.

    Raises:
        OSError: as `open_regular`. FileTooLarge: it has more than `most_bytes`.
    """
    with open_regular(path, flags) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise FileTooLarge(errno.EINVAL, f"it has more than {most_bytes} bytes", str(path))
    return data
