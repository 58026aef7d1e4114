"""A wheel's METADATA, read from the end of the file by range requests where the index does not serve it by itself.

A wheel is a zip: its directory is at the end, and build tools write `*.dist-info` last, so that one request for the
tail often holds both. Sources: PKWARE's APPNOTE 6.3.10 (4.3.7, 4.3.12, 4.3.14 to 4.3.16); RFC 9110, 14 (range
requests).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

#: Bytes asked for first. Measured over the wheels of a torch stack: holds directory and METADATA of nine wheels in ten.
TAIL_BYTES: Final = 48 * 1024
#: No METADATA is larger; what says so is broken, or wants to fill the memory.
LARGEST_BYTES: Final = 32 * 1024 * 1024

_END = b"PK\x05\x06"
_END64_LOCATOR = b"PK\x06\x07"
_END64 = b"PK\x06\x06"
_DIRECTORY_ENTRY = b"PK\x01\x02"
_LOCAL_HEADER = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
_METADATA = b".dist-info/METADATA"


class BadWheel(ValueError):
    """The bytes are not those of a wheel."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file. start: its offset. total: the whole file's size in bytes."""

    start: int
    total: int
    body: bytes

    def holds(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.start + len(self.body)

    def cut(self, start: int, end: int) -> bytes:
        return self.body[start - self.start : end - self.start]


#: Fetches a piece of one file: (None, n) the last n bytes; (start, end) a half-open interval.
ReadPart = Callable[["int | None", int], Awaitable[Part]]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    method: int
    crc: int
    compressed: int
    size: int
    offset: int


async def read_metadata(read: ReadPart) -> tuple[bytes, int]:
    """The METADATA file of a wheel, and the wheel's size in bytes.

    Raises:
        BadWheel: no zip, or no single `*.dist-info/METADATA` in it, or one whose checksum is not the zip's.
    """
    try:
        return await _read_metadata(read)
    except struct.error as error:
        raise BadWheel(f"its zip directory is cut short: {error}") from error


async def _read_metadata(read: ReadPart) -> tuple[bytes, int]:
    tail = await read(None, TAIL_BYTES)
    start, size = _directory_place(tail) if not _needs_zip64(tail) else await _zip64_place(tail, read)
    piece = await _holding(start, start + size, tail.total, read, tail)
    entry = _find_metadata(piece.cut(start, start + size))
    if max(entry.compressed, entry.size) > LARGEST_BYTES:
        raise BadWheel(f"its METADATA is larger than {LARGEST_BYTES} bytes")
    # The local header repeats the name and may have extra fields of its own: 1 KiB more than needed is asked for.
    end = min(entry.offset + _LOCAL_HEADER_BYTES + len(entry.name) + 1024 + entry.compressed, start)
    piece = await _holding(entry.offset, end, end, read, piece, tail)
    begin = _content_start(entry, piece.cut(entry.offset, end))
    if not 0 < entry.compressed <= start - begin:
        raise BadWheel("its METADATA is empty, or runs into its zip directory")
    piece = await _holding(begin, begin + entry.compressed, begin + entry.compressed, read, piece)
    return _unpacked(entry, piece.cut(begin, begin + entry.compressed)), tail.total


async def _holding(start: int, end: int, until: int, read: ReadPart, *known: Part) -> Part:
    """A part that holds the interval: one that is known, else the bytes from `start` to `until`, fetched."""
    if not start <= end <= until:
        raise BadWheel("its zip directory names a place that it does not have")
    found = next((part for part in known if part.holds(start, end)), None) or await read(start, until)
    if not found.holds(start, end):
        raise BadWheel("the server answers other bytes than those asked for")
    return found


def _end_record(tail: Part) -> int:
    place = tail.body.rfind(_END)
    if place < 0 or len(tail.body) - place < 22:
        raise BadWheel("no end of a zip directory in it")
    return place


def _needs_zip64(tail: Part) -> bool:
    place = _end_record(tail)
    return (
        tail.body[place + 10 : place + 20].find(b"\xff\xff") >= 0
        and place >= 20
        and (tail.body[place - 20 : place - 16] == _END64_LOCATOR)
    )


def _directory_place(tail: Part) -> tuple[int, int]:
    size, start = struct.unpack_from("<II", tail.body, _end_record(tail) + 12)
    return start, size


async def _zip64_place(tail: Part, read: ReadPart) -> tuple[int, int]:
    (place,) = struct.unpack_from("<Q", tail.body, _end_record(tail) - 20 + 8)
    record = (await _holding(place, place + 56, tail.total, read, tail)).cut(place, place + 56)
    if record[:4] != _END64:
        raise BadWheel("its zip64 directory is not where it says")
    size, start = struct.unpack_from("<QQ", record, 40)
    return start, size


def _find_metadata(directory: bytes) -> _Entry:
    """The one `*.dist-info/METADATA` at the top of the wheel. Directories of 10,000 files are searched, not walked."""
    found: list[_Entry] = []
    place = directory.find(_METADATA)
    while place >= 0:
        header = directory.rfind(_DIRECTORY_ENTRY, 0, place)
        entry = _entry(directory, header) if header >= 0 else None
        if entry and entry.name.endswith(_METADATA.decode()) and entry.name.count("/") == 1:
            found.append(entry)
        place = directory.find(_METADATA, place + 1)
    if len(found) != 1:
        raise BadWheel(f"{len(found)} METADATA files in it, one is needed")
    return found[0]


def _entry(directory: bytes, place: int) -> _Entry:
    flags, method = struct.unpack_from("<HH", directory, place + 8)
    if flags & 1:
        raise BadWheel("its METADATA is encrypted")
    crc, compressed, size = struct.unpack_from("<III", directory, place + 16)
    name_length, extra_length = struct.unpack_from("<HH", directory, place + 28)
    (offset,) = struct.unpack_from("<I", directory, place + 42)
    name_end = place + 46 + name_length
    wide = _wide(directory[name_end : name_end + extra_length])
    # The zip64 field holds only those values that overflow, in this order.
    size, compressed, offset = (
        next(wide, value) if value == 0xFFFFFFFF else value for value in (size, compressed, offset)
    )
    name = directory[place + 46 : name_end].decode("utf-8", "replace")
    return _Entry(name, method, crc, compressed, size, offset)


def _wide(extra: bytes) -> Iterator[int]:
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, place)
        if kind == 1:
            yield from struct.unpack_from(f"<{length // 8}Q", extra, place + 4)
        place += 4 + length


def _content_start(entry: _Entry, head: bytes) -> int:
    """Where the packed bytes begin. head: the file from the entry's local header on."""
    if head[:4] != _LOCAL_HEADER:
        raise BadWheel("its METADATA is not where its zip directory says")
    name_length, extra_length = struct.unpack_from("<HH", head, 26)
    return int(entry.offset + _LOCAL_HEADER_BYTES + name_length + extra_length)


def _unpacked(entry: _Entry, packed: bytes) -> bytes:
    if entry.method not in (0, 8):
        raise BadWheel(f"its METADATA is packed by method {entry.method}, which wheels don't use")
    try:
        body = packed if entry.method == 0 else zlib.decompressobj(-15).decompress(packed, entry.size + 1)
    except zlib.error as error:
        raise BadWheel(f"its METADATA does not unpack: {error}") from error
    if len(body) != entry.size or zlib.crc32(body) != entry.crc:
        raise BadWheel("its METADATA is not what its checksum says")
    return body
