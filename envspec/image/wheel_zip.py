"""What a wheel's zip holds, and where: its directory, checked before anything is unpacked.

`zipfile` reads the directory; what it does not look at is looked at here, since the streams are copied as they lie in
the archive and never pass through it: the places and sizes of all members, and paths that would leave their folder.
Source: APPNOTE.TXT 6.3.10, 4.3.7 (local header), 4.4.4 (flags).
"""

from __future__ import annotations

import bisect
import posixpath
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from envspec.errors import EnvspecError
from envspec.image.content import Method, ZipMember

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_ENCRYPTED: Final = 0x1
_UTF8: Final = 0x800
_UNKNOWN: Final = 0xFFFFFFFF
_UNIX: Final = 3
#: Deflate packs no more than 1032 bytes into one (zlib's own technical notes); a few go to the frame.
_DEFLATE_MOST: Final = 1032
#: Of a whole wheel: 100 times its size, over a start. The largest ratio among 1,085 wheels of the index is 18.
_WHEEL_MOST: Final = 100
_WHEEL_START: Final = 64 << 20
_CHUNK: Final = 1 << 20


class BadWheel(EnvspecError):
    """A wheel that is not what its name says, or that must not be unpacked."""

    exit_code = 5

    def __init__(self, filename: str, what: str) -> None:
        super().__init__(
            f"{filename}: {what}",
            hint="its hash is the lock's, so it was published like this: take another version, and tell its owner",
        )


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a wheel. path: normalised. raw: as the zip spells it, which is how RECORD spells it."""

    path: str
    raw: str
    is_executable: bool
    data: ZipMember


def members(archive: Path) -> tuple[Member, ...]:
    """The files of a wheel in the archive's order; folders are left out, since pip does not make empty ones.

    A symlink inside the wheel is a file that holds its target, as pip lays it.

    Raises:
        BadWheel: what it is about in words. OSError: the archive can't be read.
    """
    with archive.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as opened:
                infos, end = [info for info in opened.infolist() if not info.is_dir()], opened.start_dir
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as fault:
            raise BadWheel(archive.name, f"no zip that can be read ({fault})") from fault
        found = [_member(archive, file, info) for info in infos]
    _check_paths(archive, found)
    _check_places(archive, infos, found, end)
    _check_sizes(archive, found)
    for info, member in zip(infos, found, strict=True):
        if info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
            _check_link(archive, member)
    return tuple(found)


def unpacked(member: ZipMember) -> Iterator[bytes]:
    """The bytes of a member, in pieces, checked against what the zip's directory says.

    Raises:
        BadWheel: other size or checksum.
    """
    size = crc = 0
    for piece in _pieces(member):
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        if size > member.size_bytes:
            break
        yield piece
    if (size, crc) != (member.size_bytes, member.crc32):
        raise BadWheel(member.archive.name, f"a file of {member.size_bytes} bytes is not what the directory says")


def read(member: ZipMember) -> bytes:
    """All of a small member."""
    return b"".join(unpacked(member))


def _pieces(member: ZipMember) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for packed in _packed(member):
            if member.method is Method.STORED:
                yield packed
                continue
            yield inflate.decompress(packed, _CHUNK)
            while inflate.unconsumed_tail:
                yield inflate.decompress(inflate.unconsumed_tail, _CHUNK)
        yield inflate.flush()
    except zlib.error as fault:
        raise BadWheel(member.archive.name, f"a file of {member.size_bytes} bytes does not unpack ({fault})") from fault


def _packed(member: ZipMember) -> Iterator[bytes]:
    with member.archive.open("rb") as file:
        file.seek(member.offset)
        left = member.packed_bytes
        while left:
            packed = file.read(min(left, _CHUNK))
            if not packed:
                raise BadWheel(member.archive.name, "ends in the middle of a file")
            left -= len(packed)
            yield packed


def _member(archive: Path, file: IO[bytes], info: zipfile.ZipInfo) -> Member:
    raw = info.orig_filename
    if info.flag_bits & _ENCRYPTED:
        raise BadWheel(archive.name, f"{raw!r} is encrypted")
    try:
        method = Method(info.compress_type)
    except ValueError:
        raise BadWheel(
            archive.name, f"{raw!r} is packed by method {info.compress_type}, not stored or deflated"
        ) from None
    data = ZipMember(archive, _start(archive, file, info), info.compress_size, info.file_size, info.CRC, method)
    mode = info.external_attr >> 16
    return Member(_normal(archive, raw), raw, stat.S_ISREG(mode) and bool(mode & 0o111), data)


def _start(archive: Path, file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where the packed bytes begin: after the local header, which has to tell the same as the directory."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise BadWheel(archive.name, f"no header where the directory says that {info.orig_filename!r} is")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack(header)
    name = file.read(name_length).decode("utf-8" if flags & _UTF8 else "cp437", "replace")
    told = ((crc, info.CRC), (packed, info.compress_size), (size, info.file_size))
    # Zero is what a writer to a pipe puts there, and all ones what zip64 does.
    differs = any(here not in {0, _UNKNOWN, there} for here, there in told)
    if name != info.orig_filename or method != info.compress_type or flags & _ENCRYPTED or differs:
        raise BadWheel(archive.name, f"the header of {info.orig_filename!r} and the zip's directory disagree")
    return int(info.header_offset + _LOCAL.size + name_length + extra_length)


def _normal(archive: Path, raw: str) -> str:
    path = posixpath.normpath(raw)
    if raw.startswith("/") or ".." in raw.split("/") or "\\" in raw or "\0" in raw or path == "." or raw[1:2] == ":":
        raise BadWheel(archive.name, f"{raw!r} would be put outside of its folder")
    return path


def _check_paths(archive: Path, found: Sequence[Member]) -> None:
    seen: set[str] = set()
    for member in found:
        if member.path in seen:
            raise BadWheel(archive.name, f"{member.raw!r} is in it twice")
        seen.add(member.path)
    for path in seen:
        parent = posixpath.dirname(path)
        while parent:
            if parent in seen:
                raise BadWheel(archive.name, f"{parent!r} is a file and a folder")
            parent = posixpath.dirname(parent)


def _check_places(archive: Path, infos: Sequence[zipfile.ZipInfo], found: Sequence[Member], end: int) -> None:
    """No two members share bytes: a few MiB that are many members at once are how a zip unpacks to terabytes."""
    starts = sorted({*(info.header_offset for info in infos), end})
    for info, member in zip(infos, found, strict=True):
        following = bisect.bisect_right(starts, info.header_offset)
        if following == len(starts) or member.data.offset + member.data.packed_bytes > starts[following]:
            raise BadWheel(archive.name, f"{member.raw!r} reaches into what comes after it")


def _check_sizes(archive: Path, found: Sequence[Member]) -> None:
    total = packed = 0
    for member in found:
        data = member.data
        most = data.packed_bytes * _DEFLATE_MOST if data.method is Method.DEFLATED else data.packed_bytes
        if data.size_bytes > most or (data.method is Method.STORED and data.size_bytes != data.packed_bytes):
            raise BadWheel(
                archive.name, f"{member.raw!r} can't be {data.size_bytes} bytes, it has {data.packed_bytes} packed"
            )
        total, packed = total + data.size_bytes, packed + data.packed_bytes
    if total > packed * _WHEEL_MOST + _WHEEL_START:
        raise BadWheel(archive.name, f"a zip bomb: {packed} bytes that unpack to {total}")


def _check_link(archive: Path, member: Member) -> None:
    if member.data.size_bytes > 4096:
        raise BadWheel(archive.name, f"{member.raw!r} is a symlink of {member.data.size_bytes} bytes")
    target = read(member.data).decode("utf-8", "surrogateescape")
    landed = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), target))
    if target.startswith("/") or landed == ".." or landed.startswith("../"):
        raise BadWheel(archive.name, f"{member.raw!r} is a symlink that leads out of the wheel, to {target!r}")
