"""What a library needs: DT_NEEDED, SONAME and RUNPATH of an ELF file.

Sources: System V ABI, gABI 4.3 (ELF-64: header, program headers, dynamic section); 64-bit, little-endian, which all
Linux platforms of locks are. pyelftools reads files that can be sought in; a wheel's members arrive once, in pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from msgspec import Struct

MAGIC: Final = b"\x7fELF\x02\x01"
_HEADER: Final = struct.Struct("<32xQ14xHH4x")
_SEGMENT: Final = struct.Struct("<I4xQQ8xQ16x")
_ENTRY: Final = struct.Struct("<qQ")
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29
#: The longest RUNPATH that was seen, torch's, has 800 bytes.
_LONGEST_NAME: Final = 16 << 10
_MOST_SEGMENTS: Final = 128
_LARGEST_DYNAMIC: Final = 1 << 20

#: Of a library that arrives in pieces: the linker puts the names at the beginning, patchelf (of which auditwheel and
#: PyTorch's builds make use) to the end, just before or anywhere after the dynamic section. Of 1,173 libraries of three
#: environments some have them elsewhere: those are read again.
HEAD_BYTES: Final = 512 << 10
_AROUND_BYTES: Final = 1 << 20

#: Reads a half-open interval of a file.
Read = Callable[[int, int], bytes]


class NotKept(LookupError):
    """Bytes of a file that have passed by. start, end: the interval."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(start, end)
        self.start = start
        self.end = end


class Dynamic(Struct, frozen=True):
    """soname: empty if it has none. runpath: DT_RUNPATH or DT_RPATH, its folders in order."""

    needed: tuple[str, ...] = ()
    soname: str = ""
    runpath: tuple[str, ...] = ()


class _ElfTables(Struct, frozen=True):
    """dynamic: (start, end) of the dynamic section. loads: (address, offset, size in bytes) of the loaded segments."""

    dynamic: tuple[int, int]
    loads: tuple[tuple[int, int, int], ...]


def dynamic_of(read: Read) -> Dynamic | None:
    """What a library needs; None if the file is no ELF file of 64 bits, is linked statically, or is damaged.

    Raises:
        NotKept: `read` has no such bytes.
    """
    try:
        tables = _tables(read)
        if tables is None:
            return None
        start, end, places = _names(read(*tables.dynamic), tables)
        names = read(start, end)

        def name(at: int) -> str:
            return names[at - start : names.index(0, at - start)].decode("utf-8", "replace")

        needed = tuple(dict.fromkeys(map(name, places[_NEEDED])))
        soname = "".join(map(name, places[_SONAME][:1]))
        folders = ":".join(map(name, places[_RPATH] + places[_RUNPATH])).split(":")
        return Dynamic(needed, soname, tuple(filter(None, folders)))
    except (struct.error, ValueError):
        return None


def _tables(read: Read) -> _ElfTables | None:
    head = read(0, 64)
    if not head.startswith(MAGIC):
        return None
    start, size, count = _HEADER.unpack_from(head)
    if size != _SEGMENT.size or count > _MOST_SEGMENTS:
        return None
    rows = list(_SEGMENT.iter_unpack(read(start, start + size * count)))
    dynamic = next(((offset, offset + length) for kind, offset, _, length in rows if kind == _DYNAMIC), None)
    if dynamic is None or dynamic[1] - dynamic[0] > _LARGEST_DYNAMIC:
        return None
    return _ElfTables(
        dynamic, tuple((address, offset, length) for kind, offset, address, length in rows if kind == _LOAD)
    )


def _names(section: bytes, tables: _ElfTables) -> tuple[int, int, dict[int, list[int]]]:
    """The interval of the file that contains the names of a dynamic section, and the offset of each, by tag.

    Raises:
        ValueError: it has no table of names.
    """
    found: dict[int, list[int]] = {_NEEDED: [], _SONAME: [], _RPATH: [], _RUNPATH: [], _STRTAB: [], _STRSZ: []}
    for tag, value in _ENTRY.iter_unpack(section[: len(section) // _ENTRY.size * _ENTRY.size]):
        if tag == 0:
            break
        if tag in found:
            found[tag].append(value)
    (table,), (size,) = found.pop(_STRTAB), found.pop(_STRSZ)
    at = next((offset + table - start for start, offset, length in tables.loads if 0 <= table - start < length), None)
    if at is None:
        raise ValueError("the table of names is not in the file")
    places: dict[int, list[int]] = {}
    every: list[int] = []
    for tag, offsets in found.items():
        places[tag] = [at + place for place in offsets if place < size]
        every += places[tag]
    last = min(at + size, max(every, default=at) + _LONGEST_NAME)
    return min(every, default=at), last, places


class DynamicScan:
    """Keeps of a library that arrives in pieces what `dynamic_of` reads."""

    def __init__(self) -> None:
        self._seen = 0
        self._kept = [KeptBytes(0, HEAD_BYTES)]
        self._tables: _ElfTables | None = None
        self._next = HEAD_BYTES  # when enough has been seen to know what else to keep; -1 if all is known

    def add(self, data: bytes) -> None:
        """The next bytes of the file, from its first one on."""
        start, self._seen = self._seen, self._seen + len(data)
        for kept in self._kept:
            kept.add(start, data)
        while 0 <= self._next <= self._seen:
            try:
                more = self._more()
            except (struct.error, LookupError, ValueError):
                more, self._next = None, -1
            # What begins before this piece is lost.
            if more is not None and more.start >= start:
                more.add(start, data)
                self._kept.append(more)

    def _more(self) -> KeptBytes | None:
        """First what is around the dynamic section; once that is known, the names behind it."""
        if self._tables is None:
            self._tables = _tables(self.read)
            if self._tables is None:
                self._next = -1
                return None
            self._next = self._tables.dynamic[1]
            return KeptBytes(max(HEAD_BYTES, self._tables.dynamic[0] - _AROUND_BYTES), self._tables.dynamic[1])
        self._next = -1
        start, end, _ = _names(self.read(*self._tables.dynamic), self._tables)
        return KeptBytes(start, end) if end - start < _AROUND_BYTES else None

    def read(self, start: int, end: int) -> bytes:
        """As `Read`; the file ends where the pieces did."""
        end = max(start, min(end, self._seen))
        for kept in self._kept:
            if kept.start <= start and end <= kept.start + len(kept.data):
                return bytes(kept.data[start - kept.start : end - kept.start])
        raise NotKept(start, end)


class KeptBytes:
    """A part of the file. start, end: its offsets."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.data = bytearray()

    def add(self, at: int, data: bytes) -> None:
        """at: offset of `data` in the file."""
        if at < self.end and at + len(data) > self.start:
            self.data += data[max(0, self.start - at) : self.end - at]
