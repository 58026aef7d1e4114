"""A wheel's METADATA and RECORD, read from the end of the file by range requests.

A wheel is a zip: its directory is at the end, and build tools write `*.dist-info` last, so that one request for the
tail often holds all three. Sources: PKWARE's APPNOTE 6.3.10 (4.3.7, 4.3.12, 4.3.14 to 4.3.16); RFC 9110, 14 (range
requests).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final

from envspec.resolve.index.zip_directory import LOCAL_HEADER_BYTES, BadWheel, content_start, find, unpacked

if TYPE_CHECKING:
    from envspec.effects.http import Http
    from envspec.origins import Bounds

__all__ = ["BadWheel", "Part", "ReadPart", "part_of", "pour", "read_metadata", "read_record", "read_with_record"]

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
