"""Layers and caches of one image build."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from envspec.context import Context, Step
from envspec.diagnostics.machine import this_platform
from envspec.errors import NetworkError
from envspec.image import outputs
from envspec.image.base import ManifestCache
from envspec.image.build import BuiltImage, ImageBuilder
from envspec.image.layers.gzip import ArchiveMissing
from envspec.image.layers.store import BlobStore, LayerStore, StreamedBlob
from envspec.image.layers.threads import cancellable
from envspec.image.layers.types import Image, Layer
from envspec.image.options import ImageOptions, ImageStage
from envspec.io.cache import as_cache_error
from envspec.io.tasks import gather_or_cancel
from envspec.models import Package
from envspec.operations.session import Session
from envspec.registry.reference import parse
from envspec.registry.types import Blob, Descriptor

_T = TypeVar("_T")


class ImageSession:
    """The build of one lock's images, with the clients and the stores that its outputs need too."""

    def __init__(self, options: ImageOptions, context: Context) -> None:
        self.options = options
        self.context = context
        self.clients = Session(context)
        self.blobs = BlobStore(context.cache)
        self.store = LayerStore(context.cache)
        self._layers: dict[str, Layer] = {}
        self._stopping = threading.Event()
        documents = ManifestCache(
            self.blobs,
            self.clients.registry,
            context.connectivity,
            lambda: context.reporter.progress(Step(ImageStage.BASE)),
        )
        self._builder = ImageBuilder(options, context, self.store, documents, this_platform(), self._built_wheels)

    async def __aenter__(self) -> ImageSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._builder.close()
        self._stopping.set()
        await self.clients.__aexit__(kind, error, trace)

    async def build(self) -> list[BuiltImage]:
        """The images of all platforms, their layers written."""
        with as_cache_error(self.context.cache):
            found = [await self._builder.build(platform) for platform in self.options.platforms]
        for each in found:
            own = each.image.layers[len(each.base.layers) :]
            self._layers.update({layer.blob.digest: layer for layer in own})
            self._cache_gpu_code(each)
        return found

    def open(self, descriptor: Descriptor) -> Blob:
        """A layer's bytes: of ours from the store, of the base's from the blobs."""
        layer = self._layers.get(descriptor.digest)
        blob = self.store.open(layer) if layer is not None else self.blobs.open(descriptor)
        return StreamedBlob(blob.descriptor, lambda start: cancellable(blob.chunks(start), self._stopping))

    async def with_wheels(self, use: Callable[[], Awaitable[_T]]) -> _T:
        """Do what reads layers; if wheels of them are not in the cache any more, fetch these and do it again.

        Raises:
            NetworkError: they can't be fetched. What `use` raises.
        """
        try:
            return await use()
        except ArchiveMissing:
            platforms = self.options.platforms
            parts = [part for part in self.options.lock.resolutions if part.target.platform in platforms]
            with as_cache_error(self.context.cache):
                await self._builder.fetch_wheels([each for part in parts for each in part.packages])
            return await use()

    def writing(self, images: Sequence[Image]) -> outputs.OnBytes:
        """Reports what is written of images; a blob that several share is written once."""
        sizes = {layer.blob.digest: layer.blob.size_bytes for image in images for layer in image.layers}
        for image in images:
            sizes |= {image.id: len(image.config), image.digest: len(image.manifest)}
        return self.clients.bytes_moved(ImageStage.WRITING, sum(sizes.values()))

    async def fetch_base_layers(self, assembled: Sequence[BuiltImage]) -> None:
        """The base's layers into the cache, for outputs that hold them.

        Raises:
            NetworkError: they can't be fetched.
        """
        from envspec.registry.pull import fetch_blob

        missing = {
            layer.blob.digest: (each.base, layer.blob)
            for each in assembled
            for layer in each.base.layers
            if not self.blobs.has(layer.blob)
        }
        if not missing:
            return
        if self.context.is_offline:
            base, _ = next(iter(missing.values()))
            raise NetworkError(
                f"{len(missing)} layers of {base.name} are not in the cache, and --offline forbids fetching them",
                hint="run once without --offline",
            )
        registry = await self.clients.registry()
        total = sum(blob.size_bytes for _, blob in missing.values())
        moved = self.clients.bytes_moved(ImageStage.BASE_LAYERS, total)
        fetched = [
            fetch_blob(registry, parse(base.name), blob, self.blobs.path(blob.digest), moved)
            for base, blob in missing.values()
        ]
        await gather_or_cancel(fetched, self.context.jobs)

    def _cache_gpu_code(self, assembled: BuiltImage) -> None:
        """Cache the GPU code of the wheels for `explain`, and compare it with what the lock records."""
        from envspec.facts.tables import load_facts
        from envspec.image.gpu_code import compare
        from envspec.io.cache import write_gpu_code

        for sha256, code in assembled.gpu_code.items():
            write_gpu_code(self.context.cache, sha256, code)
        if self.options.lock.gpu_code:
            for text in compare(self.options.lock, assembled.image.platform, assembled.gpu_code, load_facts()):
                self.context.reporter.warning(text)

    async def _built_wheels(self, packages: Sequence[Package]) -> None:
        from envspec.operations.build_wheels import Builds

        builds = Builds(self.options.lock, self.clients)
        for part in self.options.lock.resolutions:
            await builds.fetch([each for each in part.packages if each in packages], part)
