"""Layers that were made once. A gzip layer is kept as a recipe, not as a second copy of its wheels.

`<cache>/image-layers/<key[:2]>/<key>/`: a layer is known when its head is there, which gets its name in one step after
all that it tells of. Whoever makes a layer holds its folder; a run that was killed leaves a file that the next one to
hold the folder removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.effects.cache import keeping
from envspec.effects.held import try_hold
from envspec.errors import EnvspecError
from envspec.image import zstd_form
from envspec.image.blobs import FileBlob
from envspec.image.content import Source
from envspec.image.kept import sweep
from envspec.image.layer import Compression, Layer
from envspec.image.making import Watch, make
from envspec.image.recipe import Head, Recipe, head_path, read_head
from envspec.registry.blob import Blob, Descriptor

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
            CannotKeep: no space for it, or no permission.
        """
        found = self.known(source.key, compression)
        if found is not None:
            return found
        folder = self._at(source.key)
        with keeping(self._folder), _held(folder):
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
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder against other threads and processes; the system lets go when this one is killed."""
    while (descriptor := try_hold(folder, lambda: _opened(folder))) is None:
        time.sleep(_WAIT_S)
    try:
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
