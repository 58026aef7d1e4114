"""A layer's tar and its gzip form in one pass, without compressing again what wheels contain compressed.

A wheel is a zip of raw deflate streams, and a gzip file may have many members: a stream is copied unchanged into a
member of its own, with the zip's CRC and size. It is unpacked once, to hash the tar and to check the stream. Everything
between (headers, padding, small and generated files) is packed by ISA-L into members of a side file.
Sources: RFC 1951, RFC 1952; PKWARE APPNOTE 6.3.10, 4.3 and 4.4.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, cast

from isal import isal_zlib

from envspec.errors import EnvspecError
from envspec.image.layers import tar
from envspec.image.layers.types import Entry, InMemory, OnDisk, ZipMember, ZipMethod

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


class BadArchive(EnvspecError):
    """A wheel whose content differs from its directory, or a file that changed while it was read."""

    exit_code = 5

    def __init__(self, archive: Path, why: str) -> None:
        super().__init__(f"{archive.name}: {why}", hint=f"remove {archive} and try again; no layer was written")


class ArchiveMissing(EnvspecError):
    """An archive of a layer is not in the cache any more."""

    exit_code = 5

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


class Segment(NamedTuple):
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


class Archives:
    """Archives, opened on first use. Leaving the context closes them."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self._indices: dict[Path, int] = {}

    @property
    def paths(self) -> tuple[Path, ...]:
        """Archives that have an index, in its order."""
        return tuple(self._indices)

    def index(self, path: Path) -> int:
        """The archive's number, from 0 in the order of first use."""
        return self._indices.setdefault(path, len(self._indices))

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
        while size_bytes:
            data = os.pread(descriptor, min(size_bytes, _READ_BYTES), offset)
            if not data:
                raise BadArchive(path, f"it ends at byte {offset}, within a file of its directory")
            yield data
            offset += len(data)
            size_bytes -= len(data)

    def __enter__(self) -> Archives:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class LayerOutputs(NamedTuple):
    """Where a layer's bytes go. blob: the gzip form."""

    side: Callable[[bytes], object]
    tar: Callable[[bytes], object]
    blob: Callable[[bytes], object]


class GzipAssembler:
    """Writes a layer entry by entry. `segments` then describes how to assemble its gzip form again."""

    def __init__(self, archives: Archives, outputs: LayerOutputs) -> None:
        self._archives = archives
        self._outputs = outputs
        self._glue = bytearray()
        self._side_bytes = self._side_tar_bytes = 0
        self.segments: list[Segment] = []

    def add(self, entry: Entry, sink: EntrySink | None = None) -> None:
        """Write one entry; its content also goes to `sink`.

        Raises:
            BadArchive: its size or checksum differs from the entry or from the zip's directory.
        """
        self._append(tar.header(entry))
        data = entry.data
        if data is None:
            return
        if isinstance(data, ZipMember) and _is_copied(data):
            self._copy(data, entry.path, sink)
        else:
            for chunk in _content(data, entry.path, self._archives):
                self._append(chunk)
                if sink is not None:
                    sink.write(chunk)
        self._append(tar.padding(tar.size_of(entry)))
        if sink is not None:
            sink.close()

    def end(self) -> None:
        """Write the end of the tar."""
        self._append(tar.END)
        self._pack()
        self.segments.append(Segment(self._side_bytes, self._side_tar_bytes, 0, 0, 0, 0, 0))

    def _copy(self, member: ZipMember, path: str, sink: EntrySink | None) -> None:
        self._pack()
        self._outputs.blob(MEMBER_HEAD)
        for chunk in CheckedInflate(member, path).read(self._archives, self._outputs.blob):
            self._outputs.tar(chunk)
            if sink is not None:
                sink.write(chunk)
        self._outputs.blob(MEMBER_END.pack(member.crc32, member.size_bytes & 0xFFFFFFFF))
        self.segments.append(
            Segment(
                self._side_bytes,
                self._side_tar_bytes,
                self._archives.index(member.archive),
                member.offset,
                member.packed_bytes,
                member.size_bytes,
                member.crc32,
            )
        )
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
        packed = b"".join(
            (
                MEMBER_HEAD,
                isal_zlib.compress(glue, _LEVEL, _RAW),
                MEMBER_END.pack(isal_zlib.crc32(glue), len(glue)),
            )
        )
        self._outputs.tar(glue)
        self._outputs.side(packed)
        self._outputs.blob(packed)
        self._side_bytes += len(packed)
        self._side_tar_bytes += len(glue)


def _is_copied(member: ZipMember) -> bool:
    return member.method is ZipMethod.DEFLATED and member.packed_bytes >= MIN_COPIED_BYTES


class CheckedInflate:
    """Unpacks one stream and checks it against its zip's directory. path: for messages."""

    def __init__(self, member: ZipMember, path: str) -> None:
        self._member = member
        self._path = path
        self._inflate = isal_zlib.decompressobj(_RAW)
        self._left = member.size_bytes
        self._crc32 = 0

    def read(self, archives: Archives, packed_to: Callable[[bytes], object] | None = None) -> Iterator[bytes]:
        """The unpacked content. packed_to: receives the packed bytes.

        Raises:
            BadArchive: a bad stream, or another size or CRC-32.
        """
        member = self._member
        for packed in archives.read(member.archive, member.offset, member.packed_bytes):
            if packed_to is not None:
                packed_to(packed)
            yield from self._feed(packed)
        yield from self._end()

    def _feed(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            if self._inflate.eof:
                raise self._bad("continues after its end")
            try:
                # One byte more than expected: reveals a longer stream, whatever its size, and costs no memory.
                data = self._inflate.decompress(packed, min(self._left + 1, _UNPACK_BYTES))
            except INFLATE_ERROR as error:
                raise self._bad(f"can't be unpacked ({error})") from error
            packed = self._inflate.unconsumed_tail
            if data:
                yield self._checked(data)

    def _end(self) -> Iterator[bytes]:
        while not self._inflate.eof and (data := self._inflate.decompress(b"", min(self._left + 1, _UNPACK_BYTES))):
            yield self._checked(data)
        if not self._inflate.eof:
            raise self._bad("is truncated")
        if self._inflate.unused_data:
            raise self._bad("continues after its end")
        if self._left:
            raise self._bad(f"unpacks to {self._member.size_bytes - self._left} bytes only")
        if self._crc32 != self._member.crc32:
            raise self._bad(f"unpacks to other bytes: CRC-32 {self._crc32:08x}, not {self._member.crc32:08x}")

    def _checked(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise self._bad("unpacks to more")
        self._crc32 = isal_zlib.crc32(data, self._crc32)
        return data

    def _bad(self, what: str) -> BadArchive:
        declared = f"its directory says {self._member.size_bytes} bytes"
        return BadArchive(self._member.archive, f"the stream of {self._path} {what}; {declared}")


def _content(data: InMemory | ZipMember | OnDisk, path: str, archives: Archives) -> Iterator[bytes]:
    if isinstance(data, InMemory):
        yield data.content
    elif isinstance(data, OnDisk):
        yield from _file(data)
    elif data.method is ZipMethod.DEFLATED:
        yield from CheckedInflate(data, path).read(archives)
    else:
        yield from _stored(data, path, archives)


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
