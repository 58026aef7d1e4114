"""Metadata of wheels by range requests, and of sdists by their PKG-INFO.

A wheel is a zip: its directory is at the end, and build tools write `*.dist-info` last, so that one request for the
tail often contains all three. Sources: PKWARE's APPNOTE 6.3.10 (4.3.7, 4.3.12, 4.3.14 to 4.3.16, 4.5.3); RFC 9110, 14
(range requests).

Sources: PEP 643 (metadata 2.2: what is not `Dynamic` applies to the wheel too); setuptools writes
`*.egg-info/requires.txt` into its sdists, which is what it found when the sdist was made.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import posixpath
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, Final

from msgspec import Struct

from envspec.facts.tables import pep440
from envspec.io.archives import MAX_METADATA_BYTES, bounded_members, bounded_tar, path_problem
from envspec.models import Unbuilt, WrongRow
from envspec.names import INNER_PATH, normalised
from envspec.resolve.pypi.metadata import (
    DYNAMIC,
    declared,
    extras_of,
    is_dynamic,
    metadata_file,
    parsed,
    requires_python,
    valid,
    without_requirements,
)
from envspec.structs import replace
from envspec.verifier.record import (
    STRONG,
    BadRecord,
    PlainRow,
    RecordEntry,
    from_hex,
    plain_rows,
    wheel_entries,
    wheel_path,
)

_DIRECTORY_ENTRY = b"PK\x01\x02"
_LOCAL_HEADER = b"PK\x03\x04"
_END = b"PK\x05\x06"
_END64_LOCATOR = b"PK\x06\x07"
_END64 = b"PK\x06\x06"
#: A local header, without the name and the extra fields that follow it.
_LOCAL_HEADER_BYTES: Final = 30
#: Where an entry of the directory has its name.
_NAME_AT: Final = 46
#: Of an entry of the directory, from its 13th byte on: time, size, length of name, of extra fields, and of the comment.
_LISTED: Final = struct.Struct("<I8xIHHH")
#: Packages that contain others' metadata, anywhere, have some dozens.
_MOST_NAMED: Final = 1000
#: The first request. Measured over the wheels of a torch stack: contains directory and METADATA of nine wheels in ten.
TAIL_BYTES: Final = 48 * 1024
#: No METADATA or RECORD is larger; a wheel that claims so is broken, or wants to fill the memory.
LARGEST_BYTES: Final = 32 * 1024 * 1024
#: The longest part that is requested: one of these files with its header, or the directory.
MOST_AT_ONCE: Final = LARGEST_BYTES + (1 << 20)
#: How much of a file that RECORD does not list as it is, is requested and unpacked at once.
_PIECE_BYTES: Final = 16 << 20
#: Of so many files that RECORD does not list as they are, the hashes are not worth as many requests.
_MOST_WRONG: Final = 100
#: A RECORD with more rows without a file describes another wheel; each would be a row of the lock.
_MOST_MISSING: Final = 1000
#: Who repairs a wheel changes a few libraries.
_MOST_LATER: Final = 20
#: The time of day in an entry of the directory, in the low bits; the date is in the high ones.
_TIME_OF_DAY: Final = 0xFFFF
#: Of a size or an offset in an entry of the directory: its zip64 field has the value.
_IN_ZIP64: Final = 0xFFFFFFFF


class BadRemoteWheel(ValueError):
    """The bytes are not a wheel's."""


class FilePart(Struct, frozen=True):
    """A part of a file. start: its offset. total: the whole file's size in bytes."""

    start: int
    total: int
    body: bytes

    def contains(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.start + len(self.body)

    def slice(self, start: int, end: int) -> bytes:
        return self.body[start - self.start : end - self.start]


class WheelRecord(Struct, frozen=True):
    """The RECORD of a wheel.

    wrong: the files that it does not list as they are, sorted.
    rows: see `plain_rows`.
    """

    content: bytes
    wrong: tuple[WrongRow, ...]
    rows: list[PlainRow] | None = None


#: Reads a part of one file: (None, n) the last n bytes; (start, end) a half-open interval.
ReadPart = Callable[["int | None", int], Awaitable[FilePart]]


async def read_file(file: IO[bytes]) -> tuple[bytes, int, WheelRecord | None]:
    """METADATA, size in bytes, and RECORD of a wheel on disk; raises as `read_metadata`."""
    total = file.seek(0, os.SEEK_END)

    async def read(start: int | None, end: int) -> FilePart:
        begin, until = max(0, total - end), total
        if start is not None:
            begin, until = start, end
        file.seek(begin)
        return FilePart(begin, total, file.read(until - begin))

    metadata, total, record = await read_metadata(read)
    if record is None:
        with suppress(BadRemoteWheel):
            record = await read_record(read)
    return metadata, total, record


async def read_metadata(read: ReadPart) -> tuple[bytes, int, WheelRecord | None]:
    """METADATA, the wheel's size in bytes, and RECORD if it can be read without another request.

    Raises:
        BadRemoteWheel: no zip, or no single `*.dist-info/METADATA` in it, or one with another checksum than the zip's.
    """
    wheel = await _open(read)
    metadata = await wheel.file("METADATA")
    try:
        return metadata, wheel.total, await replace(wheel, read=_no_request).record()
    except BadRemoteWheel:
        return metadata, wheel.total, None


async def read_record(read: ReadPart) -> WheelRecord:
    """The RECORD of a wheel; raises as `read_metadata`."""
    return await (await _open(read)).record()


async def read_member(read: ReadPart, paths: Container[str], most_bytes: int) -> bytes:
    """The only file of a wheel at one of these paths, at most `most_bytes` long; raises as `read_metadata`."""
    wheel = await _open(read)
    entries = [entry for entry in _entries(wheel.directory) if entry.name in paths]
    if len(entries) != 1:
        raise BadRemoteWheel(f"{len(entries)} such files in it, one is needed")
    if entries[0].size > most_bytes:
        raise BadRemoteWheel(f"{entries[0].name} is larger than {most_bytes} bytes")
    return await wheel.content(entries[0], entries[0].name)


async def _no_request(start: int | None, end: int) -> FilePart:  # noqa: ARG001 (a ReadPart)
    raise BadRemoteWheel("another request is needed")


def _unpack(form: str, data: bytes, start: int) -> tuple[Any, ...]:
    try:
        return struct.unpack_from(form, data, start)
    except struct.error as error:
        raise BadRemoteWheel(f"its zip directory is cut short: {error}") from error


async def _open(read: ReadPart) -> _RemoteWheel:
    tail = await read(None, TAIL_BYTES)
    end = tail.body.rfind(_END)
    if end < 0 or len(tail.body) - end < 22:
        raise BadRemoteWheel("no end of a zip directory in it")
    size, start = _unpack("<II", tail.body, end + 12)
    if b"\xff\xff" in tail.body[end + 10 : end + 20] and tail.body[max(0, end - 20) : end - 16] == _END64_LOCATOR:
        (offset,) = _unpack("<Q", tail.body, end - 20 + 8)
        end64 = (await _part_containing(offset, offset + 56, tail.total, read, tail)).slice(offset, offset + 56)
        if end64[:4] != _END64:
            raise BadRemoteWheel("its zip64 directory is not where it should be")
        size, start = _unpack("<QQ", end64, 40)
    part = await _part_containing(start, start + size, tail.total, read, tail)
    return _RemoteWheel(read, part.slice(start, start + size), start, tail.total, [part, tail])


class _RemoteWheel(Struct, frozen=True):
    """A wheel with its zip directory. start: the directory's offset. parts: those that were read."""

    read: ReadPart
    directory: bytes
    start: int
    total: int
    parts: list[FilePart]

    async def file(self, name: str) -> bytes:
        """The only file of that name in the wheel's `*.dist-info`."""
        return await self.content(_find(self.directory, name), name)

    async def content(self, entry: _Entry, name: str) -> bytes:
        """A file's content. name: for errors."""
        if max(entry.compressed, entry.size) > LARGEST_BYTES:
            raise BadRemoteWheel(f"its {name} is larger than {LARGEST_BYTES} bytes")
        end = min(_likely_end(entry), self.start)
        begin = _content_offset(entry, (await self._part(entry.offset, end)).slice(entry.offset, end), name)
        if not 0 < entry.compressed <= self.start - begin:
            raise BadRemoteWheel(f"its {name} is empty, or runs into its zip directory")
        end = begin + entry.compressed
        return _decompress(entry, name, (await self._part(begin, end)).slice(begin, end))

    async def record(self) -> WheelRecord:
        """RECORD, compared with the zip directory; the hash of a file that differs is that of its content."""
        own = _find(self.directory, "RECORD")
        content = await self.content(own, "RECORD")
        plain = plain_rows(content)
        if plain is not None and _is_as_listed(self.directory, plain, own):
            return WheelRecord(content, (), plain)
        try:
            rows = {row.path: row for row in wheel_entries(content)}
        except BadRecord:
            return WheelRecord(content, ())
        differing, missing = _compare(self.directory, rows, own.modified)
        if len(differing) > _MOST_WRONG or len(missing) > _MOST_MISSING:
            return WheelRecord(content, (), plain)
        wrong = list(map(WrongRow, missing))
        for path, entry in differing.items():
            sha256, row = await self._sha256(entry), rows.get(entry.name)
            if row is None or row.digest != from_hex(sha256):
                wrong.append(WrongRow(path, sha256))
        return WheelRecord(content, tuple(sorted(wrong, key=lambda each: each.path)), plain)

    async def _sha256(self, entry: _Entry) -> str:
        """SHA-256 (hexadecimal) of a file's content, read in pieces: libraries have gigabytes."""
        piece_end = min(_likely_end(entry), entry.offset + _PIECE_BYTES, self.start)
        first = await _part_containing(entry.offset, piece_end, piece_end, self.read, *self.parts)
        begin = _content_offset(entry, first.slice(entry.offset, piece_end), entry.name)
        end = begin + entry.compressed
        if end > self.start or entry.method not in (0, 8):
            raise BadRemoteWheel(f"its {entry.name} runs into its zip directory, or has another compression method")
        digest, crc, size = hashlib.sha256(), 0, 0
        unpacker = zlib.decompressobj(-15) if entry.method == 8 else None
        for start in range(begin, end, _PIECE_BYTES):
            stop = min(start + _PIECE_BYTES, end)
            packed = (await _part_containing(start, stop, stop, self.read, first, *self.parts)).slice(start, stop)
            for chunk in _chunks(packed, unpacker, is_last=stop == end):
                digest.update(chunk)
                crc, size = zlib.crc32(chunk, crc), size + len(chunk)
                if size > entry.size:
                    break
        if size != entry.size or crc != entry.crc:
            raise BadRemoteWheel(f"its {entry.name} does not match its checksum")
        return digest.hexdigest()

    async def _part(self, start: int, end: int) -> FilePart:
        part = await _part_containing(start, end, end, self.read, *self.parts)
        if part not in self.parts:
            self.parts.insert(0, part)
        return part


def _likely_end(entry: _Entry) -> int:
    """An offset behind a file's content, nearly always: its local header repeats the name, and may have 1 KiB of extra
    fields of its own.
    """
    return entry.offset + _LOCAL_HEADER_BYTES + len(entry.name) + 1024 + entry.compressed


def _content_offset(entry: _Entry, head: bytes, name: str) -> int:
    """The offset of a file's content. head: the bytes from its local header on. name: for errors."""
    if head[:4] != _LOCAL_HEADER:
        raise BadRemoteWheel(f"its {name} is not where its zip directory has it")
    name_bytes, extra_bytes = _unpack("<HH", head, 26)
    return entry.offset + _LOCAL_HEADER_BYTES + int(name_bytes + extra_bytes)


async def _part_containing(start: int, end: int, until: int, read: ReadPart, *parts: FilePart) -> FilePart:
    """A part that contains the interval: one of `parts`, else the bytes from `start` to `until`, fetched."""
    if not start <= end <= until:
        raise BadRemoteWheel("its zip directory has an offset beyond its end")
    if until - start > MOST_AT_ONCE:
        raise BadRemoteWheel(f"its zip directory is larger than {LARGEST_BYTES} bytes")
    for part in parts:
        if part.contains(start, end):
            return part
    fetched = await read(start, until)
    if not fetched.contains(start, end):
        raise BadRemoteWheel("the server sends other bytes than requested")
    return fetched


def _chunks(packed: bytes, unpacker: zlib._Decompress | None, *, is_last: bool) -> Iterator[bytes]:
    """The content of a piece of a file, a bounded part at a time."""
    if unpacker is None:
        yield packed
        return
    try:
        while packed:
            yield unpacker.decompress(packed, _PIECE_BYTES)
            packed = unpacker.unconsumed_tail
        if is_last:
            yield unpacker.flush()
    except zlib.error as error:
        raise BadRemoteWheel(f"a file of it cannot be decompressed: {error}") from error


def _is_as_listed(directory: bytes, rows: Iterable[PlainRow], own: _Entry) -> bool:
    """Whether `_compare` would surely find nothing: in a fifth of its time.

    own: RECORD's entry.
    """
    left = {path: int(size) for _, path, size in rows}
    left[own.name.encode()] = own.size
    newest = own.modified if own.modified & _TIME_OF_DAY else _IN_ZIP64
    start = 0
    with suppress(struct.error):
        while directory.startswith(_DIRECTORY_ENTRY, start):
            modified, size, name, extra, comment = _LISTED.unpack_from(directory, start + 12)
            name_end = start + _NAME_AT + name
            path = directory[start + _NAME_AT : name_end]
            start = name_end + extra + comment
            if (left.pop(path, None) != size or modified > newest) and not path.endswith(b"/"):
                return False
        return not left
    return False


def _compare(directory: bytes, rows: Mapping[str, RecordEntry], written: int) -> tuple[dict[str, _Entry], list[str]]:
    """Files that RECORD lists with another size or without a hash, or does not list, by their paths as installed; and
    the paths of its rows without a file. Only files that no installer changes, and whose path a lock can contain.

    Also the files that were changed later than RECORD: their hashes may be wrong. Not if RECORD is of midnight, as some
    build tools write it.

    rows: of RECORD, by path.
    written: when RECORD was, as `_Entry.modified`.
    """
    differing: dict[str, _Entry] = {}
    later: dict[str, _Entry] = {}
    has_time = bool(written & _TIME_OF_DAY)
    found = set[str]()
    start = 0
    while directory.startswith(_DIRECTORY_ENTRY, start):
        modified, size, name, extra, comment = _unpack(_LISTED.format, directory, start + 12)
        end = start + _NAME_AT + name
        raw = directory[start + _NAME_AT : end].decode("utf-8", "replace")
        path = raw
        if raw not in rows:
            path = posixpath.normpath(raw)
        row = rows.get(path)
        found.add(path)
        is_later = has_time and modified > written
        if is_later or not _is_listed(row, size):
            entry = _entry(directory, start)
            installed = _lockable(path)
            if raw.endswith("/") or installed is None:
                pass
            elif not _is_listed(row, entry.size):
                differing[installed] = entry
            elif is_later:
                later[installed] = entry
        # The extra fields and the comment follow.
        start = end + extra + comment
    left = set(map(_lockable, rows.keys() - found)) - differing.keys()
    missing = list(filter(None, left))
    if len(later) <= _MOST_LATER:
        differing |= later
    return differing, missing


def _is_listed(row: RecordEntry | None, size_bytes: int) -> bool:
    """Whether a row of RECORD is of a file of that size, and has a hash of it."""
    return row is not None and row.size_bytes in (None, size_bytes) and row.algorithm in STRONG


def _lockable(path: str) -> str | None:
    """`wheel_path`, if a lock can contain it."""
    installed = wheel_path(path)
    if installed is None or not INNER_PATH.fits(installed):
        return None
    return installed


class _Entry(Struct, frozen=True):
    """A file of the zip directory.

    crc: of its content.
    compressed, size, offset: in bytes.
    modified: ascending.
    """

    name: str
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    modified: int


def _find(directory: bytes, name: str) -> _Entry:
    """The only `*.dist-info/<name>` at the top of the wheel. Searches: parsing 10,000 entries takes too long."""
    found: list[_Entry] = []
    suffix = f".dist-info/{name}"
    places = 0
    place = directory.find(suffix.encode())
    while place >= 0:
        places += 1
        if places > _MOST_NAMED:
            raise BadRemoteWheel(f"more than {_MOST_NAMED} {name} files in it, one is needed")
        header = directory.rfind(_DIRECTORY_ENTRY, max(0, place - _NAME_AT - 0xFFFF), place)
        if header >= 0:
            entry = _entry(directory, header)
            if entry.name.endswith(suffix) and entry.name.count("/") == 1:
                found.append(entry)
        place = directory.find(suffix.encode(), place + 1)
    if len(found) != 1:
        raise BadRemoteWheel(f"{len(found)} {name} files in it, one is needed")
    return found[0]


def _entries(directory: bytes) -> Iterator[_Entry]:
    """Every entry, in order."""
    start = 0
    while directory.startswith(_DIRECTORY_ENTRY, start):
        yield _entry(directory, start)
        # The name, the extra fields and the comment follow.
        start += _NAME_AT + sum(_unpack("<HHH", directory, start + 28))


def _entry(directory: bytes, start: int) -> _Entry:
    # Flags, method, time, CRC, compressed size, size, length of name, length of extra fields, (four more), offset.
    flags, method, modified, crc, compressed, size, name, extra, offset = _unpack("<8xHHIIIIHH10xI", directory, start)
    if flags & 1:
        raise BadRemoteWheel("a file of its metadata is encrypted")
    name_end = start + _NAME_AT + name
    wide = _zip64_values(directory[name_end : name_end + extra])
    # The zip64 field has only those values that overflow, in this order.
    if size == _IN_ZIP64:
        size = next(wide, size)
    if compressed == _IN_ZIP64:
        compressed = next(wide, compressed)
    if offset == _IN_ZIP64:
        offset = next(wide, offset)
    text = directory[start + _NAME_AT : name_end].decode("utf-8", "replace")
    return _Entry(text, method, crc, compressed, size, offset, modified)


def _zip64_values(extra: bytes) -> Iterator[int]:
    start = 0
    while start + 4 <= len(extra):
        kind, length = _unpack("<HH", extra, start)
        if kind == 1:
            yield from _unpack(f"<{length // 8}Q", extra, start + 4)
        start += 4 + length


def _decompress(entry: _Entry, name: str, packed: bytes) -> bytes:
    if entry.method not in (0, 8):
        raise BadRemoteWheel(f"its {name} has compression method {entry.method}, which wheels don't use")
    body = packed
    if entry.method == 8:
        try:
            body = zlib.decompressobj(-15).decompress(packed, entry.size + 1)
        except zlib.error as error:
            raise BadRemoteWheel(f"its {name} cannot be decompressed: {error}") from error
    if len(body) != entry.size or zlib.crc32(body) != entry.crc:
        raise BadRemoteWheel(f"its {name} does not match its checksum")
    return body


#: RuntimeError, NotImplementedError: zipfile's for an encrypted member and an unsupported compression.
_UNREADABLE: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, ValueError, RuntimeError, NotImplementedError),
)


class BadSdist(Exception):
    """An archive that cannot be read within the bounds of `io.archives`, or states another release than its file name.

    Nothing can be built from it.
    """


def metadata(content: bytes, filename: str, name: str, version: str) -> bytes:
    """The METADATA of an sdist's wheel, as far as the sdist states it; raises BadSdist: see `_read`.

    Requirements are Requires-Dist of its PKG-INFO, else the lines of its requires.txt, else none. Unless the wheel must
    have the same (PEP 643), they are `Dynamic`.
    """
    info, files = _read(content, filename, name, version)
    needs, extras = declared(info), set(extras_of(info))
    if not needs and b"Dynamic: Requires-Dist" not in info:
        paths = [path for path in files if path.endswith(_REQUIRES)]
        if paths:
            # The nearest to the top: sdists of packaging tools also contain those of their test data.
            nearest = min(paths, key=lambda path: (path.count("/"), path))
            listed = files[nearest].decode("utf-8", "replace")
            needs = tuple(_sections(listed))
            extras |= set(re.findall(r"^\[([^\]:\n]+)[\]:]", listed, re.MULTILINE))
    fields: list[tuple[str, str]] = []
    if not _is_static(info):
        fields.append(DYNAMIC)
    if python := requires_python(info):
        fields.append(("Requires-Python", python))
    fields += [("Provides-Extra", extra) for extra in sorted(extras)]
    fields += [("Requires-Dist", each) for each in needs]
    # A resolver skips a release with a line that it cannot read, and takes an older one.
    return without_requirements(valid(metadata_file(name, version, fields)), lambda text: parsed(text) is not None)


def stated_version(content: bytes, filename: str) -> str | None:
    """The version in the PKG-INFO of an sdist, None if there is none.

    Raises:
        BadSdist: see `_files`.
    """
    info, _ = _files(content, filename)
    for field, value in _release_fields(info):
        if field == "version" and (version := pep440(value)):
            return str(version)
    return None


def source_of_metadata(content: bytes, filename: str, name: str, version: str) -> Unbuilt | None:
    """How an sdist states its requirements; None if it states none that could be relied on: distutils alone wrote it.

    Raises:
        BadSdist: see `_read`.
    """
    info, files = _read(content, filename, name, version)
    if _is_static(info):
        return Unbuilt.STATIC
    own = set[str]()
    for path in files:
        if path.endswith((_REQUIRES, f"{_EGG_INFO}{_INFO}")):
            folder = posixpath.basename(posixpath.dirname(path))
            own.add(normalised(folder.removesuffix(_EGG_INFO)))
    # Backends other than setuptools write Requires-Dist, and no version of distutils writes 2.1.
    if name in own or declared(info) or _metadata_version(info) >= (2, 1):
        return Unbuilt.STATED
    return None


_INFO: Final = "/PKG-INFO"
_EGG_INFO: Final = ".egg-info"
_REQUIRES: Final = f"{_EGG_INFO}/requires.txt"
_RELEASE: Final = re.compile(r"^(Name|Version):[ \t]*(\S[^\r\n]*?)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
#: Deeper are those of test data; `src/name.egg-info/requires.txt` below the top folder.
_DEEPEST: Final = 3


def _read(content: bytes, filename: str, name: str, version: str) -> tuple[bytes, Mapping[str, bytes]]:
    """As `_files`.

    Raises:
        BadSdist: as `_files`, or its PKG-INFO is that of another release.
    """
    info, files = _files(content, filename)
    for field, value in _release_fields(info):
        if field == "name":
            is_same = normalised(value) == name
        else:
            read = pep440(value)
            is_same = value == version or (read is not None and read == pep440(version))
        if not is_same:
            raise BadSdist(f"the PKG-INFO of its sdist has another {field}: {value!r}")
    return info, files


def _release_fields(info: bytes) -> list[tuple[str, str]]:
    """Each `name` and `version` of a PKG-INFO."""
    head = re.split(rb"\r?\n\r?\n", info, maxsplit=1)[0].decode("utf-8", "replace")
    return [(field.lower(), value) for field, value in _RELEASE.findall(head)]


def _files(content: bytes, filename: str) -> tuple[bytes, Mapping[str, bytes]]:
    """The PKG-INFO at the top of an sdist, empty if it has none; and all files that state metadata, by their paths.

    Raises:
        BadSdist: the archive cannot be read, a path leads out of it, or its PKG-INFO is no plain file, or is there
        twice.
    """
    files: dict[str, bytes] = {}
    try:
        for path, body in _texts(content, filename):
            if path in files:
                raise BadSdist(f"its sdist contains {path!r} twice")
            files[path] = body
    except _UNREADABLE as error:
        raise BadSdist(f"its sdist cannot be read: {' '.join(str(error).split())}") from error
    tops: list[str] = []
    for path in files:
        if path.endswith(_INFO) and path.count("/") == 1:
            tops.append(path)
    if len(tops) > 1:
        raise BadSdist(f"its sdist contains {len(tops)} PKG-INFO files at its top: {', '.join(map(repr, tops))}")
    if not tops:
        return b"", files
    return files[tops[0]], files


def _metadata_version(info: bytes) -> tuple[int, int]:
    found = re.search(rb"^Metadata-Version:[ \t]*(\d{1,3})\.(\d{1,3})", info, re.MULTILINE | re.IGNORECASE)
    if found is None:
        return 0, 0
    return int(found[1]), int(found[2])


def _is_static(info: bytes) -> bool:
    """Whether the requirements of a PKG-INFO are those of every wheel that is built of it."""
    return _metadata_version(info) >= (2, 2) and not is_dynamic(info)


def _sections(text: str) -> Iterator[str]:
    """requires.txt has plain requirements first, then `[extra]` and `[extra:marker]` sections."""
    marker = ""
    for line in text.splitlines():
        section = re.fullmatch(r"\[([^\]:]*)(?::([^\]]*))?\]", line.strip())
        if section:
            parts = []
            if section[1]:
                parts.append(f"extra == '{section[1]}'")
            if section[2]:
                parts.append(f"({section[2]})")
            marker = " and ".join(parts)
        elif line.strip() and marker:
            yield f"{line.strip()} ; {marker}"
        elif line.strip():
            yield line.strip()


def _texts(content: bytes, filename: str) -> Iterator[tuple[str, bytes]]:
    if filename.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                is_file = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
                if path := _path_to_read(info.filename, info.file_size, is_file=is_file):
                    yield path, archive.read(info)
        return
    with bounded_tar(io.BytesIO(content)) as tar:
        for member in bounded_members(tar):
            is_file = member.isreg() and not member.issparse()
            path = _path_to_read(member.name, member.size, is_file=is_file)
            if path and (file := tar.extractfile(member)):
                yield path, file.read()


def _path_to_read(name: str, size_bytes: int, *, is_file: bool) -> str:
    """The path of a member that states metadata; empty for others.

    Raises:
        tarfile.TarError: the member would be put outside of its folder, is a link, or is too large.
    """
    if why := path_problem(name):
        raise tarfile.ReadError(f"it contains {name!r}, which {why}")
    path = posixpath.normpath(name)
    if not path.endswith((_INFO, _REQUIRES)) or (not is_file and path.count("/") > _DEEPEST):
        return ""
    if not is_file:
        raise tarfile.ReadError(f"it contains {name!r}, which is not a plain file")
    if size_bytes > MAX_METADATA_BYTES:
        raise tarfile.ReadError(f"{name!r} has {size_bytes} bytes, at most {MAX_METADATA_BYTES} are accepted")
    return path
