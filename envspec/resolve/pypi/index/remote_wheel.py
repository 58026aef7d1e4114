"""METADATA and RECORD of a remote wheel by range requests.

Source: PKWARE's APPNOTE 6.3.10 (4.3.7, 4.3.12, 4.5.3).

A wheel is a zip: its directory is at the end, and build tools write `*.dist-info` last, so that one request for the
tail often holds all three. Sources: PKWARE's APPNOTE 6.3.10 (4.3.7, 4.3.12, 4.3.14 to 4.3.16); RFC 9110, 14 (range
requests).
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from envspec.io.http import Http
    from envspec.origins import Bounds


_DIRECTORY_ENTRY = b"PK\x01\x02"
_LOCAL_HEADER = b"PK\x03\x04"
#: Of a local header, without the name and the extra fields that follow it.
LOCAL_HEADER_BYTES: Final = 30
#: An entry of the directory, up to the end of the longest name.
_ENTRY_BYTES: Final = 46 + 0xFFFF
#: Packages that hold others' metadata, at whatever place, have some dozens.
_MOST_NAMED: Final = 1000


class BadWheel(ValueError):
    """The bytes are not those of a wheel."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the zip, as its directory tells. crc: of its content. compressed, size, offset: in bytes."""

    name: str
    method: int
    crc: int
    compressed: int
    size: int
    offset: int


def find(directory: bytes, name: str) -> Entry:
    """The one `*.dist-info/<name>` at the top of the wheel. Directories of 10,000 files are searched, not walked."""
    found: list[Entry] = []
    wanted = f".dist-info/{name}"
    if directory.count(wanted.encode()) > _MOST_NAMED:
        raise BadWheel(f"more than {_MOST_NAMED} {name} files in it, one is needed")
    place = directory.find(wanted.encode())
    while place >= 0:
        header = directory.rfind(_DIRECTORY_ENTRY, max(0, place - _ENTRY_BYTES), place)
        entry = _entry(directory, header) if header >= 0 else None
        if entry and entry.name.endswith(wanted) and entry.name.count("/") == 1:
            found.append(entry)
        place = directory.find(wanted.encode(), place + 1)
    if len(found) != 1:
        raise BadWheel(f"{len(found)} {name} files in it, one is needed")
    return found[0]


def _entry(directory: bytes, place: int) -> Entry:
    flags, method = struct.unpack_from("<HH", directory, place + 8)
    if flags & 1:
        raise BadWheel("a file of its metadata is encrypted")
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
    return Entry(name, method, crc, compressed, size, offset)


def _wide(extra: bytes) -> Iterator[int]:
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, place)
        if kind == 1:
            yield from struct.unpack_from(f"<{length // 8}Q", extra, place + 4)
        place += 4 + length


def named(entry: Entry) -> str:
    """How messages call it."""
    return f"its {entry.name.rpartition('/')[2]}"


def content_start(entry: Entry, head: bytes) -> int:
    """Where the packed bytes begin. head: the file from the entry's local header on."""
    if head[:4] != _LOCAL_HEADER:
        raise BadWheel(f"{named(entry)} is not where its zip directory says")
    name_length, extra_length = struct.unpack_from("<HH", head, 26)
    return int(entry.offset + LOCAL_HEADER_BYTES + name_length + extra_length)


def unpacked(entry: Entry, packed: bytes) -> bytes:
    """An entry's content. packed: its bytes in the zip. BadWheel: it can't be, or is not what the directory says."""
    if entry.method not in (0, 8):
        raise BadWheel(f"{named(entry)} is packed by method {entry.method}, which wheels don't use")
    try:
        body = packed if entry.method == 0 else zlib.decompressobj(-15).decompress(packed, entry.size + 1)
    except zlib.error as error:
        raise BadWheel(f"{named(entry)} does not unpack: {error}") from error
    if len(body) != entry.size or zlib.crc32(body) != entry.crc:
        raise BadWheel(f"{named(entry)} is not what its checksum says")
    return body


#: Bytes asked for first. Measured over the wheels of a torch stack: holds directory and METADATA of nine wheels in ten.
TAIL_BYTES: Final = 48 * 1024
#: No METADATA or RECORD is larger; what says so is broken, or wants to fill the memory.
LARGEST_BYTES: Final = 32 * 1024 * 1024
#: The longest piece that is asked for: one of these files with its header, or the directory.
MOST_AT_ONCE: Final = LARGEST_BYTES + (1 << 20)

_END = b"PK\x05\x06"
_END64_LOCATOR = b"PK\x06\x07"
_END64 = b"PK\x06\x06"
_METADATA = "METADATA"
_RECORD = "RECORD"


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


class _Hashed:
    """A file that is written from its start, and hashed meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        file.truncate()
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.digest.update(chunk)


async def pour(http: Http, url: str, file: IO[bytes], most: int, *, within: Bounds | None = None) -> str:
    """Fetch a file of up to `most` bytes whole, into `file`; its SHA-256. within: as in `Http.get`.

    Raises:
        NetworkError: as `Http.download`.
    """
    sinks: list[_Hashed] = []

    def start() -> _Hashed:
        # One for each try: what broke off is in no digest.
        sinks.append(_Hashed(file))
        return sinks[-1]

    await http.download(url, start, max_bytes=most, within=within)
    return sinks[-1].digest.hexdigest()


def part_of(file: IO[bytes]) -> ReadPart:
    """Pieces of a file on disk."""
    total = file.seek(0, os.SEEK_END)

    async def read(start: int | None, end: int) -> Part:
        begin, until = (max(0, total - end), total) if start is None else (start, end)
        file.seek(begin)
        return Part(begin, total, file.read(until - begin))

    return read


async def read_metadata(read: ReadPart) -> tuple[bytes, int]:
    """The METADATA file of a wheel, and the wheel's size in bytes.

    Raises:
        BadWheel: no zip, or no single `*.dist-info/METADATA` in it, or one whose checksum is not the zip's.
    """
    metadata, total, _ = await read_with_record(read)
    return metadata, total


async def read_with_record(read: ReadPart) -> tuple[bytes, int, bytes | None]:
    """METADATA, the wheel's size in bytes, and RECORD where it was among what METADATA took to read.

    Raises:
        BadWheel: as `read_metadata` does; a RECORD that can't be read is left out.
    """
    try:
        wheel = await _open(read)
        metadata = await wheel.file(_METADATA)
    except struct.error as error:
        raise BadWheel(f"its zip directory is cut short: {error}") from error
    return metadata, wheel.total, await _at_hand(wheel)


async def read_record(read: ReadPart) -> bytes:
    """The RECORD of a wheel.

    Raises:
        BadWheel: as `read_metadata` does.
    """
    try:
        return await (await _open(read)).file(_RECORD)
    except struct.error as error:
        raise BadWheel(f"its zip directory is cut short: {error}") from error


class _NotAtHand(Exception):
    """It would take another request."""


async def _at_hand(wheel: _Wheel) -> bytes | None:
    async def refuse(start: int | None, end: int) -> Part:  # noqa: ARG001 (a ReadPart)
        raise _NotAtHand

    try:
        return await replace(wheel, read=refuse).file(_RECORD)
    except (_NotAtHand, BadWheel, struct.error):
        return None


async def _open(read: ReadPart) -> _Wheel:
    tail = await read(None, TAIL_BYTES)
    start, size = _directory_place(tail) if not _needs_zip64(tail) else await _zip64_place(tail, read)
    piece = await _holding(start, start + size, tail.total, read, tail)
    return _Wheel(read, piece.cut(start, start + size), start, tail.total, [piece, tail])


@dataclass(frozen=True, slots=True)
class _Wheel:
    """A wheel of which the zip directory is known. start: where that begins. known: the parts that were read."""

    read: ReadPart
    directory: bytes
    start: int
    total: int
    known: list[Part]

    async def file(self, name: str) -> bytes:
        """The one file of that name in the wheel's `*.dist-info`."""
        entry = find(self.directory, name)
        if max(entry.compressed, entry.size) > LARGEST_BYTES:
            raise BadWheel(f"its {name} is larger than {LARGEST_BYTES} bytes")
        # The local header repeats the name and may have extra fields of its own: 1 KiB more than needed is asked for.
        end = min(entry.offset + LOCAL_HEADER_BYTES + len(entry.name) + 1024 + entry.compressed, self.start)
        piece = await self._part(entry.offset, end)
        begin = content_start(entry, piece.cut(entry.offset, end))
        if not 0 < entry.compressed <= self.start - begin:
            raise BadWheel(f"its {name} is empty, or runs into its zip directory")
        piece = await self._part(begin, begin + entry.compressed)
        return unpacked(entry, piece.cut(begin, begin + entry.compressed))

    async def _part(self, start: int, end: int) -> Part:
        part = await _holding(start, end, end, self.read, *self.known)
        if all(part is not each for each in self.known):
            self.known.insert(0, part)
        return part


async def _holding(start: int, end: int, until: int, read: ReadPart, *known: Part) -> Part:
    """A part that holds the interval: one that is known, else the bytes from `start` to `until`, fetched."""
    if not start <= end <= until:
        raise BadWheel("its zip directory names a place that it does not have")
    if until - start > MOST_AT_ONCE:
        raise BadWheel(f"its zip directory is larger than {LARGEST_BYTES} bytes")
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
