"""The conformance suite as one file that needs Python and torch alone."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Final

import envspec.conformance
import envspec.verifier
from envspec.io.files import replace_user_file
from envspec.version import VERSION

_SHEBANG: Final = b"#!/usr/bin/env python3\n"
#: It is unpacked at its start: processes of checks start faster from files than from an archive, 16 of them in a run.
_MAIN: Final = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("envspec-conformance needs Python 3.9 or newer; this is " + sys.version.split()[0])

import os
import tempfile
import zipfile

with tempfile.TemporaryDirectory(prefix="envspec-suite-") as folder:
    zipfile.ZipFile(sys.path[0]).extractall(folder)
    program = os.path.basename(sys.argv[0])
    sys.path[0] = folder
    from envspec.conformance.main import main

    status = main(sys.argv[1:], "{version}", program)
sys.exit(status)
"""
#: The earliest time that a zip has: the same suite gives the same bytes.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def suite_file() -> bytes:
    """The bytes of the file."""
    contents = {"__main__.py": _MAIN.replace("{version}", VERSION).encode(), "envspec/__init__.py": b""}
    for package in (envspec.conformance, envspec.verifier):
        folder = Path(package.__path__[0])
        for path in folder.rglob("*.py"):
            contents[f"envspec/{folder.name}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    packed = io.BytesIO()
    packed.write(_SHEBANG)
    # Uncompressed: compressed bytes depend on the version of zlib.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name])
    return packed.getvalue()


def write_suite_file(path: Path) -> Path:
    """Write the file, executable.

    Raises:
        UsageError: it can't be written.
    """
    replace_user_file(path, suite_file())
    path.chmod(0o755)
    return path
