"""uv runs the interpreter that it is given to ask for its tags, and keeps the answer in its cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

#: Of envspec's cache: uv's own.
UV_CACHE: Final = "engines/uv"


@contextmanager
def read_ahead(cache: Path) -> Iterator[None]:
    """Let uv run this interpreter while modules are imported and the spec is read: later it would wait 40 ms for it.

    cache: envspec's. Nothing is done if uv's cache has an interpreter.
    """
    folder = cache / UV_CACHE
    if next(folder.glob("interpreter-*"), None) is not None:
        yield
        return
    from uv import find_uv_bin

    options = ["--quiet", "--no-config", "--offline", "--no-python-downloads", "--cache-dir", str(folder)]
    try:
        process = subprocess.Popen(  # noqa: S603 (no shell)
            [find_uv_bin(), "python", "find", *options, sys.executable],
            env={"HOME": str(cache), "PATH": "", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        # The resolver reports why it cannot be run.
        yield
        return
    try:
        yield
    finally:
        process.kill()
        process.wait()
