"""A layer's tar and its gzip form in one pass, without compressing again what wheels contain compressed.

A wheel is a zip of raw deflate streams, and a gzip file may have many members: a stream is copied unchanged into a
member of its own, with the zip's CRC and size. It is unpacked once, to hash the tar and to check the stream. Everything
between (headers, padding, small and generated files) is packed by ISA-L into members of a side file.
Sources: RFC 1951, RFC 1952; PKWARE APPNOTE 6.3.10, 4.3 and 4.4.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from isal import isal_zlib

from envspec.errors import EnvspecError
from envspec.image.layers import tar
from envspec.image.layers.types import Entry, InMemory, OnDisk, ZipMember, ZipMethod
from envspec.io.cache import DamagedCache

#: Compression method deflate, no name, no time, unknown system: the same on every machine.
MEMBER_HEAD: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
#: CRC-32 and size modulo 2^32 of the unpacked content.
MEMBER_END: Final = struct.Struct("<II")
#: What ISA-L raises for a bad stream; its annotations declare a value.
INFLATE_ERROR: Final = cast("type[Exception]", isal_zlib.error)
_RAW: Final = -15
_READ_BYTES: Final = 256 * 1024
_UNPACK_BYTES: Final = 1024 * 1024
#: Bytes per member of the side file. The window is 32 KiB, so larger members gain nothing.
_GLUE_BYTES: Final = 512 * 1024
#: ISA-L's strongest: twice the time of level 2, which is little here, for 3 % less.
_LEVEL: Final = 3
#: Members with fewer packed bytes are unpacked and packed again together: that packs better than one by one, and a
#: gzip member of its own costs 36 bytes and a turn of the loop. Of 97 MB in six wheels (transformers, pandas, scipy,
#: matplotlib, scikit-learn, numpy): 96.8 MB from 1 KiB on, 95.0 from 8, 96.2 from 32, in the same time.
MIN_COPIED_BYTES: Final = 8192


class BadArchive(EnvspecError, exit_code=5, code="bad-wheel"):
    """A wheel whose content differs from its directory, or a file that changed while it was read."""

    def __init__(self, archive: Path, why: str) -> None:
        super().__init__(f"{archive.name}: {why}", hint=f"remove {archive} and try again; no layer was written")


class ArchiveMissing(DamagedCache):
    """An archive of a layer is not in the cache any more."""

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        super().__init__(
            f"{archive} is part of a layer, but is not in the cache any more",
            hint="run the same command again: it fetches the file",
        )


class EntrySink(Protocol):
    """Receives one entry's unpacked bytes, in order and at most 1 MiB at a time; closed only if they were correct."""

    def write(self, data: bytes, /) -> object: ...

    def close(self) -> object: ...


class GzipSegment(NamedTuple):
    """A part of a layer: members of the side file, then one stream of an archive.

    side_bytes: packed bytes of the side file. side_tar_bytes: their unpacked size. archive: index among the layer's
    archives. offset, packed_bytes, size_bytes, crc32: as in `ZipMember`; all 0 if no stream follows.
    """

    side_bytes: int
    side_tar_bytes: int
    archive: int
    offset: int
    packed_bytes: int
    size_bytes: int
    crc32: int


class Archives(contextlib.ExitStack):
    """Archives, opened on first use. Leaving the context closes them."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptors: dict[Path, int] = {}

    def read(self, path: Path, offset: int, size_bytes: int) -> Iterator[bytes]:
        """Yield a range of an archive.

        Raises:
            ArchiveMissing: it does not exist. BadArchive: it is too short. OSError: it can't be read.
        """
        descriptor = self._descriptors.get(path)
        if descriptor is None:
            try:
                descriptor = self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise ArchiveMissing(path) from error
            self.callback(os.close, descriptor)
        while size_bytes:
            data = os.pread(descriptor, min(size_bytes, _READ_BYTES), offset)
            if not data:
                raise BadArchive(path, f"it ends at byte {offset}, within a file of its directory")
            yield data
            offset += len(data)
            size_bytes -= len(data)


#: Where a layer's bytes go.
Output = Callable[[bytes], object]


class GzipAssembler:
    """Writes a layer entry by entry. `segments` and `sources`, the archives by index, describe its gzip form.

    side: the side file. tar: the plain tar. blob: the gzip form.
    """

    def __init__(self, archives: Archives, side: Output, tar: Output, blob: Output) -> None:
        self._archives = archives
        self._to_side = side
        self._to_tar = tar
        self._to_blob = blob
        self._glue = bytearray()
        self._side_bytes = self._side_tar_bytes = 0
        self.segments: list[GzipSegment] = []
        self.sources: dict[Path, int] = {}

    def add(self, entry: Entry, sink: EntrySink | None = None) -> None:
        """Write one entry; its content also goes to `sink`.

        Raises:
            BadArchive: its size or checksum differs from the entry or from the zip's directory.
        """
        self._append(tar.header(entry))
        data = entry.data
        if data is None:
            return
        if isinstance(data, ZipMember) and data.method is ZipMethod.DEFLATED and data.packed_bytes >= MIN_COPIED_BYTES:
            self._copy(data, entry.path, sink)
        else:
            for chunk in read_data(data, entry.path, self._archives):
                self._append(chunk)
                if sink is not None:
                    sink.write(chunk)
        self._append(tar.padding(data.size_bytes))
        if sink is not None:
            sink.close()

    def end(self) -> None:
        """Write the end of the tar."""
        self._append(tar.END)
        self._pack()
        self.segments.append(GzipSegment(self._side_bytes, self._side_tar_bytes, 0, 0, 0, 0, 0))

    def _copy(self, member: ZipMember, path: str, sink: EntrySink | None) -> None:
        self._pack()
        self._to_blob(MEMBER_HEAD)
        for chunk in inflate(member, path, self._archives, self._to_blob):
            self._to_tar(chunk)
            if sink is not None:
                sink.write(chunk)
        self._to_blob(MEMBER_END.pack(member.crc32, member.size_bytes & 0xFFFFFFFF))
        archive = self.sources.setdefault(member.archive, len(self.sources))
        place = (archive, member.offset, member.packed_bytes, member.size_bytes, member.crc32)
        self.segments.append(GzipSegment(self._side_bytes, self._side_tar_bytes, *place))
        self._side_bytes = self._side_tar_bytes = 0

    def _append(self, data: bytes) -> None:
        self._glue += data
        # Split at fixed sizes, however the bytes were read: the same layer is the same blob.
        while len(self._glue) >= _GLUE_BYTES:
            self._emit(bytes(self._glue[:_GLUE_BYTES]))
            del self._glue[:_GLUE_BYTES]

    def _pack(self) -> None:
        if self._glue:
            self._emit(bytes(self._glue))
            self._glue.clear()

    def _emit(self, glue: bytes) -> None:
        end = MEMBER_END.pack(isal_zlib.crc32(glue), len(glue))
        packed = b"".join((MEMBER_HEAD, isal_zlib.compress(glue, _LEVEL, _RAW), end))
        self._to_tar(glue)
        self._to_side(packed)
        self._to_blob(packed)
        self._side_bytes += len(packed)
        self._side_tar_bytes += len(glue)


def read_data(data: InMemory | ZipMember | OnDisk, path: str, archives: Archives) -> Iterator[bytes]:
    """The unpacked content, checked against its zip's directory, at most 1 MiB at a time. path: for messages.

    Raises:
        BadArchive: another size or checksum, or a file that was changed since it was listed.
    """
    if isinstance(data, InMemory):
        yield data.content
    elif isinstance(data, OnDisk):
        yield from _file(data)
    elif data.method is ZipMethod.DEFLATED:
        yield from inflate(data, path, archives)
    else:
        yield from _stored(data, path, archives)


def inflate(
    member: ZipMember, path: str, archives: Archives, packed_to: Callable[[bytes], object] = lambda _: None
) -> Iterator[bytes]:
    """As `read_data`, of a deflate stream. packed_to: receives the packed bytes."""
    stream = isal_zlib.decompressobj(_RAW)
    left, crc32 = member.size_bytes, 0
    # At the end once more without input: the stream may have buffered output.
    for packed in itertools.chain(archives.read(member.archive, member.offset, member.packed_bytes), (b"",)):
        packed_to(packed)
        if packed and stream.eof:
            raise _bad(member, path, "continues after its end")
        rest = packed
        while not stream.eof:
            try:
                # One byte more than expected: reveals a longer stream, whatever its size, and costs no memory.
                data = stream.decompress(rest, min(left + 1, _UNPACK_BYTES))
            except INFLATE_ERROR as error:
                raise _bad(member, path, f"can't be unpacked ({error})") from error
            rest = stream.unconsumed_tail
            left -= len(data)
            crc32 = isal_zlib.crc32(data, crc32)
            if left < 0:
                raise _bad(member, path, "unpacks to more")
            if data:
                yield data
            if not rest and (packed or not data):
                break
    for is_damaged, what in (
        (not stream.eof, "is truncated"),
        (bool(stream.unused_data), "continues after its end"),
        (left > 0, f"unpacks to {member.size_bytes - left} bytes only"),
        (crc32 != member.crc32, f"unpacks to other bytes: CRC-32 {crc32:08x}, not {member.crc32:08x}"),
    ):
        if is_damaged:
            raise _bad(member, path, what)


def _bad(member: ZipMember, path: str, what: str) -> BadArchive:
    return BadArchive(member.archive, f"the stream of {path} {what}; its directory lists {member.size_bytes} bytes")


def _stored(member: ZipMember, path: str, archives: Archives) -> Iterator[bytes]:
    crc32 = 0
    for data in archives.read(member.archive, member.offset, member.packed_bytes):
        crc32 = isal_zlib.crc32(data, crc32)
        yield data
    if member.packed_bytes != member.size_bytes or crc32 != member.crc32:
        raise BadArchive(member.archive, f"the content of {path} differs from its directory")


def _file(data: OnDisk) -> Iterator[bytes]:
    """A file's content; its size must not have changed since it was listed, or the tar would be broken."""
    left = data.size_bytes
    with data.path.open("rb", buffering=0) as file:
        while left and (chunk := file.read(min(left, _READ_BYTES))):
            left -= len(chunk)
            yield chunk
        if left or file.read(1):
            raise BadArchive(data.path, "it changed while it was read")
