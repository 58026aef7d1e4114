"""Fetching, layers and caches of one image build."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from envspec.diagnostics.machine import this_platform
from envspec.errors import NetworkError
from envspec.fetch.types import Count, Fetching, Network, OnFetched, Step, ignore_fetched
from envspec.fetch.wheels import fetch_wheels
from envspec.image import outputs
from envspec.image.base import KeptDocuments
from envspec.image.build import Assembled, Assembler, Below, Foundation, Supplies
from envspec.image.config import Base
from envspec.image.layers.gzip import Gone
from envspec.image.layers.store import BlobStore, LayerStore
from envspec.image.layers.threads import StoppableBlob
from envspec.image.layers.types import Compression, Image, Layer, Source
from envspec.image.options import ImageOrder, ImageWorld, Stage
from envspec.image.sources.bytecode import Pyc
from envspec.image.sources.system import SystemOrder, SystemSource, World, make_system_layer
from envspec.io.cache import as_cache_error
from envspec.io.http_settings import timeouts as patience_of
from envspec.io.http_types import Timeouts
from envspec.io.tasks import gather_or_cancel
from envspec.models import Package, Platform, Resolution, SystemLayer
from envspec.operations.session import Doors
from envspec.registry.reference import parse
from envspec.registry.types import Blob, Descriptor

if TYPE_CHECKING:
    from envspec.image.base_layers import PythonParts


_T = TypeVar("_T")


class ImageWork(Doors):
    """The work on the images of one order."""

    def __init__(self, order: ImageOrder, world: ImageWorld) -> None:
        super().__init__(world, order.jobs)
        self.order = order
        self.blobs = BlobStore(world.cache)
        self.store = LayerStore(world.cache)
        self._layers: dict[str, Layer] = {}
        self._stopping = threading.Event()
        self._stack.callback(self._stopping.set)
        self._parts: PythonParts | None = None

    async def assemble(self) -> list[Assembled]:
        """The images of all platforms, their layers made."""
        supplies = Supplies(
            documents=KeptDocuments(self.blobs, self.registry, self.order.network, self._asking),
            wheels=self._wheels,
            below=self._below,
            system=self._system,
            compiler=self._compiler,
        )
        assembler = Assembler(self.order, self.world.cache, self.store, supplies, self.world.report)
        with as_cache_error(self.world.cache):
            found = [await assembler.assemble(platform) for platform in self.order.platforms]
        for each in found:
            own = each.image.layers[len(each.base.layers) :]
            self._layers.update({layer.blob.digest: layer for layer in own})
            self._look_at_gpu_code(each)
        return found

    def open(self, descriptor: Descriptor) -> Blob:
        """A layer's bytes: of ours from the store, of the base's from the blobs."""
        layer = self._layers.get(descriptor.digest)
        blob = self.store.open(layer) if layer is not None else self.blobs.open(descriptor)
        return StoppableBlob(blob, self._stopping)

    async def with_wheels(self, use: Callable[[], Awaitable[_T]]) -> _T:
        """Do what reads layers; where wheels that they are made of have left the cache, fetch these and do it again.

        Raises:
            NetworkError: they are not to be had. What `use` raises.
        """
        try:
            return await use()
        except Gone:
            platforms = self.order.platforms
            parts = [part for part in self.order.lock.resolutions if part.target.platform in platforms]
            with as_cache_error(self.world.cache):
                await self._wheels([each for part in parts for each in part.packages])
            return await use()

    def writing(self, images: Sequence[Image]) -> outputs.Moved:
        """Reports what is written of images."""
        return self.counted(Stage.WRITING, sum(size for _, size in _blobs_of(images)))

    async def fetch_base_layers(self, assembled: Sequence[Assembled]) -> None:
        """The base's layers into the cache, for outputs that hold them.

        Raises:
            NetworkError: they are not to be had.
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
        if self.order.network is Network.OFFLINE:
            base, _ = next(iter(missing.values()))
            raise NetworkError(
                f"{len(missing)} layers of {base.name} are not in the cache, and --offline forbids fetching them",
                hint="run once without --offline",
            )
        registry = await self.registry()
        moved = self.counted(Stage.BASE_LAYERS, sum(blob.size_bytes for _, blob in missing.values()))
        fetched = [
            fetch_blob(registry, parse(base.name), blob, self.blobs.path(blob.digest), moved)
            for base, blob in missing.values()
        ]
        await gather_or_cancel(fetched, self.order.jobs)

    def _look_at_gpu_code(self, assembled: Assembled) -> None:
        """Keep what the wheels hold for `explain`, and compare it with what the lock has of it."""
        from envspec.facts.tables import load_facts
        from envspec.image.gpu_code import compare
        from envspec.io.cache import write_gpu_code

        for sha256, code in assembled.found.items():
            write_gpu_code(self.world.cache, sha256, code)
        if self.order.lock.gpu_code:
            for text in compare(self.order.lock, assembled.image.platform, assembled.found, load_facts()):
                self.world.warn(text)

    async def _wheels(self, packages: Sequence[Package], arrived: OnFetched = ignore_fetched) -> None:
        published = [each for each in packages if each.built is None]
        if published:
            await fetch_wheels(
                published, self.fetching(), self.world.environ, lambda: datetime.now(timezone.utc), arrived
            )
        if len(published) < len(packages):
            from envspec.operations.build_wheels import Builds

            builds = Builds(self.order.lock, self.fetching(), self)
            for part in self.order.lock.resolutions:
                await builds.bring([each for each in part.packages if each.built and each in packages], part)

    def fetching(self) -> Fetching:
        """How files of the lock are fetched."""
        timeouts = patience_of(self.world.environ, Timeouts())

        def report(count: Count) -> None:
            self.world.report(Step(Stage.FETCHING, count.done, count.total, count.bytes_done, count.bytes_total))

        return Fetching(self.world.cache, timeouts, self.order.network, self.order.jobs, report, self.world.warn)

    def _asking(self) -> None:
        self.world.report(Step(Stage.BASE))

    def _below(self, foundation: Foundation) -> Below:
        return self._python().below(foundation)

    async def _compiler(self, resolution: Resolution) -> Pyc:
        from envspec.image.sources.bytecode import Looking, find

        parts, target = self._python(), resolution.target
        looking = Looking(
            here=this_platform(),
            environ=self.world.environ,
            named=self.order.python,
            own=parts.own_build(target.python, target.platform, resolution.conda),
            other=parts.other_build(target.python),
            warn=self.world.warn,
            # Of one layer too: the last one that is made should not leave processors idle.
            jobs=self.order.jobs,
            unconfined=self.world.unconfined,
        )
        return await find(target.python, looking)

    def _python(self) -> PythonParts:
        if self._parts is None:
            from envspec.image.base_layers import Around, PythonParts

            def linking(done: int, total: int) -> None:
                self.world.report(Step(Stage.LINKING, done, total))

            self._parts = PythonParts(
                Around(
                    cache=self.world.cache,
                    environ=self.world.environ,
                    fetching=self.fetching(),
                    here=this_platform(),
                    is_known=lambda source: self.store.known(source.key, self.order.compression) is not None,
                    linking=linking,
                )
            )
            self._stack.callback(self._parts.close)
        return self._parts

    async def _system(self, platform: Platform, base: Base) -> tuple[SystemLayer, Source]:

        return await system_layer(platform, base, self)


def _blobs_of(images: Sequence[Image]) -> list[tuple[str, int]]:
    """Digest and size of every blob, each once."""
    found: dict[str, int] = {}
    for image in images:
        found.update((layer.blob.digest, layer.blob.size_bytes) for layer in image.layers)
        found[image.id] = len(image.config)
        found[image.digest] = len(image.manifest)
    return list(found.items())


async def system_layer(platform: Platform, base: Base, work: ImageWork) -> tuple[SystemLayer, Source]:
    """The layer of the packages that `[system]`, the services and the compiler want.

    Raises:
        NoEngine: it has to be made, and nothing here can run a container. SystemDiffers: not what the lock says.
    """
    lock, world = work.order.lock, work.world
    locked = next((row for row in lock.system if row.platform is platform and row.base == base.manifest), None)
    if locked is not None and locked.apt != lock.image.apt:
        locked = None
    name = base.name.rpartition(":")[0] if ":" in base.name.rpartition("/")[2] else base.name
    order = SystemOrder(
        platform,
        f"{name}@{base.digest}",
        base.manifest,
        lock.image.apt,
        lock.image.snapshot,
        locked,
        tuple(sorted(world.mirrors.items())),
    )

    def made(source: SystemSource) -> Layer:
        return work.store.make(source, Compression.GZIP)

    def on_line(_: str) -> None:
        world.report(Step(Stage.SYSTEM))

    return await make_system_layer(order, World(world.environ, world.cache, made, on_line, world.warn))
