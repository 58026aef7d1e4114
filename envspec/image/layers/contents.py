"""What a layer of a base image contains of certain files, read as its bytes arrive; nothing is unpacked.

Layers come from whoever made the base: their size when unpacked, the number of their entries, and each file that is
kept are bounded. Sources: OCI image specification 1.1, `layer.md` (whiteouts, opaque folders); POSIX.1-2017, `pax`.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import IO, Any, Final, NamedTuple, cast

from isal import igzip
from msgspec import Struct

from envspec.image.layers.gzip import INFLATE_ERROR
from envspec.io.archives import MAX_METADATA_BYTES, max_unpacked_bytes, parents_of
from envspec.names import WHITEOUT

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Of one layer. The largest published ones have a few 100,000 entries.
_MOST_ENTRIES: Final = 5_000_000
#: Of what is kept of one layer, in characters: the METADATA of 300 packages has 5 million.
_MOST_KEPT: Final = 256 << 20
#: Extended headers are read whole by tarfile, whatever size they state.
_MOST_AT_ONCE: Final = 4 << 20
_PIECE_BYTES: Final = 1 << 20
_OPAQUE: Final = f"{WHITEOUT}{WHITEOUT}.opq"

_UNREADABLE: Final = (
    *(tarfile.TarError, EOFError, gzip.BadGzipFile, INFLATE_ERROR, zlib.error, zstd.ZstdError),
    *(ValueError, OverflowError),
)

FILE, LINK, FOLDER = "file", "link", "folder"
#: What is kept of a file, from its bytes.
Extract = Callable[[Iterable[bytes]], str]


class BadLayer(ValueError):
    """A layer that can't be read, or is larger than any real one."""


class Kept(NamedTuple):
    """An entry. kind: FILE, LINK or FOLDER. value: what is kept of a file; a link's target."""

    kind: str
    value: str = ""


class Pattern(Struct, frozen=True):
    """Entries to keep. paths: of the whole path. of_file: what of a file; None: that it exists. links, folders: whether
    these are kept too.
    """

    paths: re.Pattern[str]
    of_file: Extract | None = None
    links: bool = True
    folders: bool = False


class LayerContents(Struct):
    """entries: by path. removed: paths of lower layers. emptied: folders of which nothing of lower layers is left."""

    entries: dict[str, Kept]
    removed: list[str]
    emptied: list[str]


def read_layer(
    packed: Iterable[bytes],
    packed_bytes: int,
    patterns: Sequence[Pattern],
    unpacked: Callable[[bytes], object] = lambda _: None,
) -> LayerContents:
    """What a layer contains of the patterns' entries.

    packed: all of its blob: gzip, zstd or a plain tar.
    unpacked: called with each piece of the tar, in order.

    Raises:
        BadLayer: it can't be read, or is larger than any real one.
    """
    found = LayerContents({}, [], [])
    try:
        file = _Unpacked(_passed(_unpacked(packed), unpacked), max_unpacked_bytes(packed_bytes))
        # An empty layer may be an empty file.
        if file.is_empty():
            return found
        with tarfile.open(fileobj=cast("IO[bytes]", file), mode="r:", errorlevel=0) as tar:
            _read_entries(tar, file, patterns, found)
        # The blob's digest is over all of it.
        while file.read(_PIECE_BYTES):
            pass
    except _UNREADABLE as error:
        raise BadLayer(" ".join(str(error).split()) or type(error).__name__) from error
    return found


def _read_entries(tar: tarfile.TarFile, file: _Unpacked, patterns: Sequence[Pattern], found: LayerContents) -> None:
    kept = 0
    for number in range(_MOST_ENTRIES + 1):
        if (info := tar.next()) is None:
            return
        # tarfile keeps every entry; the list that `getmembers` would return is no part of its stubs.
        vars(tar)["members"].clear()
        path = posixpath.normpath(f"/{info.name}").lstrip("/")
        if number == _MOST_ENTRIES or len(path) > 4096:
            raise BadLayer(f"it has more than {_MOST_ENTRIES} entries, or longer paths than any system")
        folder, _, name = path.rpartition("/")
        if name.startswith(WHITEOUT):
            if name == _OPAQUE:
                found.emptied.append(folder)
            else:
                found.removed.append(f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
            kept += len(path)
        elif path.isprintable() and (entry := _entry(info, path, file, patterns, found)) is not None:
            found.entries[path] = entry
            kept += len(path) + len(entry.value)
        if kept > _MOST_KEPT:
            raise BadLayer(f"its metadata of packages has more than {_MOST_KEPT} characters")


def _entry(
    info: tarfile.TarInfo, path: str, file: _Unpacked, patterns: Sequence[Pattern], found: LayerContents
) -> Kept | None:
    pattern = next((each for each in patterns if each.paths.fullmatch(path)), None)
    if pattern is None:
        return None
    if info.issym():
        return Kept(LINK, info.linkname) if pattern.links and len(info.linkname) <= 4096 else None
    if info.isdir():
        return Kept(FOLDER) if pattern.folders else None
    if info.islnk():
        return found.entries.get(posixpath.normpath(f"/{info.linkname}").lstrip("/"))
    if not info.isreg() or info.issparse():
        return None
    if pattern.of_file is None:
        return Kept(FILE)
    file.seek(info.offset_data)
    try:
        return Kept(FILE, pattern.of_file(file.pieces(info.size)))
    except BadLayer as error:
        raise BadLayer(f"{path}: {error}") from error


def text(pieces: Iterable[bytes]) -> str:
    """The text of a small file; raises BadLayer for one that is larger than any METADATA."""
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        if (size := size + len(piece)) > MAX_METADATA_BYTES:
            raise BadLayer(f"it has more than {MAX_METADATA_BYTES} bytes")
    return b"".join(parts).decode("utf-8", "replace")


def merged(layers: Iterable[LayerContents]) -> dict[str, Kept]:
    """The entries of an image. layers: the lowest first."""
    found: dict[str, Kept] = {}
    for layer in layers:
        removed, emptied = set(layer.removed), set(layer.emptied)
        # A file hides the folder that a lower layer has there.
        over = removed | {path for path, entry in layer.entries.items() if entry.kind != FOLDER}
        if "" in emptied:
            found = {}
        elif over or emptied:
            hidden = over | emptied
            found = {path: entry for path, entry in found.items() if not _is_hidden(path, removed, hidden)}
        found.update(layer.entries)
    return found


def _is_hidden(path: str, removed: Collection[str], hidden_folders: Collection[str]) -> bool:
    """Whether a layer removes a path of the layers below it, or a folder above the path."""
    return path in removed or any(folder in hidden_folders for folder in parents_of(path))


class Chunks(io.RawIOBase):
    """Chunks of bytes as a stream."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = 0
        while size < len(buffer):
            self._rest = self._rest or memoryview(next(self._chunks, b""))
            if not self._rest:
                break
            part = self._rest[: len(buffer) - size]
            buffer[size : size + len(part)] = part
            self._rest = self._rest[len(part) :]
            size += len(part)
        return size


def _unpacked(packed: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of the tar, in pieces of bounded size."""
    file = io.BufferedReader(Chunks(packed), _PIECE_BYTES)
    head = file.peek(4)
    plain: Any = file
    if head.startswith(b"\x1f\x8b"):
        plain = igzip.IGzipFile(fileobj=file, mode="rb")  # type: ignore[no-untyped-call]
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        plain = zstd.ZstdFile(file)
    return iter(partial(plain.read, _PIECE_BYTES), b"")


def _passed(pieces: Iterable[bytes], to: Callable[[bytes], object]) -> Iterator[bytes]:
    for piece in pieces:
        to(piece)
        yield piece


class _Unpacked:
    """A tar that is read forwards only."""

    def __init__(self, pieces: Iterator[bytes], most: int) -> None:
        self._pieces, self._most = pieces, most
        self._piece, self._used, self._at = b"", 0, 0
        self._read = 0

    def is_empty(self) -> bool:
        return not self._fill()

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> int:
        if offset < self._at:
            raise tarfile.ReadError("an entry has a negative size")
        while self._at < offset and self._fill():
            self._take(offset - self._at)
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header has {size} bytes, at most {_MOST_AT_ONCE} are accepted")
        found = b""
        while len(found) < size and self._fill():
            found += self._take(size - len(found))
        return found

    def pieces(self, size: int) -> Iterator[bytes]:
        """The next bytes of a file."""
        end = self._at + size
        while self._at < end:
            if not self._fill():
                raise tarfile.ReadError("it ends early")
            yield self._take(end - self._at)

    def _take(self, size: int) -> bytes:
        """The next bytes, at most `size`."""
        found = self._piece[self._used : self._used + size]
        self._used += len(found)
        self._at += len(found)
        return found

    def _fill(self) -> bool:
        """Whether there is another byte."""
        while self._used == len(self._piece):
            if (piece := next(self._pieces, None)) is None:
                return False
            self._piece, self._used = piece, 0
            self._read += len(piece)
            if self._read > self._most:
                raise tarfile.ReadError(f"it unpacks to more than {self._most} bytes, which is a bomb")
        return True
