"""Layers and blobs in the cache.

`<cache>/image-layers/<key[:2]>/<key>/`: a layer is known when its head is there, which gets its name in one step after
all that it tells of. Whoever makes a layer holds its folder; a run that was killed leaves a file that the next one to
hold the folder removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from isal import isal_zlib

from envspec.errors import EnvspecError, NetworkError
from envspec.image.layers import zstd as zstd_form
from envspec.image.layers.gzip import Archives, Sink, Splicer, Ways
from envspec.image.layers.recipe import Head, Recipe, head_path, new_file, read_head, sweep, table_of
from envspec.image.layers.tar import Listing
from envspec.image.layers.threads import Conveyor, Lane
from envspec.image.layers.types import Compression, Entry, Layer, Source
from envspec.io.cache import as_cache_error
from envspec.io.file_locks import open_folder, wait_for_lock
from envspec.io.files import write_file
from envspec.models import GpuCodeFound
from envspec.registry.reference import is_digest
from envspec.registry.types import Blob, Descriptor


class Watch(Protocol):
    """Looks at what goes into one layer. It is asked for every entry that has data, in order."""

    def __call__(self, entry: Entry, /) -> Sink | None:
        """What takes the entry's unpacked bytes, if they are of interest."""
        ...

    def found(self) -> tuple[tuple[str, GpuCodeFound], ...]:
        """Asked once all is written: `Layer.found`."""
        ...


class _Tally:
    """Hash, size and CRC-32 of a stream."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.crc32 = 0

    def take(self, data: bytes) -> None:
        self._hash.update(data)
        self.size_bytes += len(data)
        self.crc32 = isal_zlib.crc32(data, self.crc32)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def make(source: Source, folder: Path, cache: Path, compression: Compression, watch: Watch | None) -> Head:
    """Write the recipe, and the zstd form where it is asked for; the folder is held by the caller.

    Raises:
        BadArchive, BadEntry: see `Splicer.add` and `Listing.add`. OSError: it can't be written.
    """
    tar, blob = _Tally(), _Tally()
    with contextlib.ExitStack() as stack:
        side = stack.enter_context(new_file(folder, "side"))
        zstd = stack.enter_context(zstd_form.packing(folder)) if compression is Compression.ZSTD else None
        archives = stack.enter_context(Archives())
        with Conveyor() as hashing, Conveyor() as packing:
            to_tar = hashing.lane(tar.take)
            to_blob = hashing.lane(blob.take)
            tars = (to_tar,) if zstd is None else (to_tar, packing.lane(zstd.write))
            splicer = Splicer(archives, Ways(side.write, _all(tars), to_blob.put))
            listing = Listing(source.title)
            for entry in source.entries():
                listing.add(entry)
                splicer.add(entry, None if watch is None or entry.data is None else watch(entry))
            splicer.end()
        table = table_of(splicer.pieces)
        head = Head(
            diff_id=tar.digest,
            tar_bytes=tar.size_bytes,
            digest=blob.digest,
            blob_bytes=blob.size_bytes,
            crc32=blob.crc32,
            created_by=source.title,
            found=() if watch is None else watch.found(),
            archives=tuple((_relative(path, cache), path.stat().st_size) for path in archives.paths),
            file=Path(side.name).name,
            side_bytes=side.tell(),
            table_bytes=len(table),
            table_crc32=isal_zlib.crc32(table),
        )
        side.write(table)
        side.flush()
        if zstd is not None:
            zstd.keep()
        write_file(head_path(folder), head.written())
    return head


def _all(lanes: Sequence[Lane]) -> Callable[[bytes], object]:
    if len(lanes) == 1:
        return lanes[0].put

    def put(data: bytes) -> None:
        for lane in lanes:
            lane.put(data)

    return put


def _relative(path: Path, cache: Path) -> str:
    """As a head tells of an archive: a cache that is moved, or mounted elsewhere, keeps its layers."""
    return str(path.relative_to(cache) if path.is_relative_to(cache) else path.absolute())


_CHUNK: Final = 1 << 20


class WrongBlob(NetworkError):
    """Bytes that are not those of the digest."""


@dataclass(frozen=True, slots=True)
class FileBlob:
    """A blob that is a file of its own. It may have changed since it was written: disks fail, people write there."""

    path: Path
    descriptor: Descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes. Those of a damaged blob end in WrongBlob where they are read from the beginning; it is removed."""
        seen = hashlib.new(self.descriptor.digest.partition(":")[0])
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while data := file.read(_CHUNK):
                seen.update(data)
                yield data
        if start == 0 and seen.hexdigest() != self.descriptor.digest.partition(":")[2]:
            raise _damaged(self.path, self.descriptor)


class BlobStore:
    """`<cache>/blobs/<algorithm>/<hex>`: documents by `keep`, layers where `registry.pull` puts them."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "blobs"

    def path(self, digest: str) -> Path:
        """Where the blob is, or would be.

        Raises:
            ValueError: not a digest.
        """
        if not is_digest(digest):
            raise ValueError(f"not a digest: {digest!r}")
        algorithm, _, value = digest.partition(":")
        return self._folder / algorithm / value

    def has(self, descriptor: Descriptor) -> bool:
        """Whether it is here, by its size: its bytes are looked at when they are read."""
        try:
            return self.path(descriptor.digest).stat().st_size == descriptor.size_bytes
        except (FileNotFoundError, NotADirectoryError):
            return False

    def open(self, descriptor: Descriptor) -> FileBlob:
        """The blob. Reading it from its beginning raises WrongBlob where it is damaged.

        Raises:
            FileNotFoundError: it is not here. WrongBlob: its file has another size.
        """
        path = self.path(descriptor.digest)
        if path.stat().st_size != descriptor.size_bytes:
            raise _damaged(path, descriptor)
        return FileBlob(path, descriptor)

    def read(self, digest: str) -> bytes | None:
        """A small document, checked; None where it is not here, or damaged: then it is to be fetched again."""
        try:
            body = self.path(digest).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return body if _hex_of(digest, body) == digest.partition(":")[2] else None

    def keep(self, digest: str, body: bytes) -> None:
        """Keep a small document.

        Raises:
            WrongBlob: it is not what the digest is of. CacheError: the cache can't be written.
        """
        path = self.path(digest)
        found = _hex_of(digest, body)
        if found != path.name:
            raise WrongBlob(
                f"the bytes under {digest} are others: their hash is {found}",
                hint="nothing of it was kept; try again, and if it stays so the registry's copy is damaged",
            )
        with as_cache_error(self._folder):
            write_file(path, body)


def _damaged(path: Path, descriptor: Descriptor) -> WrongBlob:
    """A blob that is not what it was when it was written; without it the next run fetches or makes it again."""
    with contextlib.suppress(OSError):
        path.unlink()
    return WrongBlob(
        f"envspec's copy of {descriptor.digest}, {path}, was damaged after it had been written",
        hint="it is removed; run the same command again, and look after the disk",
    )


def _hex_of(digest: str, body: bytes) -> str:
    return hashlib.new(digest.partition(":")[0], body).hexdigest()


_WAIT_S: Final = 0.02
_KEY: Final = re.compile(r"[0-9a-f]{64}")


class NotOurs(EnvspecError):
    """A layer that this store did not give."""


class LayerStore:
    """The layers in one cache, for any number of threads and processes at once."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._folder = cache / "image-layers"
        self._keys: dict[str, str] = {}

    def known(self, key: str, compression: Compression) -> Layer | None:
        """The layer of this key, if it was made before. Its archives need not be there."""
        folder = self._at(key)
        head = read_head(head_path(folder))
        if head is None:
            return None
        return self._layer(key, head, compression)

    def make(self, source: Source, compression: Compression, watch: Watch | None = None) -> Layer:
        """The layer: the known one, else made now, by one of all who ask for it.

        Raises:
            BadArchive: a wheel's bytes are not what its directory says. BadEntry: no layer can be as the source says.
            CacheError: no space for it, or no permission.
        """
        found = self.known(source.key, compression)
        if found is not None:
            return found
        folder = self._at(source.key)
        with as_cache_error(self._folder), _locked(folder):
            found = self.known(source.key, compression)
            if found is not None:
                return found
            head = read_head(head_path(folder))
            if head is None:
                # A form without its recipe: of a run that was killed between the two.
                zstd_form.head_path(folder).unlink(missing_ok=True)
            zstd = zstd_form.read(folder)
            sweep(folder, {kept.file for kept in (head, zstd) if kept is not None})
            if head is None:
                head = make(source, folder, self._cache, compression, watch)
            elif compression is Compression.ZSTD:
                zstd_form.pack(folder, Recipe.opened(head, folder, self._cache).tar())
            layer = self._layer(source.key, head, compression)
        if layer is None:
            raise EnvspecError(
                f"{folder} changed while the layer `{source.title}` was made",
                hint="leave envspec's cache alone while it runs, and try again",
            )
        return layer

    def open(self, layer: Layer) -> Blob:
        """The bytes of a layer that `known` or `make` of this store gave.

        Raises:
            Gone: an archive that it is made of is not in the cache any more. Reading raises Damaged.
        """
        folder = self._folder_of(layer)
        if layer.blob.media_type == Compression.ZSTD.media_type:
            kept = zstd_form.read(folder)
            if kept is not None and kept.digest == layer.blob.digest:
                return FileBlob(folder / kept.file, layer.blob)
            raise self._not_ours(layer)
        recipe = self._recipe(layer, folder)
        is_plain = layer.blob.media_type == Compression.NONE.media_type
        return _RecipeBlob(layer.blob, recipe.tar if is_plain else recipe.gzip)

    def tar(self, layer: Layer) -> Iterator[bytes]:
        """The layer's tar, whatever its blob is packed by. Raises as `open`."""
        return self._recipe(layer, self._folder_of(layer)).tar()

    def _recipe(self, layer: Layer, folder: Path) -> Recipe:
        head = read_head(head_path(folder))
        if head is None or head.diff_id != layer.diff_id:
            raise self._not_ours(layer)
        return Recipe.opened(head, folder, self._cache)

    def _at(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not the key of a layer: {key!r}")
        return self._folder / key[:2] / key

    def _folder_of(self, layer: Layer) -> Path:
        key = self._keys.get(layer.diff_id)
        if key is None:
            raise self._not_ours(layer)
        return self._at(key)

    def _not_ours(self, layer: Layer) -> NotOurs:
        return NotOurs(
            f"the layer `{layer.created_by}`, {layer.diff_id}, is not in {self._folder} any more",
            hint="run the same command again, and leave envspec's cache alone while it runs",
        )

    def _layer(self, key: str, head: Head, compression: Compression) -> Layer | None:
        digest, size = head.digest, head.blob_bytes
        if compression is Compression.NONE:
            digest, size = head.diff_id, head.tar_bytes
        elif compression is Compression.ZSTD:
            kept = zstd_form.read(self._at(key))
            if kept is None:
                return None
            digest, size = kept.digest, kept.blob_bytes
        self._keys[head.diff_id] = key
        return Layer(head.diff_id, Descriptor(compression.media_type, digest, size), head.created_by, head.found)


@dataclass(frozen=True, slots=True)
class _RecipeBlob:
    """A blob that is put together while it is read."""

    descriptor: Descriptor
    read: Callable[[int], Iterator[bytes]]

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        return self.read(start)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other threads and processes."""
    descriptor = wait_for_lock(folder, lambda: open_folder(folder), _WAIT_S)
    try:
        yield
    finally:
        os.close(descriptor)
