"""Single files, written as one step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from envspec.errors import UsageError


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and move it there; its mode stays. A link stays one: its target is replaced.

    Raises:
        UsageError: the file can't be written; what stood there is untouched.
    """
    real = Path(os.path.realpath(path))
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(real.stat().st_mode & 0o7777)
        Path(temporary).replace(real)
    except OSError as fault:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(
            f"{path} can't be written: {fault.strerror}", hint="make it and its folder writable"
        ) from fault
