"""Builds one platform's image from a lock: base, layers, config.

Sources follow from the lock alone, so the ID of an image with cached layers needs no wheel.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.credentials import without_credentials
from envspec.errors import UsageError
from envspec.fetch.types import Arrived, Step, unheard
from envspec.fetch.wheels import wheel_path
from envspec.image.base import ManifestCache, base_for
from envspec.image.config import Base, annotations_of, image_config, image_of
from envspec.image.gpu_code import GpuCodeObserver
from envspec.image.layers.ownership import FileConflict, entry_owners
from envspec.image.layers.partition import partition
from envspec.image.layers.store import LayerStore
from envspec.image.layers.threads import CancellableSource
from envspec.image.layers.types import Image, Layer, LayerSource
from envspec.image.options import Bytecode, ImageOrder, Stage
from envspec.image.services import ServicesSource, services_config
from envspec.image.sources.bytecode import PycCompiler
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelPathCache, WheelSource
from envspec.io.archives import above
from envspec.io.cache import keeping
from envspec.io.tasks import together
from envspec.models import DIRECT_URL, GpuCodeFound, Package, Platform, Resolution, SystemLayer

#: moby's maxLayerDepth is 125; some are left for images built on this one.
MAX_LAYERS: Final = 120
#: One layer for Python, one for the wheels.
_MIN_LAYERS: Final = 2


@dataclass(frozen=True, slots=True)
class BaseLayers:
    """The layers below the wheels: Python and conda's packages.

    fetch: fetches what the sources need. owners: path -> owner, callable after `fetch`.
    """

    sources: tuple[LayerSource, ...]
    fetch: Callable[[], Coroutine[object, object, None]]
    owners: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Supplies:
    """What is fetched or built elsewhere during an image build.

    wheels: fetches files into the cache. below: at most that many base layers; no compiler means no bytecode. system:
    the layer of the system's packages on a base. compiler: finds an interpreter for the image's bytecode.
    """

    documents: ManifestCache
    wheels: Callable[[Sequence[Package], Arrived], Awaitable[object]]
    below: Callable[[Resolution, Base, PycCompiler | None, int], BaseLayers]
    system: Callable[[Platform, Base], Awaitable[tuple[SystemLayer, LayerSource]]]
    compiler: Callable[[Resolution], Awaitable[PycCompiler]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layers above the base, in order."""

    system: SystemLayer | None
    below: BaseLayers
    wheels: tuple[WheelSource, ...]
    sources: tuple[LayerSource, ...]


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """system: the layer for the lock's record. gpu_code: of the wheels, by the wheel's SHA-256."""

    image: Image
    base: Base
    system: SystemLayer | None
    gpu_code: Mapping[str, GpuCodeFound]


class _Arrivals:
    """Files that are in the cache by now, by SHA-256."""

    def __init__(self) -> None:
        self._files: dict[str, asyncio.Event] = {}
        self._are_complete = False

    def add(self, sha256: str) -> None:
        self._files.setdefault(sha256, asyncio.Event()).set()

    def complete(self) -> None:
        self._are_complete = True
        for file in self._files.values():
            file.set()

    async def wait(self, files: Iterable[str]) -> None:
        for sha256 in files:
            if not self._are_complete:
                await self._files.setdefault(sha256, asyncio.Event()).wait()


@dataclass(frozen=True, slots=True)
class ImageBuilder:
    """Builds the images of one request. report: called for every step."""

    order: ImageOrder
    cache: Path
    store: LayerStore
    supplies: Supplies
    report: Callable[[Step], None]

    async def build(self, platform: Platform) -> BuiltImage:
        """The image of one platform; all of its layers are in the store.

        Raises:
            UsageError: no base image, or one with too many layers. FileConflict: two packages write one path.
            NetworkError: a file can't be fetched, or differs from the lock.
        """
        lock = self.order.lock
        resolution = next(each for each in lock.resolutions if each.target.platform is platform)
        base = await base_for(lock, platform, self.supplies.documents)
        plan = await self._plan(resolution, base)
        layers = await self._layers(resolution, plan)
        config = image_config(lock, self.order.identity, platform, base, layers, services_config(lock.image))
        annotations = annotations_of(lock, self.order.identity, base)
        image = image_of(platform, config, (*base.layers, *layers), annotations)
        return BuiltImage(image, base, plan.system, {sha: code for layer in layers for sha, code in layer.gpu_code})

    async def _plan(self, resolution: Resolution, base: Base) -> _Plan:
        lock, python = self.order.lock, resolution.target.python
        budget = MAX_LAYERS - len(base.layers) - bool(lock.image.apt) - 1
        if budget < _MIN_LAYERS:
            raise UsageError(
                f"{base.name} has {len(base.layers)} layers, and an image has at most {MAX_LAYERS}",
                hint="squash the base, or select another one",
            )
        system: SystemLayer | None = None
        first: tuple[LayerSource, ...] = ()
        if lock.image.apt:
            system, source = await self.supplies.system(resolution.target.platform, base)
            first = (source,)

        def plan(pyc: PycCompiler | None) -> _Plan:
            below = self.supplies.below(resolution, base, pyc, budget - 1)
            wheels = wheel_sources(resolution, self.cache, pyc, budget - len(below.sources))
            return _Plan(system, below, wheels, (*first, *below.sources, *wheels, ServicesSource(lock.image)))

        if self.order.bytecode is Bytecode.NONE:
            return plan(None)
        # Bytecode follows from the version alone: an interpreter is only needed if a layer is not cached.
        cached = plan(PycCompiler(Path(), python.version))
        if all(self._cached(source) for source in cached.sources):
            return cached
        return plan(await self.supplies.compiler(resolution))

    def _cached(self, source: LayerSource) -> Layer | None:
        return self.store.cached(source.key, self.order.compression)

    async def _layers(self, resolution: Resolution, plan: _Plan) -> list[Layer]:
        cached = [self._cached(source) for source in plan.sources]
        missing = [source for source, layer in zip(plan.sources, cached, strict=True) if layer is None]
        checked = self._conflict_mark(resolution, plan.below)
        is_checked = checked.exists()
        if not missing and is_checked:
            return [layer for layer in cached if layer is not None]
        if not is_checked or any(source in missing for source in plan.below.sources):
            await plan.below.fetch()
        lists = WheelPathCache(self.cache)
        unlisted = [] if is_checked else [source for source in plan.wheels if not lists.has(source)]
        written = await self._fetch_and_write(resolution, missing, unlisted, lists)
        if not is_checked:
            owners = plan.below.owners()
            if not await asyncio.to_thread(lists.are_disjoint, plan.wheels, owners):
                await self._fetch(resolution, plan.wheels)
                await asyncio.to_thread(check_conflicts, plan.wheels, owners)
        with keeping(checked.parent):
            checked.parent.mkdir(parents=True, exist_ok=True)
            checked.touch()
        return [layer or written[source.key] for source, layer in zip(plan.sources, cached, strict=True)]

    async def _fetch_and_write(
        self,
        resolution: Resolution,
        missing: Sequence[LayerSource],
        unlisted: Sequence[WheelSource],
        lists: WheelPathCache,
    ) -> dict[str, Layer]:
        """Key -> layer of the `missing` sources; each is written as soon as its own wheels are in the cache.

        unlisted: sources whose paths are not in `lists`, missing or not.
        """
        keys, unlisted_keys = ({source.key for source in sources} for sources in (missing, unlisted))
        sources = [*missing, *(source for source in unlisted if source.key not in keys)]
        arrivals = _Arrivals()
        written: dict[str, Layer] = {}

        async def fetch() -> None:
            wheels = [source for source in sources if isinstance(source, WheelSource)]
            await self._fetch(resolution, wheels, arrivals.add)
            arrivals.complete()

        def write(source: LayerSource, cancel: threading.Event) -> None:
            observer = None
            if isinstance(source, WheelSource):
                if source.key in unlisted_keys:
                    lists.add(source)
                observer = GpuCodeObserver(source)
            if source.key in keys:
                cancellable = CancellableSource(source, cancel)
                written[source.key] = self.store.write(cancellable, self.order.compression, observer)

        await together([fetch(), self._write_all(sources, write, arrivals)])
        return written

    async def _fetch(self, resolution: Resolution, sources: Iterable[WheelSource], arrived: Arrived = unheard) -> None:
        needed = {wheel.sha256 for source in sources for wheel in source.wheels}
        packages = [each for each in resolution.packages if (each.built or each.file).sha256 in needed]
        await self.supplies.wheels(packages, arrived)

    async def _write_all(
        self,
        sources: Sequence[LayerSource],
        write: Callable[[LayerSource, threading.Event], None],
        arrivals: _Arrivals,
    ) -> None:
        """Write layers in `order.jobs` threads."""
        done = 0
        cancel = threading.Event()
        self.report(Step(Stage.LAYERS, 0, len(sources)))

        async def one(source: LayerSource) -> None:
            nonlocal done
            if isinstance(source, WheelSource):
                await arrivals.wait(wheel.sha256 for wheel in source.wheels)
            await asyncio.get_running_loop().run_in_executor(pool, write, source, cancel)
            done += 1
            self.report(Step(Stage.LAYERS, done, len(sources)))

        with ThreadPoolExecutor(self.order.jobs, thread_name_prefix="envspec-layer") as pool:
            try:
                await together(one(source) for source in sources)
            finally:
                # Leaving the pool waits for its threads: each ends at its next entry.
                cancel.set()

    def _conflict_mark(self, resolution: Resolution, below: BaseLayers) -> Path:
        """A file that exists once these packages were checked for conflicts."""
        hashes = sorted((each.built or each.file).sha256 for each in resolution.packages)
        hashes += [source.key for source in below.sources]
        return self.cache / "image-owners" / hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def wheel_sources(resolution: Resolution, cache: Path, pyc: PycCompiler | None, budget: int) -> tuple[WheelSource, ...]:
    """The wheels of one platform in at most `budget` layers, see `partition`.

    Raises:
        UsageError: the wheel of a package is not built yet.
    """
    target = resolution.target
    series = target.python.series
    scheme = Scheme.of_venv(series) if target.python.source in {"system", "base"} else Scheme.of(series)
    files = {package.name: package.built or package.file for package in resolution.packages}
    if unbuilt := sorted(name for name, file in files.items() if not file.filename.endswith(".whl")):
        raise UsageError(
            f"the lock contains only the source of {', '.join(unbuilt)}, not the wheel built from it",
            hint="run `envspec lock --image SPEC`: it builds the wheels once and locks their hashes",
        )
    wheels = {package.name: _locked_wheel(package, cache) for package in resolution.packages}
    return tuple(
        WheelSource(tuple(wheels[name] for name in names), scheme, pyc)
        for names in partition([(name, file.size_bytes) for name, file in files.items()], budget)
    )


def _locked_wheel(package: Package, cache: Path) -> LockedWheel:
    file = package.built or package.file
    is_direct = package.file.index == DIRECT_URL and package.built is None
    url = without_credentials(package.file.url) if is_direct and package.file.url else None
    return LockedWheel(package.name, package.version, file.filename, file.sha256, wheel_path(cache, package), url)


def check_conflicts(wheels: Sequence[WheelSource], below: Mapping[str, str]) -> None:
    """Check that no path has two owners. below: path -> owner, of the files and links in the base layers.

    Raises:
        FileConflict: names both. BadWheel, OSError: a wheel can't be read.
    """
    owned = entry_owners(each for source in wheels for each in source.listings())
    folders = {folder: owner for path, owner in owned.items() for folder in above(path)}
    for path, owner in below.items():
        # A folder over a lower layer's link would hide everything behind the link.
        if other := owned.get(path) or folders.get(path):
            raise FileConflict(path, owner, other)
