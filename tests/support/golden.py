"""Expected outputs in files. `ENVSPEC_WRITE_GOLDEN=1 python -m pytest tests/...` writes those that differ: review the
difference with `git diff` before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(actual: str, path: Path) -> None:
    """Compare an output with its file.

    actual: the output.
    path: the file with the expected one; written first if ENVSPEC_WRITE_GOLDEN is set.
    """
    if os.environ.get("ENVSPEC_WRITE_GOLDEN"):
        path.write_bytes(actual.encode())
    expected = path.read_bytes().decode()
    assert actual == expected
