"""A wheel's zip directory, checked before anything is unpacked.

`zipfile` parses the directory. Streams are copied from the archive without it, so what it does not check is checked
here: offsets and sizes of all members, and paths outside of their folder.
Source: APPNOTE.TXT 6.3.10, 4.3.7 (local header), 4.4.4 (flags).
"""

from __future__ import annotations

import io
import posixpath
import stat
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from envspec.errors import EnvspecError
from envspec.image.layers.gzip import Archives, BadArchive, read_data
from envspec.image.layers.types import ZipMember, ZipMethod
from envspec.io.archives import max_unpacked_bytes, parents_of, path_problem

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_ENCRYPTED: Final = 0x1
_UTF8: Final = 0x800
_UNKNOWN: Final = 0xFFFFFFFF
_UNIX: Final = 3
#: Deflate's maximum ratio is 1032 (zlib's technical notes).
_DEFLATE_RATIO: Final = 1032
#: zipfile reads the directory into memory; 500,000 files have less, and torch's largest wheel has 15,000.
_MAX_DIRECTORY_BYTES: Final = 64 << 20
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_END64_LOCATOR: Final = struct.Struct("<4sLQL")
#: After a member's data: its CRC and two sizes of up to eight bytes, with or without a signature.
_MAX_DESCRIPTOR_BYTES: Final = 24


class BadWheel(EnvspecError, exit_code=5, code="bad-wheel"):
    """A wheel that does not match its name, or that must not be unpacked."""

    def __init__(self, filename: str, what: str) -> None:
        super().__init__(
            f"{filename}: {what}",
            hint="select another version, and report it to the package's owner: the file has the lock's hash, so it "
            "was published like this",
        )


class WheelMember(Struct, frozen=True):
    """One file of a wheel. path: normalised. raw: as spelled in the zip and in RECORD."""

    path: str
    raw: str
    is_executable: bool
    data: ZipMember


def wheel_members(archive: Path) -> tuple[WheelMember, ...]:
    """The files of a wheel in the archive's order, without folders: pip does not create empty ones.

    A symlink becomes a file with its target as content, as with pip.

    Raises:
        BadWheel: an invalid or malicious archive. OSError: it can't be read.
    """
    with archive.open("rb") as file:
        start, count = _directory(archive, file)
        try:
            with zipfile.ZipFile(file) as opened:
                listed = opened.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as error:
            raise BadWheel(archive.name, f"not a readable zip ({error})") from error
        if len(listed) != count:
            raise BadWheel(archive.name, f"its zip directory has {len(listed)} files, its end record lists {count}")
        members = [_member(archive, file, info) for info in listed]
    _check_offsets(archive, listed, members, start)
    found = []
    for info, member in zip(listed, members, strict=True):
        if not info.is_dir():
            found.append(member)
        elif info.file_size:
            raise BadWheel(archive.name, f"{info.orig_filename!r} is a folder of {info.file_size} bytes")
    _check_paths(archive, found)
    _check_sizes(archive, found)
    for info, member in zip(listed, members, strict=True):
        if info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16) and not info.is_dir():
            _check_link(archive, member)
    return tuple(found)


def unpack_member(member: ZipMember) -> Iterator[bytes]:
    """The content of a member. Raises BadWheel: its size or checksum differs from the zip's directory."""
    try:
        with Archives() as archives:
            yield from read_data(member, "a file", archives)
    except BadArchive as error:
        what = f"can't be unpacked ({error.__cause__})" if error.__cause__ else "differs from the zip's directory"
        raise BadWheel(member.archive.name, f"a file of {member.size_bytes} bytes {what}") from error


def read_member(member: ZipMember) -> bytes:
    return b"".join(unpack_member(member))


def _member(archive: Path, file: IO[bytes], info: zipfile.ZipInfo) -> WheelMember:
    raw = info.orig_filename
    if info.flag_bits & _ENCRYPTED:
        raise BadWheel(archive.name, f"{raw!r} is encrypted")
    try:
        method = ZipMethod(info.compress_type)
    except ValueError:
        raise BadWheel(
            archive.name, f"{raw!r} is packed by method {info.compress_type}, not stored or deflated"
        ) from None
    data = ZipMember(archive, data_offset(archive, file, info), info.compress_size, info.file_size, info.CRC, method)
    if why := path_problem(raw):
        raise BadWheel(archive.name, f"{raw!r} {why}")
    mode = info.external_attr >> 16
    return WheelMember(posixpath.normpath(raw), raw, stat.S_ISREG(mode) and bool(mode & 0o111), data)


def data_offset(archive: Path, file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Offset of a member's packed bytes, after the local header, which must agree with the directory."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise BadWheel(archive.name, f"no header at the offset of {info.orig_filename!r} in the zip's directory")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack(header)
    name = file.read(name_length).decode("utf-8" if flags & _UTF8 else "cp437", "replace")
    values = ((crc, info.CRC), (packed, info.compress_size), (size, info.file_size))
    # A writer to a pipe stores zeros, zip64 all ones.
    differs = any(local not in {0, _UNKNOWN, listed} for local, listed in values)
    if name != info.orig_filename or method != info.compress_type or flags & _ENCRYPTED or differs:
        raise BadWheel(archive.name, f"the header of {info.orig_filename!r} and the zip's directory disagree")
    return int(info.header_offset + _LOCAL.size + name_length + extra_length)


def _check_paths(archive: Path, found: Sequence[WheelMember]) -> None:
    paths: set[str] = set()
    for member in found:
        if member.path in paths:
            raise BadWheel(archive.name, f"{member.raw!r} is in it twice")
        paths.add(member.path)
    for path in paths:
        if both := next((folder for folder in parents_of(path) if folder in paths), None):
            raise BadWheel(archive.name, f"{both!r} is a file and a folder")


def _directory(archive: Path, file: IO[bytes]) -> tuple[int, int]:
    """Offset of the zip's directory, and its number of files.

    The file must end with its only end record, so that no two readers find different ones.

    Raises:
        BadWheel: no end record, bytes after it, or a directory that does not end before it.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END.size - 0xFFFF))
    tail = file.read()
    # A comment could contain a second end record, and no tool writes one into wheels.
    at = len(tail) - _END.size
    if at < 0 or not tail.startswith(b"PK\5\6", at):
        what = "no zip's end record at its end" if b"PK\5\6" in tail else "truncated, or another format"
        raise BadWheel(archive.name, f"not a readable zip ({what})")
    _, disk, start_disk, disk_count, count, bytes_, start, comment = _END.unpack_from(tail, at)
    end = size - _END.size
    if 0xFFFF in (disk_count, count) or 0xFFFFFFFF in (bytes_, start):
        at -= _END64_LOCATOR.size
        signature, _, offset, _ = _END64_LOCATOR.unpack_from(tail, at) if at >= 0 else (b"", 0, 0, 0)
        file.seek(min(offset, size))
        record = file.read(_END64.size)
        if signature == b"PK\6\7" and record.startswith(b"PK\6\6") and len(record) == _END64.size:
            _, _, _, _, disk, start_disk, disk_count, count, bytes_, start = _END64.unpack(record)
            end = offset
    if disk or start_disk or disk_count != count or comment or start + bytes_ != end:
        raise BadWheel(archive.name, "its zip directory is not at the offset in its end record")
    if bytes_ > _MAX_DIRECTORY_BYTES:
        raise BadWheel(archive.name, f"its zip directory has {bytes_} bytes, the limit is {_MAX_DIRECTORY_BYTES}")
    return int(start), int(count)


def _check_offsets(archive: Path, infos: Sequence[zipfile.ZipInfo], found: Sequence[WheelMember], end: int) -> None:
    """Members must be adjacent, without shared bytes and without gaps.

    Shared bytes unpack a few MiB to terabytes; a member in a gap is visible to readers that ignore the directory.
    """
    ranges = []
    for info, member in zip(infos, found, strict=True):
        ranges.append((info.header_offset, member.data.offset + member.data.packed_bytes, member.raw))
    ranges.sort(key=lambda each: each[:2])
    at, slack, before = 0, 0, ""
    for start, stop, name in [*ranges, (end, end, "")]:
        if start < at:
            raise BadWheel(archive.name, f"{before!r} overlaps what follows it")
        if start - at > slack:
            raise BadWheel(archive.name, f"{start - at} bytes at {at} belong to no file")
        at, slack, before = stop, _MAX_DESCRIPTOR_BYTES, name


def _check_sizes(archive: Path, found: Sequence[WheelMember]) -> None:
    total = packed = 0
    for member in found:
        data = member.data
        limit = data.packed_bytes * _DEFLATE_RATIO if data.method is ZipMethod.DEFLATED else data.packed_bytes
        if data.size_bytes > limit or (data.method is ZipMethod.STORED and data.size_bytes != data.packed_bytes):
            raise BadWheel(
                archive.name, f"{member.raw!r} can't have {data.size_bytes} bytes, it has {data.packed_bytes} packed"
            )
        total, packed = total + data.size_bytes, packed + data.packed_bytes
    if total > max_unpacked_bytes(packed):
        raise BadWheel(archive.name, f"a zip bomb: {packed} bytes that unpack to {total}")


def _check_link(archive: Path, member: WheelMember) -> None:
    if member.data.size_bytes > 4096:
        raise BadWheel(archive.name, f"{member.raw!r} is a symlink of {member.data.size_bytes} bytes")
    target = read_member(member.data).decode("utf-8", "surrogateescape")
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), target))
    if target.startswith("/") or resolved == ".." or resolved.startswith("../"):
        raise BadWheel(archive.name, f"{member.raw!r} is a symlink out of the wheel, to {target!r}")
