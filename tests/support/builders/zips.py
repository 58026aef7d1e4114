"""Zips that no honest tool writes, and wheels with the bits that a plain zip writer leaves out."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.support.builders.wheels import ZIP_EPOCH, core_metadata

#: Permission bits of a file and of a program, with the kind of file, as a zip made on Unix keeps them.
FILE = 0o100644
PROGRAM = 0o100755
SYMLINK = 0o120777


def zipped(members: Iterable[tuple[str, bytes, int]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of (path, content, mode); a path may come twice."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        names = archive.NameToInfo
        for path, content, mode in members:
            info = zipfile.ZipInfo(path, ZIP_EPOCH)
            info.external_attr = mode << 16
            info.compress_type = method
            info.create_system = 3
            names.pop(path, None)
            archive.writestr(info, content)
    return buffer.getvalue()


def wheel_members(
    name: str = "thing", version: str = "1.0", files: Iterable[tuple[str, bytes, int]] = (), *, pure: str = "true"
) -> list[tuple[str, bytes, int]]:
    """The members of a wheel with these files; RECORD has a row for each, without hashes."""
    info = f"{name}-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {pure}\nTag: py3-none-any\n"
    members = [
        *files,
        (f"{info}/METADATA", core_metadata(name, version), FILE),
        (f"{info}/WHEEL", wheel.encode(), FILE),
    ]
    rows = "".join(f"{path},,\n" for path, _, _ in members) + f"{info}/RECORD,,\n"
    return [*members, (f"{info}/RECORD", rows.encode(), FILE)]


def write_wheel(
    folder: Path, name: str = "thing", version: str = "1.0", files: Iterable[tuple[str, bytes, int]] = ()
) -> Path:
    """A wheel on disk."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(zipped(wheel_members(name, version, files)))
    return path


def patched(archive: bytes, signature: bytes, number: int, offset: int, form: str, value: int) -> bytes:
    """The zip with a field of one header changed. signature: `PK\\1\\2` (directory) or `PK\\3\\4` (local)."""
    at = -1
    for _ in range(number + 1):
        at = archive.index(signature, at + 1)
    changed = bytearray(archive)
    struct.pack_into(form, changed, at + offset, value)
    return bytes(changed)


def member(archive: bytes, ending: str) -> bytes:
    """The content of the one file whose path ends so."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(ending)]
        return opened.read(name)
