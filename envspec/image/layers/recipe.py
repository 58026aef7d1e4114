"""A layer as ranges of wheels.

A head gets its name in one step, after all that it tells of is written. What no head tells of was left by a run that
was killed, and goes when the next one holds the folder.

In the folder of a layer's key: `<form>.json`, the head, which makes the layer known and is written last, and the side
file that it names, with the table of pieces at its end. A cache that was moved keeps its layers: paths in it are
relative.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from isal import isal_zlib

from envspec.errors import EnvspecError
from envspec.image.layers.gzip import MEMBER_END, MEMBER_HEAD, UNPACKABLE, Archives, BadArchive, Gone, Piece, Unpacking
from envspec.image.layers.threads import PIECE
from envspec.image.layers.types import Method, ZipMember
from envspec.io.files import is_unfinished
from envspec.models import GpuCodeFound

#: Changes whenever the same entries would give other bytes, or the files here have another form. Part of every name, so
#: that two releases of envspec share a cache.
FORM: Final = 1

_BUFFER: Final = 256 * 1024


@contextlib.contextmanager
def new_file(folder: Path, ending: str) -> Iterator[IO[bytes]]:
    """A file to write; it stays unless what is done with it fails. It is flushed by whoever tells of it."""
    path = folder / f"{FORM}.{secrets.token_hex(8)}.{ending}"
    try:
        with path.open("xb", buffering=_BUFFER) as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def sweep(folder: Path, named: Collection[str]) -> None:
    """Remove what killed runs left. named: files that a head tells of. The folder is held by the caller."""
    for path in folder.iterdir():
        is_ours = path.name.startswith(f"{FORM}.") and path.suffix != ".json" and path.name not in named
        if is_ours or is_unfinished(path):
            path.unlink(missing_ok=True)


_PIECE: Final = struct.Struct("<QQIQQQI")
_MEMBER_BYTES: Final = len(MEMBER_HEAD) + MEMBER_END.size
_GZIP: Final = 31


class Damaged(EnvspecError):
    """A layer that comes out of the cache with other bytes than it went in."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a layer without reading its side file.

    diff_id, digest: of the tar, and of its gzip form, whose CRC-32 is crc32. archives: path (relative to the cache
    where it is in it) and size in bytes. file: the side file's name. side_bytes: of its members, before the table
    of pieces.
    """

    diff_id: str
    tar_bytes: int
    digest: str
    blob_bytes: int
    crc32: int
    created_by: str
    found: tuple[tuple[str, GpuCodeFound], ...]
    archives: tuple[tuple[str, int], ...]
    file: str
    side_bytes: int
    table_bytes: int
    table_crc32: int

    def written(self) -> bytes:
        document = {name: getattr(self, name) for name in self.__slots__}
        document["found"] = [(wheel, code.sm, code.ptx) for wheel, code in self.found]
        return json.dumps(document).encode()


def read_head(path: Path) -> Head | None:
    """A head, if it is whole and the side file beside it as well."""
    try:
        document = json.loads(path.read_bytes())
        document["found"] = tuple((wheel, GpuCodeFound(tuple(sm), tuple(ptx))) for wheel, sm, ptx in document["found"])
        document["archives"] = tuple((archive, size) for archive, size in document["archives"])
        head = Head(**document)
        whole = (path.parent / head.file).stat().st_size == head.side_bytes + head.table_bytes
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return head if whole else None


def head_path(folder: Path) -> Path:
    """Where the head of the layer is whose folder this is."""
    return folder / f"{FORM}.json"


def table_of(pieces: Iterable[Piece]) -> bytes:
    return b"".join(_PIECE.pack(*piece) for piece in pieces)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A layer that can be read. Opening it looks whether all is there that it is made of.

    Raises:
        Gone: an archive is not in the cache any more, or has another size.
    """

    head: Head
    folder: Path
    archives: tuple[Path, ...]

    @classmethod
    def opened(cls, head: Head, folder: Path, cache: Path) -> Recipe:
        paths = tuple(cache / path for path, _ in head.archives)
        for path, (_, size) in zip(paths, head.archives, strict=True):
            try:
                there = path.stat().st_size == size
            except OSError:
                there = False
            if not there:
                raise Gone(path)
        return cls(head, folder, paths)

    def gzip(self, start: int = 0) -> Iterator[bytes]:
        """The gzip form from byte `start` on.

        Raises:
            Damaged: it was read from its start, and is not what was made once.
        """
        crc32 = 0
        with Archives() as archives:
            for chunk in _gathered(self._stretches(archives, start)):
                # 14 GB/s: damage is found at no cost; whoever takes the blob hashes it anyway.
                crc32 = isal_zlib.crc32(chunk, crc32)
                yield chunk
        if not start and crc32 != self.head.crc32:
            raise self._damaged()

    def tar(self, start: int = 0) -> Iterator[bytes]:
        """The plain tar from byte `start` on.

        Raises:
            Damaged: what it is made of is not what it was; each part of it has its own CRC-32.
        """
        try:
            with Archives() as archives:
                yield from _from(self._unpacked(archives, start))
        except (BadArchive, UNPACKABLE, EOFError) as fault:
            raise self._damaged() from fault

    def _stretches(self, archives: Archives, start: int) -> Iterator[bytes]:
        side, at, skip = self.folder / self.head.file, 0, start
        for piece in self._pieces():
            if skip < piece.side_bytes:
                yield from archives.read(side, at + skip, piece.side_bytes - skip)
            skip = max(0, skip - piece.side_bytes)
            at += piece.side_bytes
            if not piece.packed_bytes:
                continue
            if skip >= piece.packed_bytes + _MEMBER_BYTES:
                skip -= piece.packed_bytes + _MEMBER_BYTES
                continue
            yield MEMBER_HEAD[skip:]
            skip = max(0, skip - len(MEMBER_HEAD))
            if skip < piece.packed_bytes:
                path = self.archives[piece.archive]
                yield from archives.read(path, piece.offset + skip, piece.packed_bytes - skip)
            skip = max(0, skip - piece.packed_bytes)
            yield MEMBER_END.pack(piece.crc32, piece.size_bytes & 0xFFFFFFFF)[skip:]
            skip = 0

    def _unpacked(self, archives: Archives, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Each stretch of the tar that is not wholly before `start`: how much of it to leave out, and its bytes."""
        side, at, skip = self.folder / self.head.file, 0, start
        for piece in self._pieces():
            if skip < piece.side_tar_bytes:
                yield skip, _members(archives.read(side, at, piece.side_bytes))
            skip = max(0, skip - piece.side_tar_bytes)
            at += piece.side_bytes
            if not piece.packed_bytes:
                continue
            if skip < piece.size_bytes:
                yield skip, self._member(archives, piece)
            skip = max(0, skip - piece.size_bytes)

    def _member(self, archives: Archives, piece: Piece) -> Iterator[bytes]:
        path = self.archives[piece.archive]
        unpacking = Unpacking(
            ZipMember(path, piece.offset, piece.packed_bytes, piece.size_bytes, piece.crc32, Method.DEFLATED), "a file"
        )
        for packed in archives.read(path, piece.offset, piece.packed_bytes):
            yield from unpacking.feed(packed)
        yield from unpacking.end()

    def _pieces(self) -> Iterator[Piece]:
        with (self.folder / self.head.file).open("rb") as file:
            file.seek(self.head.side_bytes)
            table = file.read()
        if isal_zlib.crc32(table) != self.head.table_crc32:
            raise self._damaged()
        return map(Piece._make, _PIECE.iter_unpack(table))

    def _damaged(self) -> Damaged:
        # Without its head the layer is not known any more, and the next run makes it again.
        head_path(self.folder).unlink(missing_ok=True)
        return Damaged(
            f"the layer `{self.head.created_by}` is damaged in envspec's cache: its side file or one of its archives",
            hint="run the same command again: the archives are checked, and the layer is made again",
        )


def _from(stretches: Iterable[tuple[int, Iterator[bytes]]]) -> Iterator[bytes]:
    for left_out, chunks in stretches:
        skip = left_out
        for chunk in chunks:
            if skip < len(chunk):
                yield chunk[skip:]
            skip = max(0, skip - len(chunk))


def _members(packed: Iterable[bytes]) -> Iterator[bytes]:
    """What gzip members unpack to, each checked by its own CRC-32."""
    rest = b""
    inflate = isal_zlib.decompressobj(_GZIP)
    for chunk in packed:
        rest = chunk
        while rest:
            if inflate.eof:
                inflate = isal_zlib.decompressobj(_GZIP)
            yield inflate.decompress(rest)
            rest = inflate.unused_data
    if not inflate.eof:
        raise EOFError("a gzip member breaks off")


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that are worth a call to whoever takes them."""
    gathered: list[bytes] = []
    size = 0
    for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= PIECE:
            yield b"".join(gathered) if len(gathered) > 1 else chunk
            gathered.clear()
            size = 0
    if gathered:
        yield b"".join(gathered)
