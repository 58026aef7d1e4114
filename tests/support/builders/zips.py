"""Archives as bytes: zips, also those that no honest tool writes, tars, and the digests of RECORD."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

#: The oldest time that a zip can hold; every file of every wheel has it.
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
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


def tarred(members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar of members, whose sizes are set here."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def gzipped(data: bytes, level: int) -> bytes:
    """The same bytes with every Python, unlike `gzip.compress`."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=level, mtime=0, filename="") as packed:
        packed.write(data)
    return buffer.getvalue()


def record_digest(data: bytes) -> str:
    """`sha256=...`, as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def wheel_members(
    name: str = "thing", version: str = "1.0", files: Iterable[tuple[str, bytes, int]] = (), *, pure: str = "true"
) -> list[tuple[str, bytes, int]]:
    """The members of a wheel with these files; RECORD has a row for each, without hashes."""
    info = f"{name}-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {pure}\nTag: py3-none-any\n"
    members = [
        *files,
        (f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(), FILE),
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
