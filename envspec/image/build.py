"""From a lock to one platform's image: base, sources, layers, config. What the cache knows is not made again.

Sources follow from the lock alone, so an image whose layers are known is told without a wheel at hand.
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
from envspec.fetch.types import OnFetched, Step, ignore_fetched
from envspec.fetch.wheels import wheel_path
from envspec.image.base import Documents, base_on
from envspec.image.config import Base, annotations_of, image_config, image_of
from envspec.image.gpu_code import GpuCodeWatch
from envspec.image.layers.ownership import conflicts
from envspec.image.layers.partition import cut
from envspec.image.layers.store import LayerStore
from envspec.image.layers.threads import StoppableSource
from envspec.image.layers.types import Image, Layer, Source
from envspec.image.options import Bytecode, ImageOrder, Stage
from envspec.image.services import ServicesSource, services_config
from envspec.image.sources.bytecode import Pyc
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelLists, WheelSource
from envspec.io.archives import FileConflict, parents_of
from envspec.io.cache import as_cache_error
from envspec.io.tasks import gather_or_cancel
from envspec.models import DIRECT_URL, GpuCodeFound, Package, Platform, Resolution, SystemLayer

#: moby's maxLayerDepth is 125; some are left for those who build on the image.
MOST_LAYERS: Final = 120
#: The least that is needed: one layer for Python, one for the wheels.
_LEAST: Final = 2


@dataclass(frozen=True, slots=True)
class Below:
    """What lies below the wheels: the layers of Python and of conda's packages.

    sources: at most as many as were asked for. bring: fetches what they are made from. owners: path -> who owns it,
    asked once all is at hand.
    """

    sources: tuple[Source, ...]
    bring: Callable[[], Coroutine[object, object, None]]
    owners: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Foundation:
    """What the layers of Python follow from. most: how many there may be. pyc: None for no bytecode."""

    resolution: Resolution
    base: Base
    pyc: Pyc | None
    most: int


@dataclass(frozen=True, slots=True)
class Supplies:
    """What has to be fetched, made or found outside while an image is assembled.

    wheels: brings files into the cache. below: Python and conda's packages. system: the layer of the system's packages
    on a base. compiler: an interpreter on this machine whose bytecode the image's Python takes.
    """

    documents: Documents
    wheels: Callable[[Sequence[Package], OnFetched], Awaitable[object]]
    below: Callable[[Foundation], Below]
    system: Callable[[Platform, Base], Awaitable[tuple[SystemLayer, Source]]]
    compiler: Callable[[Resolution], Awaitable[Pyc]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layers above the base, in order."""

    system: SystemLayer | None
    below: Below
    wheels: tuple[WheelSource, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """An image with what it was made of. system: the layer that the lock may record.

    found: the GPU code of the wheels, by the wheel's SHA-256.
    """

    image: Image
    base: Base
    system: SystemLayer | None
    found: Mapping[str, GpuCodeFound]


class _Arrivals:
    """Which files are in the cache by now, by SHA-256."""

    def __init__(self) -> None:
        self._files: dict[str, asyncio.Event] = {}
        self._has_ended = False

    def note(self, sha256: str) -> None:
        """One is there."""
        self._files.setdefault(sha256, asyncio.Event()).set()

    def end(self) -> None:
        """All are there."""
        self._has_ended = True
        for file in self._files.values():
            file.set()

    async def wait(self, files: Iterable[str]) -> None:
        """Until all of these are there."""
        for sha256 in files:
            if not self._has_ended:
                await self._files.setdefault(sha256, asyncio.Event()).wait()


@dataclass(frozen=True, slots=True)
class Assembler:
    """Assembles the images of one order. report: told of every step."""

    order: ImageOrder
    cache: Path
    store: LayerStore
    supplies: Supplies
    report: Callable[[Step], None]

    async def assemble(self, platform: Platform) -> Assembled:
        """The image of one platform, all of its layers known to the store.

        Raises:
            UsageError: no base image, or one that leaves no room. FileConflict: two packages have one path.
            NetworkError: something is not to be had, or is not what the lock says.
        """
        lock = self.order.lock
        resolution = next(each for each in lock.resolutions if each.target.platform is platform)
        base = await base_on(lock, platform, self.supplies.documents)
        plan = await self._plan(resolution, base)
        layers = await self._layers(resolution, plan)
        conduct = services_config(lock.image)
        config = image_config(lock, self.order.identity, platform, base, layers, conduct)
        told = annotations_of(lock, self.order.identity, base)
        image = image_of(platform, config, (*base.layers, *layers), told)
        found = {sha256: code for layer in layers for sha256, code in layer.found}
        return Assembled(image, base, plan.system, found)

    async def _plan(self, resolution: Resolution, base: Base) -> _Plan:
        lock, python = self.order.lock, resolution.target.python
        budget = MOST_LAYERS - len(base.layers) - bool(lock.image.apt) - 1
        if budget < _LEAST:
            raise UsageError(
                f"{base.name} has {len(base.layers)} layers, and an image has at most {MOST_LAYERS}",
                hint="squash the base, or take another one",
            )
        system: SystemLayer | None = None
        first: tuple[Source, ...] = ()
        if lock.image.apt:
            system, source = await self.supplies.system(resolution.target.platform, base)
            first = (source,)

        def planned(pyc: Pyc | None) -> _Plan:
            below = self.supplies.below(Foundation(resolution, base, pyc, budget - 1))
            wheels = wheel_sources(resolution, self.cache, pyc, budget - len(below.sources))
            sources = (*first, *below.sources, *wheels, ServicesSource(lock.image))
            return _Plan(system, below, wheels, sources)

        if self.order.bytecode is Bytecode.NONE:
            return planned(None)
        # The bytes follow from the version alone: the interpreter is looked for where some layer is not known.
        plan = planned(Pyc(Path(), python.version))
        if all(self._known(source) for source in plan.sources):
            return plan
        return planned(await self.supplies.compiler(resolution))

    def _known(self, source: Source) -> Layer | None:
        return self.store.known(source.key, self.order.compression)

    async def _layers(self, resolution: Resolution, plan: _Plan) -> list[Layer]:
        known = [self._known(source) for source in plan.sources]
        missing = [source for source, layer in zip(plan.sources, known, strict=True) if layer is None]
        checked = self._checked(resolution, plan.below)
        is_checked = checked.exists()
        if not missing and is_checked:
            return [layer for layer in known if layer is not None]
        if not is_checked or any(source in missing for source in plan.below.sources):
            await plan.below.bring()
        lists = WheelLists(self.cache)
        unlisted = [] if is_checked else [source for source in plan.wheels if not lists.known(source)]
        made = await self._fetch_and_make(resolution, missing, unlisted, lists)
        if not is_checked and not await asyncio.to_thread(lists.are_apart, plan.wheels, plan.below.owners()):
            await self._fetch(resolution, plan.wheels)
            await asyncio.to_thread(_check_owners, plan)
        with as_cache_error(checked.parent):
            checked.parent.mkdir(parents=True, exist_ok=True)
            checked.touch()
        return [layer or made[source.key] for source, layer in zip(plan.sources, known, strict=True)]

    async def _fetch_and_make(
        self, resolution: Resolution, missing: Sequence[Source], unlisted: Sequence[WheelSource], lists: WheelLists
    ) -> dict[str, Layer]:
        """Key -> layer, of those that are missing: each is made when its own wheels are there.

        unlisted: layers whose wheels are read for their lists, be they missing or not.
        """
        keys = {source.key for source in missing}
        sources = [*missing, *(source for source in unlisted if source.key not in keys)]
        unread = {source.key: source for source in unlisted}
        wheels = [source for source in sources if isinstance(source, WheelSource)]
        arrivals = _Arrivals()
        made: dict[str, Layer] = {}

        async def fetch() -> None:
            await self._fetch(resolution, wheels, arrivals.note)
            arrivals.end()

        def make(source: Source, stopping: threading.Event) -> None:
            if source.key in unread:
                lists.learn(unread[source.key])
            if source.key in keys:
                watch = GpuCodeWatch(source) if isinstance(source, WheelSource) else None
                stoppable = StoppableSource(source, stopping)
                made[source.key] = self.store.make(stoppable, self.order.compression, watch)

        await gather_or_cancel([fetch(), self._make(sources, make, arrivals)])
        return made

    async def _fetch(
        self,
        resolution: Resolution,
        sources: Iterable[WheelSource],
        arrived: OnFetched = ignore_fetched,
    ) -> None:
        """Bring the wheels of these layers."""
        wanted = {wheel.sha256 for source in sources for wheel in source.wheels}
        await self.supplies.wheels([each for each in resolution.packages if _file_of(each)[1] in wanted], arrived)

    async def _make(
        self,
        sources: Sequence[Source],
        make: Callable[[Source, threading.Event], None],
        arrivals: _Arrivals,
    ) -> None:
        """Make layers in threads, as many at once as the order says."""
        done = 0
        stopping = threading.Event()
        self.report(Step(Stage.LAYERS, 0, len(sources)))

        async def one(source: Source) -> None:
            nonlocal done
            if isinstance(source, WheelSource):
                await arrivals.wait(wheel.sha256 for wheel in source.wheels)
            await asyncio.get_running_loop().run_in_executor(pool, make, source, stopping)
            done += 1
            self.report(Step(Stage.LAYERS, done, len(sources)))

        with ThreadPoolExecutor(self.order.jobs, thread_name_prefix="envspec-layer") as pool:
            try:
                await gather_or_cancel(one(source) for source in sources)
            finally:
                # What has not begun is not begun any more; what has ends at its next file, and that is waited for.
                stopping.set()

    def _checked(self, resolution: Resolution, below: Below) -> Path:
        """The file that says that these packages have been found to own no path twice."""
        named = sorted(_file_of(each)[1] for each in resolution.packages)
        named += [source.key for source in below.sources]
        return self.cache / "image-owners" / hashlib.sha256("\n".join(named).encode()).hexdigest()


def wheel_sources(resolution: Resolution, cache: Path, pyc: Pyc | None, budget: int) -> tuple[WheelSource, ...]:
    """The wheels of one platform, big ones alone, small ones in buckets; at most `budget` layers.

    Raises:
        UsageError: a package whose wheel has not been built yet.
    """
    target = resolution.target
    series = target.python.series
    scheme = Scheme.of_venv(series) if target.python.source in {"system", "base"} else Scheme.of(series)
    packages = {package.name: package for package in resolution.packages}
    unbuilt = [name for name, package in packages.items() if not _file_of(package)[0].endswith(".whl")]
    if unbuilt:
        raise UsageError(
            f"no wheel of {', '.join(sorted(unbuilt))} has been built yet, only what it is built from is locked",
            hint="run `envspec lock --image SPEC`: it builds them once and locks their hashes",
        )
    sizes = [(name, _file_of(package)[2]) for name, package in packages.items()]
    return tuple(
        WheelSource(tuple(_locked(packages[name], cache) for name in names), scheme, pyc)
        for names in cut(sizes, budget)
    )


def _locked(package: Package, cache: Path) -> LockedWheel:
    filename, sha256, _ = _file_of(package)
    is_named = package.file.index == DIRECT_URL and package.built is None
    url = without_credentials(package.file.url) if is_named and package.file.url else None
    return LockedWheel(package.name, package.version, filename, sha256, wheel_path(cache, package), url)


def _file_of(package: Package) -> tuple[str, str, int | None]:
    """File name, SHA-256 and size in bytes of what is installed."""
    file = package.built or package.file
    return file.filename, file.sha256, file.size_bytes


def _check_owners(plan: _Plan) -> None:
    """Refuse two owners of one path.

    Raises:
        FileConflict: names both.
    """
    check_apart(plan.wheels, plan.below.owners())


def check_apart(wheels: Sequence[WheelSource], below: Mapping[str, str]) -> None:
    """Refuse two owners of one path. below: path -> owner, of the files and links of the layers below.

    Raises:
        FileConflict: names both. BadWheel, OSError: a wheel can't be read.
    """
    owned = conflicts(listing for source in wheels for listing in source.listings())
    folders = {folder: owner for path, owner in owned.items() for folder in parents_of(path)}
    for path, owner in below.items():
        # A folder in the place of a link of a lower layer would hide all that the link leads to.
        if other := owned.get(path) or folders.get(path):
            raise FileConflict(path, owner, other)
