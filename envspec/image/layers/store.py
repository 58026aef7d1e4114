"""Layers and blobs in the cache.

`<cache>/image-layers/<key[:2]>/<key>/`: see `recipe`. A writer locks the layer's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from isal import isal_zlib
from msgspec import Struct

from envspec.errors import EnvspecError, NetworkError
from envspec.image.layers import recipe
from envspec.image.layers.gzip import Archives, EntrySink, GzipAssembler
from envspec.image.layers.tar import EntryCheck
from envspec.image.layers.threads import HashingThread, cancellable
from envspec.image.layers.types import Compression, Entry, Layer, LayerSource
from envspec.io.cache import DamagedCache, as_cache_error
from envspec.io.file_locks import open_folder, wait_for_lock
from envspec.io.files import write_file
from envspec.models import WheelContent
from envspec.registry.reference import is_digest
from envspec.registry.types import Blob, Descriptor, digest_of

_CHUNK_BYTES: Final = 1 << 20
_POLL_S: Final = 0.02
_KEY: Final = re.compile(r"[0-9a-f]{64}")


class EntryObserver(Protocol):
    """Inspects what is written into one layer; called for every entry with data, in order."""

    def __call__(self, entry: Entry, /) -> EntrySink | None:
        """A sink for the entry's unpacked bytes; None to skip them."""
        ...

    def found(self) -> tuple[tuple[str, WheelContent], ...]:
        """Called after the last entry: `Layer.wheels`."""
        ...


def write_layer(
    source: LayerSource,
    folder: Path,
    cache: Path,
    observer: EntryObserver | None = None,
    cancel: threading.Event | None = None,
) -> recipe.LayerHead:
    """Write the recipe. The caller holds the folder's lock.

    Raises:
        BadArchive, BadEntry: see `GzipAssembler.add` and `EntryCheck.add`. OSError: it can't be written.
    """
    tar, blob = recipe.Digest(), recipe.Digest()
    with recipe.new_file(folder, "side") as side, Archives() as archives:
        with HashingThread(tar.update) as tars, HashingThread(blob.update) as blobs:
            assembler = GzipAssembler(archives, side.write, tars.put, blobs.put)
            check = EntryCheck(source.title)
            for entry in cancellable(source.entries(), cancel or threading.Event()):
                check.add(entry)
                sink = None
                if observer and entry.data is not None:
                    sink = observer(entry)
                assembler.add(entry, sink)
            assembler.end()
        table = recipe.segment_table(assembler.segments)
        head = recipe.LayerHead(
            diff_id=tar.sha256,
            tar_bytes=tar.size_bytes,
            digest=blob.sha256,
            blob_bytes=blob.size_bytes,
            crc32=blob.crc32,
            created_by=source.title,
            wheels=observer.found() if observer else (),
            archives=tuple((_name_of(path, cache), path.stat().st_size) for path in assembler.sources),
            file=Path(side.name).name,
            side_bytes=side.tell(),
            table_bytes=len(table),
            table_crc32=isal_zlib.crc32(table),
        )
        side.write(table)
        side.flush()
        write_file(recipe.head_path(folder), recipe.with_checksum(head))
    return head


def _name_of(archive: Path, cache: Path) -> str:
    if archive.is_relative_to(cache):
        return str(archive.relative_to(cache))
    return str(archive.absolute())


class WrongBlob(NetworkError, code="wrong-digest"):
    """Bytes that do not match their digest."""


class FileBlob(Struct, frozen=True):
    """A blob in a file of its own, which may have been damaged since it was written."""

    path: Path
    descriptor: Descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes. A damaged blob that is read from byte 0 is removed and raises DamagedCache."""
        digest = hashlib.new(self.descriptor.digest.partition(":")[0])
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
                yield data
        if start == 0 and digest.hexdigest() != self.descriptor.digest.partition(":")[2]:
            raise _damaged(self.path, self.descriptor)


class BlobStore:
    """`<cache>/blobs/<algorithm>/<hex>`: documents by `write`, layers by `registry.pull`."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "blobs"

    def path(self, digest: str) -> Path:
        """The file of a blob, whether it exists or not. Raises ValueError: not a digest."""
        if not is_digest(digest):
            raise ValueError(f"not a digest: {digest!r}")
        algorithm, _, value = digest.partition(":")
        return self._folder / algorithm / value

    def has(self, descriptor: Descriptor) -> bool:
        """Compares the size only; readers check the bytes."""
        try:
            return self.path(descriptor.digest).stat().st_size == descriptor.size_bytes
        except (FileNotFoundError, NotADirectoryError):
            return False

    def open(self, descriptor: Descriptor) -> FileBlob:
        """A blob of the cache.

        Raises:
            FileNotFoundError: it is not in the cache. DamagedCache: its file has another size.
        """
        path = self.path(descriptor.digest)
        if path.stat().st_size != descriptor.size_bytes:
            raise _damaged(path, descriptor)
        return FileBlob(path, descriptor)

    def read(self, digest: str) -> bytes | None:
        """A small document; None if it is missing or damaged."""
        try:
            body = self.path(digest).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return body if digest_of(body, digest.partition(":")[0]) == digest else None

    def write(self, digest: str, body: bytes) -> None:
        """Write a small document.

        Raises:
            WrongBlob: it is not what the digest is of. CacheError: the cache can't be written.
        """
        path = self.path(digest)
        found = digest_of(body, digest.partition(":")[0])
        if found != digest:
            raise WrongBlob(
                f"the registry returned other bytes for {digest}: their hash is {found.partition(':')[2]}",
                hint="try again; if the error persists, the registry's copy is damaged",
            )
        with as_cache_error(self._folder):
            write_file(path, body)


def _damaged(path: Path, descriptor: Descriptor) -> DamagedCache:
    with contextlib.suppress(OSError):
        path.unlink()
    return DamagedCache(
        f"envspec's copy of {descriptor.digest}, {path}, was damaged after it was written",
        hint="run the same command again, and check the disk; the damaged copy was removed",
    )


class UnknownLayer(EnvspecError, code="internal"):
    """A layer that this store did not return."""


class LayerStore:
    """The layers of one cache, for any number of threads and processes."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._folder = cache / "image-layers"
        self._keys: dict[str, str] = {}

    def cached(self, key: str, compression: Compression) -> Layer | None:
        """The layer of this key, if it was written before. Its archives may be missing."""
        head = recipe.read_head(self._at(key))
        return self._layer(key, head, compression) if head else None

    def write(
        self,
        source: LayerSource,
        compression: Compression,
        observer: EntryObserver | None = None,
        cancel: threading.Event | None = None,
    ) -> Layer:
        """The cached layer; written first if necessary, by one of all threads and processes that need it.

        Raises:
            Cancelled: `cancel` was set; the unfinished layer is removed.
            BadArchive: a wheel's bytes differ from its directory. BadEntry: no layer can be as the source requires.
            CacheError: no space for it, or no permission.
        """
        if found := self.cached(source.key, compression):
            return found
        folder = self._at(source.key)
        with as_cache_error(self._folder), _locked(folder):
            if found := self.cached(source.key, compression):
                return found
            head = recipe.read_head(folder)
            if head is None:
                # A damaged recipe is removed alone: its zstd form may differ from that of the new one.
                recipe.zstd_head_path(folder).unlink(missing_ok=True)
            recipe.sweep(folder, {each.file for each in (head, recipe.read_zstd_head(folder)) if each is not None})
            if head is None:
                head = write_layer(source, folder, self._cache, observer, cancel)
            if compression is Compression.ZSTD and recipe.read_zstd_head(folder) is None:
                recipe.write_zstd(recipe.Recipe.open(head, folder, self._cache), cancel)
            layer = self._layer(source.key, head, compression)
        if layer is None:
            raise EnvspecError(
                f"{folder} was changed while the layer `{source.title}` was written",
                hint="do not change envspec's cache while it runs, and try again",
            )
        return layer

    def open(self, layer: Layer) -> Blob:
        """The bytes of a layer that this store returned.

        Raises:
            ArchiveMissing: an archive of it is not in the cache any more. Reading raises DamagedCache.
        """
        folder = self._folder_of(layer)
        if layer.blob.media_type == Compression.ZSTD.media_type:
            zstd = recipe.read_zstd_head(folder)
            if zstd is not None and zstd.digest == layer.blob.digest:
                return FileBlob(folder / zstd.file, layer.blob)
            raise self._unknown(layer)
        opened = self._recipe(layer, folder)
        is_plain = layer.blob.media_type == Compression.NONE.media_type
        return StreamedBlob(layer.blob, opened.tar if is_plain else opened.gzip)

    def tar(self, layer: Layer) -> Iterator[bytes]:
        """The layer's tar, however its blob is packed. Raises as `open`."""
        return self._recipe(layer, self._folder_of(layer)).tar()

    def _recipe(self, layer: Layer, folder: Path) -> recipe.Recipe:
        head = recipe.read_head(folder)
        if head is None or head.diff_id != layer.diff_id:
            raise self._unknown(layer)
        return recipe.Recipe.open(head, folder, self._cache)

    def _at(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not the key of a layer: {key!r}")
        return self._folder / key[:2] / key

    def _folder_of(self, layer: Layer) -> Path:
        key = self._keys.get(layer.diff_id)
        if key is None:
            raise self._unknown(layer)
        return self._at(key)

    def _unknown(self, layer: Layer) -> UnknownLayer:
        return UnknownLayer(
            f"the layer `{layer.created_by}`, {layer.diff_id}, is not in {self._folder} any more",
            hint="run the same command again, and do not change envspec's cache while it runs",
        )

    def _layer(self, key: str, head: recipe.LayerHead, compression: Compression) -> Layer | None:
        digest, size = head.digest, head.blob_bytes
        if compression is Compression.NONE:
            digest, size = head.diff_id, head.tar_bytes
        elif compression is Compression.ZSTD:
            zstd = recipe.read_zstd_head(self._at(key))
            if zstd is None:
                return None
            digest, size = zstd.digest, zstd.blob_bytes
        self._keys[head.diff_id] = key
        return Layer(head.diff_id, Descriptor(compression.media_type, digest, size), head.created_by, head.wheels)


class StreamedBlob(Struct, frozen=True):
    """A blob that is assembled while it is read. read: its bytes from an offset on."""

    descriptor: Descriptor
    read: Callable[[int], Iterator[bytes]]

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        return self.read(start)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other threads and processes."""
    descriptor = wait_for_lock(folder, lambda: open_folder(folder), _POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)
