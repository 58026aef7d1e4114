"""A layer in the cache: its recipe (ranges of wheels and of a side file), and its zstd form.

In the folder of a layer's key: `<form>.json`, the recipe's head, which is written last and makes the layer valid; the
side file that it names, with the table of segments at its end; and, if it was ever needed, `<form>.zstd.json` with the
zstd file that it names. Files that no head names were left by a killed run; the next run that locks the folder removes
them. Paths are relative to the cache, so a moved cache keeps its layers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import struct
import sys
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from isal import isal_zlib
from msgspec import Struct, convert, to_builtins

from envspec.image.layers.gzip import (
    INFLATE_ERROR,
    MEMBER_END,
    MEMBER_HEAD,
    ArchiveMissing,
    Archives,
    BadArchive,
    GzipSegment,
    inflate,
)
from envspec.image.layers.threads import CHUNK_BYTES, HashingThread, cancellable
from envspec.image.layers.types import ZipMember, ZipMethod
from envspec.io.cache import DamagedCache
from envspec.io.files import is_unfinished, write_file
from envspec.models import WheelContent

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Increase it if the same entries would give other bytes, or if the files here change. Part of every file name, so two
#: releases of envspec can share a cache.
FORM: Final = 4
T = TypeVar("T")
_BUFFER: Final = 256 * 1024
_SEGMENT: Final = struct.Struct("<QQIQQQI")
_GZIP: Final = 31
#: zstd's default. In one thread: layers are packed in parallel, and zstd's own threads take 100 MB and more each.
_ZSTD_LEVEL: Final = 3


class Digest:
    """Hash, size and CRC-32 of a stream."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.crc32 = 0

    def update(self, data: bytes) -> None:
        self._hash.update(data)
        self.size_bytes += len(data)
        self.crc32 = isal_zlib.crc32(data, self.crc32)

    @property
    def sha256(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


@contextlib.contextmanager
def new_file(folder: Path, suffix: str) -> Iterator[IO[bytes]]:
    """A new file in a layer's folder; removed if the block fails. The caller flushes it before a head names it."""
    path = folder / f"{FORM}.{secrets.token_hex(8)}.{suffix}"
    try:
        with path.open("xb", buffering=_BUFFER) as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sweep(folder: Path, named: Collection[str]) -> None:
    """Remove what killed runs left, except files `named` by a head. The caller holds the folder's lock."""
    for path in folder.iterdir():
        is_ours = path.name.startswith(f"{FORM}.") and path.suffix != ".json" and path.name not in named
        if is_ours or is_unfinished(path):
            path.unlink(missing_ok=True)


class LayerHead(Struct, frozen=True):
    """A layer's metadata, readable without its side file.

    diff_id: digest of the tar. digest, crc32: of the gzip form. archives: (path, relative if inside the cache; size in
    bytes). side_bytes: of the gzip members in the side file `file`, before the table of segments.
    """

    diff_id: str
    tar_bytes: int
    digest: str
    blob_bytes: int
    crc32: int
    created_by: str
    wheels: tuple[tuple[str, WheelContent], ...]
    archives: tuple[tuple[str, int], ...]
    file: str
    side_bytes: int
    table_bytes: int
    table_crc32: int


def read_head(folder: Path) -> LayerHead | None:
    """The head; None unless it and its side file are complete."""
    try:
        head = _without_checksum(head_path(folder).read_bytes(), LayerHead)
        is_complete = (folder / head.file).stat().st_size == head.side_bytes + head.table_bytes
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return head if is_complete else None


def with_checksum(head: LayerHead | ZstdHead) -> bytes:
    """The JSON of a head, which is noticed when it changes: image IDs and blobs follow from it."""
    document = to_builtins(head)
    return json.dumps({**document, "head_crc32": zlib.crc32(json.dumps(document).encode())}).encode()


def _without_checksum(content: bytes, kind: type[T]) -> T:
    document: dict[str, Any] = json.loads(content)
    if document.pop("head_crc32") != zlib.crc32(json.dumps(document).encode()):
        raise ValueError("its checksum differs")
    return convert(document, kind)


def head_path(folder: Path) -> Path:
    return folder / f"{FORM}.json"


def segment_table(segments: Iterable[GzipSegment]) -> bytes:
    return b"".join(_SEGMENT.pack(*segment) for segment in segments)


class Recipe(Struct, frozen=True):
    """A readable layer."""

    head: LayerHead
    folder: Path
    archives: tuple[Path, ...]

    @classmethod
    def open(cls, head: LayerHead, folder: Path, cache: Path) -> Recipe:
        """Check that every archive is present.

        Raises:
            ArchiveMissing: an archive is not in the cache any more, or has another size.
        """
        paths = tuple(cache / path for path, _ in head.archives)
        for path, (_, size) in zip(paths, head.archives, strict=True):
            try:
                is_present = path.stat().st_size == size
            except OSError:
                is_present = False
            if not is_present:
                raise ArchiveMissing(path)
        return cls(head, folder, paths)

    def gzip(self, start: int = 0) -> Iterator[bytes]:
        """The gzip form from byte `start` on.

        Raises:
            DamagedCache: read from byte 0, the bytes differ from those that were written.
        """
        crc32 = 0
        with Archives() as archives:
            for chunk in _gather(self._packed(archives, start)):
                # 14 GB/s: finds damage at no cost; readers of the blob hash it anyway.
                crc32 = isal_zlib.crc32(chunk, crc32)
                yield chunk
        if not start and crc32 != self.head.crc32:
            raise self._damaged()

    def tar(self, start: int = 0) -> Iterator[bytes]:
        """The plain tar from byte `start` on.

        Raises:
            DamagedCache: the side file or an archive has changed; each part has its own CRC-32.
        """
        try:
            with Archives() as archives:
                yield from self._unpacked(archives, start)
        except (BadArchive, INFLATE_ERROR, EOFError) as error:
            raise self._damaged() from error

    def _packed(self, archives: Archives, skip: int) -> Iterator[bytes]:
        for path, offset, content, size in self._packed_parts():
            if skip < size:
                yield from archives.read(path, offset + skip, size - skip) if path else (content[skip:],)
            skip = max(0, skip - size)

    def _packed_parts(self) -> Iterator[tuple[Path | None, int, bytes, int]]:
        """(file, offset in it) or (None, 0, bytes), and the size."""
        side, offset = self.folder / self.head.file, 0
        for segment in self._segments():
            yield side, offset, b"", segment.side_bytes
            offset += segment.side_bytes
            if segment.packed_bytes:
                yield None, 0, MEMBER_HEAD, len(MEMBER_HEAD)
                yield self.archives[segment.archive], segment.offset, b"", segment.packed_bytes
                yield None, 0, MEMBER_END.pack(segment.crc32, segment.size_bytes & 0xFFFFFFFF), MEMBER_END.size

    def _unpacked(self, archives: Archives, skip: int) -> Iterator[bytes]:
        side, offset = self.folder / self.head.file, 0
        for segment in self._segments():
            parts = [(segment.side_tar_bytes, _inflate_members(archives.read(side, offset, segment.side_bytes)))]
            if segment.packed_bytes:
                member = ZipMember(self.archives[segment.archive], *segment[3:], ZipMethod.DEFLATED)
                parts.append((segment.size_bytes, inflate(member, "a file", archives)))
            for size, chunks in parts:
                if skip < size:
                    yield from _after(skip, chunks)
                skip = max(0, skip - size)
            offset += segment.side_bytes

    def _segments(self) -> Iterator[GzipSegment]:
        with (self.folder / self.head.file).open("rb") as file:
            file.seek(self.head.side_bytes)
            table = file.read()
        if isal_zlib.crc32(table) != self.head.table_crc32:
            raise self._damaged()
        return map(GzipSegment._make, _SEGMENT.iter_unpack(table))

    def _damaged(self) -> DamagedCache:
        # Without its head the layer is not valid any more, and the next run writes it again.
        head_path(self.folder).unlink(missing_ok=True)
        return DamagedCache(
            f"the layer `{self.head.created_by}` is damaged in envspec's cache: its side file or one of its archives",
            hint="run the same command again: it checks the archives and writes the layer again",
        )


def _after(skip: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if skip < len(chunk):
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _inflate_members(packed: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack gzip members; each is checked by its own CRC-32."""
    inflate = isal_zlib.decompressobj(_GZIP)
    for chunk in packed:
        rest = chunk
        while rest:
            if inflate.eof:
                inflate = isal_zlib.decompressobj(_GZIP)
            yield inflate.decompress(rest)
            rest = inflate.unused_data
    if not inflate.eof:
        raise EOFError("truncated gzip member")


def _gather(chunks: Iterable[bytes]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= CHUNK_BYTES:
            yield b"".join(gathered)
            gathered.clear()
            size = 0
    if gathered:
        yield b"".join(gathered)


class ZstdHead(Struct, frozen=True):
    """The head of the zstd form. file: name of the blob's file in the same folder."""

    digest: str
    blob_bytes: int
    file: str


def zstd_head_path(folder: Path) -> Path:
    return folder / f"{FORM}.zstd.json"


def read_zstd_head(folder: Path) -> ZstdHead | None:
    """The head; None unless it and its file are complete."""
    try:
        head = _without_checksum(zstd_head_path(folder).read_bytes(), ZstdHead)
        return head if (folder / head.file).stat().st_size == head.blob_bytes else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_zstd(recipe: Recipe, cancel: threading.Event | None = None) -> None:
    """Write the zstd form of a layer that has a recipe. Raises Cancelled."""
    digest = Digest()
    packer = zstd.ZstdCompressor(level=_ZSTD_LEVEL)
    with new_file(recipe.folder, "zst") as file:

        def write(packed: bytes) -> None:
            digest.update(packed)
            file.write(packed)

        with HashingThread(lambda data: write(packer.compress(data))) as packing:
            for chunk in cancellable(recipe.tar(), cancel or threading.Event()):
                packing.put(chunk)
        write(packer.flush())
        file.flush()
        head = ZstdHead(digest.sha256, digest.size_bytes, Path(file.name).name)
        write_file(zstd_head_path(recipe.folder), with_checksum(head))
