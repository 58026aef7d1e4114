"""Builds one platform's image from a lock: base, layers, config.

Sources follow from the lock alone, but for the project's code, so the ID of an image with cached layers needs no wheel.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from envspec.context import Context, Step
from envspec.credentials import without_credentials
from envspec.errors import UsageError
from envspec.fetch.types import OnFetched, ignore_fetched
from envspec.fetch.wheels import fetch_wheels, wheel_path
from envspec.image.base import ManifestCache, base_at, pinned_base
from envspec.image.base_layers import BaseLayers, PythonLayers
from envspec.image.code import read_code
from envspec.image.config import (
    Base,
    annotations_of,
    created_of,
    environment,
    image_config,
    image_of,
)
from envspec.image.layers.ownership import OwnedPathCache, OwningSource
from envspec.image.layers.partition import partition
from envspec.image.layers.store import LayerStore
from envspec.image.layers.types import Compression, Image, Layer, LayerSource
from envspec.image.libraries import LibraryObserver
from envspec.image.options import Bytecode, ImageOptions, ImageParts, ImageStage
from envspec.image.services import ServicesSource, has_pip, services_config
from envspec.image.sources.bytecode import NoCompiler, PycCompiler, find_compiler
from envspec.image.sources.system import SystemLayerRequest, SystemSource, build_system_layer
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelSource
from envspec.io.cache import as_cache_error
from envspec.io.tasks import gather_or_cancel
from envspec.models import DIRECT_URL, Lock, Package, Platform, Resolution, SystemLayer, WheelContent
from envspec.registry.types import digest_of
from envspec.spec.dates import utc_text
from envspec.structs import replace

#: moby's maxLayerDepth is 125; some are left for images built on this one.
MAX_LAYERS: Final = 120
#: One layer for Python, one for the wheels.
_MIN_LAYERS: Final = 2


class _Plan(Struct, frozen=True):
    """The layers above the base, in order. code: how many of the last ones are of the project, and not of the lock."""

    system: SystemLayer | None
    system_files: SystemSource | None
    below: BaseLayers
    wheels: tuple[WheelSource, ...]
    sources: tuple[LayerSource, ...]
    code: int


class BuiltImage(Struct, frozen=True):
    """locked_id: the ID of the image without the project's code: it follows from the lock alone. system: the layer for
    the lock's record. system_files: what it consists of. wheels: what their libraries contain and need, by the wheel's
    SHA-256; only of wheels with libraries. owning: the sources of the layers of Python and packages. locked: the layers
    above the base, without those of the project's code.
    """

    image: Image
    locked_id: str
    base: Base
    system: SystemLayer | None
    system_files: SystemSource | None
    wheels: Mapping[str, WheelContent]
    owning: tuple[OwningSource, ...]
    locked: tuple[Layer, ...]


class WheelBuilds(NamedTuple):
    """Callbacks, because building needs stages of `operations`. sources: fetches or builds the wheels of sources.
    project: makes the wheel of the project.
    """

    sources: Callable[[Sequence[Package]], Awaitable[object]]
    project: Callable[[Resolution], Awaitable[Package]]


class ImageBuilder:
    """Builds the images of one lock. `close` removes the linked conda packages.

    local: this machine's platform.
    """

    def __init__(
        self,
        options: ImageOptions,
        context: Context,
        store: LayerStore,
        manifests: ManifestCache,
        local: Platform,
        builds: WheelBuilds,
    ) -> None:
        self._options = options
        self._context = context
        self._store = store
        self._manifests = manifests
        self._local = local
        self._builds = builds
        self._owned = OwnedPathCache(context.cache)
        self._python = PythonLayers(context, local, self._is_written)
        self._cancel = threading.Event()

    def close(self) -> None:
        self._python.close()

    async def build(self, platform: Platform) -> BuiltImage:
        """The image of one platform; all of its layers are in the store.

        Raises:
            UsageError: no base image, or one with too many layers. FileConflict: two packages write one path.
            NetworkError: a file can't be fetched, or differs from the lock.
        """
        lock = self._options.lock.on(platform)
        resolution = next(each for each in lock.resolutions if each.target.platform is platform)
        base = await base_at(*pinned_base(lock, platform), self._manifests)
        plan = await self._plan(resolution, base)
        layers = await self._layers(resolution, plan)
        identity, run = self._options.identity, services_config(lock.image)
        config = image_config(lock, identity, platform, base, layers, run)
        of_lock = tuple(layers[: len(layers) - plan.code])
        locked = image_config(lock, identity, platform, base, of_lock, run)
        image = image_of(platform, config, (*base.layers, *layers), annotations_of(lock, identity, base))
        wheels = dict(pair for layer in layers for pair in layer.wheels)
        owning = (*plan.below.sources, *plan.wheels)
        return BuiltImage(image, digest_of(locked), base, plan.system, plan.system_files, wheels, owning, of_lock)

    async def _plan(self, resolution: Resolution, base: Base) -> _Plan:
        lock, python = self._options.lock, resolution.target.python
        has_project = bool(lock.image.project)
        budget = MAX_LAYERS - len(base.layers) - bool(lock.image.apt) - 1 - has_project - lock.image.has_code
        if budget < _MIN_LAYERS:
            raise UsageError(
                f"{base.name} has {len(base.layers)} layers, and an image has at most {MAX_LAYERS}",
                hint="squash the base, or select another one",
            )
        system: SystemLayer | None = None
        files: SystemSource | None = None
        packages: tuple[Package, ...] = ()
        copied = None
        if self._options.parts is ImageParts.ALL:
            if lock.image.apt:
                system, files = await self._system_layer(resolution.target.platform, base)
            if has_project:
                packages = (await self._builds.project(resolution),)
            copied = await asyncio.to_thread(read_code, lock)
        path = environment(lock, base.env, services_config(lock.image))["PATH"]
        last = ServicesSource(lock.image, path, has_pip(resolution))

        def plan(pyc: PycCompiler | None) -> _Plan:
            cache = self._context.cache
            below = self._python.below(resolution, base, pyc, budget - 1)
            wheels = wheel_sources(resolution, cache, pyc, budget - len(below.sources))
            project = wheel_sources(replace(resolution, packages=packages), cache, pyc, 1)
            code: tuple[LayerSource, ...] = tuple(filter(None, (*project, copied)))
            locked: tuple[LayerSource, ...] = tuple(filter(None, (files, *below.sources, *wheels, last)))
            return _Plan(system, files, below, (*wheels, *project), (*locked, *code), len(code))

        if self._options.bytecode is Bytecode.NONE:
            return plan(None)
        # Bytecode follows from the version alone: an interpreter is only needed if a layer with modules is not cached.
        cached = plan(PycCompiler(Path(), python.version))
        if all(map(self._is_written, (*cached.below.sources, *cached.wheels))):
            return cached
        return plan(await self._compiler(resolution))

    def _cached(self, source: LayerSource) -> Layer | None:
        return self._store.cached(source.key, self._options.compression)

    def _is_written(self, source: LayerSource) -> bool:
        """Whether a layer is cached in any form: another one is made of it."""
        return self._store.cached(source.key, Compression.GZIP) is not None

    async def _layers(self, resolution: Resolution, plan: _Plan) -> list[Layer]:
        cached = [self._cached(source) for source in plan.sources]
        missing = [source for source, layer in zip(plan.sources, cached, strict=True) if layer is None]
        checked = self._conflict_mark(plan)
        is_checked = checked.exists()
        if not missing and is_checked:
            return list(filter(None, cached))
        if not all(self._is_written(each) and (is_checked or self._owned.has(each)) for each in plan.below.sources):
            await plan.below.fetch()
        unlisted: list[WheelSource] = []
        if not is_checked:
            unlisted = [source for source in plan.wheels if not self._owned.has(source)]
        written = await self._fetch_and_write(resolution, missing, unlisted)
        if not is_checked:
            await asyncio.to_thread(self._owned.owners, [*plan.below.sources, *plan.wheels])
        with as_cache_error(checked.parent):
            checked.parent.mkdir(parents=True, exist_ok=True)
            checked.touch()
        return [layer or written[source.key] for source, layer in zip(plan.sources, cached, strict=True)]

    async def _fetch_and_write(
        self, resolution: Resolution, missing: Sequence[LayerSource], unlisted: Sequence[WheelSource]
    ) -> dict[str, Layer]:
        """Key -> layer of the `missing` sources, written in `jobs` threads, each when its own wheels are in the cache.

        unlisted: sources whose paths are not cached, missing or not.
        """
        keys = {source.key for source in missing}
        sources = [*missing, *(source for source in unlisted if source.key not in keys)]
        wheels = [source for source in sources if isinstance(source, WheelSource)]
        arrivals = {package.wheel.sha256: asyncio.Event() for package in resolution.packages}
        written: dict[str, Layer] = {}
        done = itertools.count()

        def report() -> None:
            self._context.reporter.progress(Step(ImageStage.LAYERS, next(done), len(sources)))

        async def fetch() -> None:
            await self._fetch(resolution, wheels, lambda sha256: arrivals[sha256].set())
            for arrival in arrivals.values():
                arrival.set()

        def write(source: LayerSource) -> None:
            observer = None
            if isinstance(source, WheelSource):
                self._owned.get(source)
                observer = LibraryObserver(source.wheels)
            if source.key in keys:
                written[source.key] = self._store.write(source, self._options.compression, observer, self._cancel)

        async def write_in_thread(source: LayerSource) -> None:
            if isinstance(source, WheelSource):
                await _arrived(source, arrivals)
            await asyncio.get_running_loop().run_in_executor(pool, write, source)
            report()

        report()
        with ThreadPoolExecutor(self._context.jobs, thread_name_prefix="envspec-layer") as pool:
            try:
                await gather_or_cancel([fetch(), *map(write_in_thread, sources)])
            except BaseException:
                # Leaving the pool waits for its threads: each ends at its next entry.
                self._cancel.set()
                raise
        return written

    async def _fetch(self, resolution: Resolution, sources: Iterable[WheelSource], arrived: OnFetched) -> None:
        needed = {wheel.sha256 for source in sources for wheel in source.wheels}
        packages = [each for each in resolution.packages if each.wheel.sha256 in needed]
        await self.fetch_wheels(packages, arrived)

    async def fetch_wheels(self, packages: Sequence[Package], arrived: OnFetched = ignore_fetched) -> None:
        """Fetch the wheels of these packages into the cache; those of sources are built if nobody has them.

        Raises:
            NetworkError, WrongArchive, WheelBuildFailed, UnfitMachine: as fetching and building do.
        """
        published = [each for each in packages if each.built is None]
        if published:
            await fetch_wheels(published, self._context, arrived, ImageStage.FETCHING)
        if len(published) < len(packages):
            await self._builds.sources([each for each in packages if each.built])

    async def _system_layer(self, platform: Platform, base: Base) -> tuple[SystemLayer, SystemSource]:
        """The layer of the packages that `[system]`, the services and the compiler need.

        Raises:
            NoEngine: it must be built, and nothing on this machine can run a container. SystemDiffers: it differs from
            the lock.
        """
        lock, context = self._options.lock, self._context
        created = created_of(base.config)
        if created and lock.image.snapshot and created > lock.image.snapshot:
            context.reporter.warning(
                f"{platform.value}: {base.name} was created at {utc_text(created)}, and apt installs as of "
                f"{utc_text(lock.image.snapshot)}: if packages do not fit the base, set a later [system] snapshot"
            )
        locked = _locked_system(lock, platform, base.manifest)
        name = base.name.rpartition(":")[0] if ":" in base.name.rpartition("/")[2] else base.name
        request = SystemLayerRequest(
            platform,
            f"{name}@{base.digest}",
            base.manifest,
            lock.image.apt,
            lock.image.snapshot,
            locked,
            tuple(sorted(context.mirrors.items())),
        )

        def on_line(_: str) -> None:
            context.reporter.progress(Step(ImageStage.SYSTEM))

        layer, source = await build_system_layer(
            request, context, lambda source: self._store.write(source, Compression.GZIP), on_line
        )
        for address in layer.undated:
            context.reporter.warning(
                f"{platform.value}: {address} has no snapshots: its packages are today's, not of the lock's date"
            )
        return layer, source

    async def _compiler(self, resolution: Resolution) -> PycCompiler:
        python, target = self._python, resolution.target
        found = await find_compiler(
            target.python,
            self._context,
            self._local,
            named=self._options.python,
            own=python.own_build(target.python, target.platform, resolution.conda),
            other=python.other_build(target.python),
        )
        if self._options.parts is ImageParts.PACKAGES and found.version != target.python.version:
            # Its bytecode may be other, and is no difference of what is compared.
            raise NoCompiler(
                f"this machine has no Python {target.python.version} to compile modules with",
                hint=f"use --python PATH (`uv python install {target.python.version}` fetches one)",
            )
        return replace(found, cancel=self._cancel)

    def _conflict_mark(self, plan: _Plan) -> Path:
        """A file that exists once these packages were checked for conflicts."""
        hashes = sorted(" ".join((each.sha256, *each.left_out)) for source in plan.wheels for each in source.wheels)
        hashes += [source.key for source in plan.below.sources]
        return self._context.cache / "image-owners" / hashlib.sha256("\n".join(hashes).encode()).hexdigest()


async def _arrived(source: WheelSource, arrivals: Mapping[str, asyncio.Event]) -> None:
    for wheel in source.wheels:
        # The project's own is there.
        if wheel.sha256 in arrivals:
            await arrivals[wheel.sha256].wait()


def wheel_sources(resolution: Resolution, cache: Path, pyc: PycCompiler | None, budget: int) -> tuple[WheelSource, ...]:
    """The wheels of one platform in at most `budget` layers, see `partition`.

    Raises:
        UsageError: the wheel of a package is not built yet.
    """
    target = resolution.target
    series = target.python.series
    scheme = Scheme.of_venv(series) if target.python.source in {"system", "base"} else Scheme.of(series)
    packages = resolution.packages
    if unbuilt := sorted(each.name for each in packages if not each.wheel.filename.endswith(".whl")):
        raise UsageError(
            f"the lock contains only the source of {', '.join(unbuilt)}, not the wheel built from it",
            hint="run `envspec lock --image SPEC`: it builds the wheels once and locks their hashes",
        )
    left_out: dict[str, list[str]] = {}
    for each in resolution.shared:
        for name in each.others:
            left_out.setdefault(name, []).extend(each.paths)
    wheels = {}
    for package in packages:
        wheels[package.name] = _locked_wheel(package, cache, sorted(left_out.get(package.name, ())))
    sources = []
    for names in partition([(each.name, each.wheel.size_bytes) for each in packages], budget):
        of_layer = tuple(wheels[name] for name in names)
        sources.append(WheelSource(of_layer, scheme, pyc))
    return tuple(sources)


def _locked_system(lock: Lock, platform: Platform, base_digest: str) -> SystemLayer | None:
    """The locked system layer of a platform for this base and the lock's packages of apt."""
    for each in lock.system:
        if each.platform is platform and each.base == base_digest and each.apt == lock.image.apt:
            return each
    return None


def _locked_wheel(package: Package, cache: Path, left_out: Iterable[str]) -> LockedWheel:
    file = package.wheel
    url = None
    if package.file.index == DIRECT_URL and package.file.url and package.built is None:
        url = without_credentials(package.file.url)
    path = wheel_path(cache, package)
    return LockedWheel(package.name, package.version, file.filename, file.sha256, path, url, tuple(left_out))
