"""A zip's directory, searched for the few files that are wanted of a wheel, and one of its entries unpacked.

Source: PKWARE's APPNOTE 6.3.10 (4.3.7, 4.3.12, 4.5.3).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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
