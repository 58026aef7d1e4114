"""What a wheel's zip holds, and where: its directory, checked before anything is unpacked.

`zipfile` reads the directory; what it does not look at is looked at here, since the streams are copied as they lie in
the archive and never pass through it: the places and sizes of all members, and paths that would leave their folder.
Source: APPNOTE.TXT 6.3.10, 4.3.7 (local header), 4.4.4 (flags).
"""

from __future__ import annotations

import io
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
from envspec.image.layers.types import Method, ZipMember
from envspec.io.archives import max_unpacked_bytes, path_problem

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_ENCRYPTED: Final = 0x1
_UTF8: Final = 0x800
_UNKNOWN: Final = 0xFFFFFFFF
_UNIX: Final = 3
#: Deflate packs no more than 1032 bytes into one (zlib's own technical notes); a few go to the frame.
_DEFLATE_MOST: Final = 1032
#: What zipfile reads into memory at once; 500,000 files have less, and torch's largest wheel has 15,000.
_DIRECTORY_MOST: Final = 64 << 20
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_END64_LOCATOR: Final = struct.Struct("<4sLQL")
#: Behind a member's data: its CRC and two sizes of up to eight bytes, with a signature or without.
_DESCRIPTOR_MOST: Final = 24
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
        start, count = _directory(archive, file)
        try:
            with zipfile.ZipFile(file) as opened:
                listed = opened.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as fault:
            raise BadWheel(archive.name, f"no zip that can be read ({fault})") from fault
        if len(listed) != count:
            raise BadWheel(archive.name, f"its zip directory has {len(listed)} files, and {count} by its end")
        everything = [_member(archive, file, info) for info in listed]
    _check_places(archive, listed, everything, start)
    pairs = [(info, member) for info, member in zip(listed, everything, strict=True) if not info.is_dir()]
    infos, found = [info for info, _ in pairs], [member for _, member in pairs]
    for info in listed:
        if info.is_dir() and info.file_size:
            raise BadWheel(archive.name, f"{info.orig_filename!r} is a folder of {info.file_size} bytes")
    _check_paths(archive, found)
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
    if why := path_problem(raw):
        raise BadWheel(archive.name, f"{raw!r} {why}")
    return posixpath.normpath(raw)


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


def _directory(archive: Path, file: IO[bytes]) -> tuple[int, int]:
    """Where the zip's directory begins, and how many files are in it.

    The one end record is the file's end: readers must not differ about which it is.

    Raises:
        BadWheel: there is none, there are bytes behind it, or it does not end where its directory does.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _END.size - 0xFFFF))
    tail = file.read()
    # A comment could hold a second end record, and no tool writes one into wheels.
    at = len(tail) - _END.size
    if at < 0 or not tail.startswith(b"PK\5\6", at):
        what = "its end is not that of a zip" if b"PK\5\6" in tail else "it is cut short, or something else"
        raise BadWheel(archive.name, f"no zip that can be read ({what})")
    _, disk, start_disk, here, count, bytes_, start, comment = _END.unpack_from(tail, at)
    end = size - _END.size
    if 0xFFFF in (here, count) or 0xFFFFFFFF in (bytes_, start):
        at -= _END64_LOCATOR.size
        signature, _, place, _ = _END64_LOCATOR.unpack_from(tail, at) if at >= 0 else (b"", 0, 0, 0)
        file.seek(min(place, size))
        record = file.read(_END64.size)
        if signature == b"PK\6\7" and record.startswith(b"PK\6\6") and len(record) == _END64.size:
            _, _, _, _, disk, start_disk, here, count, bytes_, start = _END64.unpack(record)
            end = place
    if disk or start_disk or here != count or comment or start + bytes_ != end:
        raise BadWheel(archive.name, "its zip directory is not where its end says")
    if bytes_ > _DIRECTORY_MOST:
        raise BadWheel(archive.name, f"its zip directory has {bytes_} bytes, accepted are {_DIRECTORY_MOST}")
    return int(start), int(count)


def _check_places(archive: Path, infos: Sequence[zipfile.ZipInfo], found: Sequence[Member], end: int) -> None:
    """Members lie one behind the other, without bytes of two of them or of none.

    A few MiB that are many members at once are how a zip unpacks to terabytes; a member that no directory names is
    there for readers that go from the start.
    """
    ends = [member.data.offset + member.data.packed_bytes for member in found]
    placed = sorted(zip((info.header_offset for info in infos), ends, found, strict=True), key=lambda each: each[:2])
    at, slack = 0, 0
    for start, stop in [*((first, last) for first, last, _ in placed), (end, end)]:
        if start < at:
            before = next(each for _, last, each in placed if last == at)
            raise BadWheel(archive.name, f"{before.raw!r} reaches into what comes after it")
        if start - at > slack:
            raise BadWheel(archive.name, f"{start - at} bytes at {at} are of no file in it")
        at, slack = stop, _DESCRIPTOR_MOST


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
    if total > max_unpacked_bytes(packed):
        raise BadWheel(archive.name, f"a zip bomb: {packed} bytes that unpack to {total}")


def _check_link(archive: Path, member: Member) -> None:
    if member.data.size_bytes > 4096:
        raise BadWheel(archive.name, f"{member.raw!r} is a symlink of {member.data.size_bytes} bytes")
    target = read(member.data).decode("utf-8", "surrogateescape")
    landed = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), target))
    if target.startswith("/") or landed == ".." or landed.startswith("../"):
        raise BadWheel(archive.name, f"{member.raw!r} is a symlink that leads out of the wheel, to {target!r}")
