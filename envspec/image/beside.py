"""Files that are written beside their place, and get their names when they are whole.

Each is held against other processes while it is written. What a killed run left is held by nobody, and goes when
somebody writes there again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from functools import partial
from glob import escape
from pathlib import Path
from typing import IO, Final

from envspec.effects.held import try_hold

_MARK: Final = ".envspec-"
_BUFFER: Final = 1 << 20


@contextlib.contextmanager
def placing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which gets the name `path` when this is left, and goes where that is by a fault.

    Raises:
        OSError: it can't be written.
    """
    descriptor = None
    while descriptor is None:
        beside = path.with_name(f".{path.name}{_MARK}{secrets.token_hex(6)}")
        # 0666 less the umask: it is a file of the user's as any.
        descriptor = try_hold(beside, partial(os.open, beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    try:
        with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:
            yield file
            file.flush()
            beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def is_unfinished(path: Path) -> bool:
    """Whether a file is one that `placing` writes, or wrote when it was killed."""
    return path.name.startswith(".") and _MARK in path.name


def sweep(folder: Path, name: str = "*") -> None:
    """Remove what killed runs left in a folder. name: of the file that was to be, any where left out."""
    pattern = name if name == "*" else escape(name)
    for left in folder.glob(f".{pattern}{_MARK}*"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = try_hold(left, partial(os.open, left, os.O_RDWR | os.O_CLOEXEC))
            if descriptor is not None:
                left.unlink()
                os.close(descriptor)
