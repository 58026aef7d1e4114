"""Lock to image, and the image to a tar, a layout, a registry or an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from envspec.context import Context, Step
from envspec.diagnostics.machine import this_platform
from envspec.errors import OfflineMiss, StaleLock, UnfitMachine, UsageError
from envspec.image import outputs
from envspec.image.base import ManifestCache
from envspec.image.build import BuiltImage, ImageBuilder, WheelBuilds
from envspec.image.config import OCI_CONFIG, annotations_of, index_of
from envspec.image.layers.gzip import ArchiveMissing
from envspec.image.layers.store import BlobStore, LayerStore, StreamedBlob
from envspec.image.layers.threads import cancellable
from envspec.image.layers.types import Image, Layer
from envspec.image.options import Bytecode, ImageOptions, ImageStage
from envspec.image.outputs import tar_of
from envspec.io.cache import as_cache_error
from envspec.io.tasks import gather_or_cancel, run_interruptible
from envspec.lockfile.document import identity
from envspec.lockfile.folder import read_lock, write_folder
from envspec.lockfile.header import LOCK_FILE
from envspec.models import ImageId, Lock, Package, Platform, Resolution
from envspec.operations.image_cache import image_packages, platforms_with_image
from envspec.operations.lock_state import lacks_wheel
from envspec.operations.session import Session
from envspec.operations.shared_files import refuse_conflicts
from envspec.registry.reference import parse
from envspec.registry.types import OCI_INDEX, OCI_MANIFEST, Blob, Descriptor, Manifest, ManifestKind, digest_of
from envspec.settings import parse_mirrors
from envspec.spec.document import PYPROJECT, read_spec
from envspec.spec.owner import adopted_source, find_spec_of
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.facts import Facts

_T = TypeVar("_T")


class ImageSession(AsyncExitStack):
    """The build of one lock's images, with the clients and the stores that its outputs need too."""

    def __init__(self, options: ImageOptions, context: Context) -> None:
        super().__init__()
        context = with_mirrors_of(options.lock, context)
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
        builds = WheelBuilds(self._built_wheels, self._project_wheel)
        self._builder = ImageBuilder(options, context, self.store, documents, this_platform(), builds)
        # Left in the opposite order.
        self.push_async_exit(self.clients)
        self.callback(self._stopping.set)
        self.callback(self._builder.close)

    async def build(self) -> list[BuiltImage]:
        """The images of all platforms, their layers written."""
        for part in self.options.lock.resolutions:
            if part.target.platform in self.options.platforms:
                refuse_conflicts(part)
        with as_cache_error(self.context.cache):
            found = [await self._builder.build(platform) for platform in self.options.platforms]
        for each in found:
            for layer in each.image.layers[len(each.base.layers) :]:
                self._layers[layer.blob.digest] = layer
            self._cache_wheels(each)
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
            with as_cache_error(self.context.cache):
                await self._builder.fetch_wheels(image_packages(self.options))
            return await use()

    def writing(self, images: Sequence[Image]) -> outputs.OnBytes:
        """Reports what is written of images; a blob that several share is written once."""
        sizes: dict[str, int] = {}
        for image in images:
            sizes |= {image.id: len(image.config), image.digest: len(image.manifest)}
            for layer in image.layers:
                sizes[layer.blob.digest] = layer.blob.size_bytes
        return self.clients.bytes_moved(ImageStage.WRITING, sum(sizes.values()))

    async def fetch_base_layers(self, assembled: Sequence[BuiltImage]) -> None:
        """The base's layers into the cache, for outputs that hold them.

        Raises:
            NetworkError: they can't be fetched.
        """
        from envspec.registry.pull import fetch_blob

        missing: dict[str, tuple[str, Descriptor]] = {}
        for each in assembled:
            for layer in each.base.layers:
                if self.blobs.has(layer.blob):
                    continue
                if self.context.is_offline:
                    raise OfflineMiss(f"a layer of {each.base.name}")
                missing[layer.blob.digest] = (each.base.name, layer.blob)
        if not missing:
            return
        registry = await self.clients.registry()
        moved = self.clients.bytes_moved(ImageStage.BASE_LAYERS, sum(blob.size_bytes for _, blob in missing.values()))
        fetched = []
        for digest, (name, blob) in missing.items():
            fetched.append(fetch_blob(registry, parse(name), blob, self.blobs.path(digest), moved))
        await gather_or_cancel(fetched, self.context.jobs)

    def _cache_wheels(self, assembled: BuiltImage) -> None:
        """Cache what was read of the wheels for `explain` and `fit`, and compare it with the lock."""
        from envspec.facts.tables import load_facts
        from envspec.image.gpu_code import compare
        from envspec.io.cache import write_wheel_content

        for sha256, content in assembled.wheels.items():
            write_wheel_content(self.context.cache, sha256, content)
        facts = load_facts()
        gpu_code = compare(self.options.lock, assembled.image.platform, assembled.wheels, facts)
        for text in (*gpu_code, *_missing_libraries(self.options.lock, assembled, facts)):
            self.context.reporter.warning(text)

    async def _project_wheel(self, part: Resolution) -> Package:
        from envspec.operations.project_wheel import project_wheel

        return await project_wheel(self.options.lock, self.options.identity, part, self.clients)

    async def _built_wheels(self, packages: Sequence[Package]) -> None:
        from envspec.operations.build_wheels import Builds

        builds = Builds(self.options.lock, self.clients)
        for part in self.options.lock.resolutions:
            await builds.fetch([each for each in part.packages if each in packages], part)


def with_mirrors_of(lock: Lock, context: Context) -> Context:
    """The context with the mirrors of the lock's spec, if the lock is beside it; the machine's own come first.

    Raises:
        UsageError: the spec names a mirror in another form.
    """
    if lock.directory is None:
        return context
    if source := adopted_source(lock.directory):
        spec: Path | None = source.with_name(PYPROJECT)
    else:
        spec = None
        with suppress(UsageError):
            spec = find_spec_of(lock.spec, lock.directory)
    if spec is None:
        return context
    try:
        mirrors = dict(read_spec(spec)["registry"]["mirrors"])
    except (OSError, ValueError, KeyError, TypeError):
        return context
    return context.with_spec(parse_mirrors([f"{name}={host}" for name, host in mirrors.items()]), unconfined=False)


def _missing_libraries(lock: Lock, assembled: BuiltImage, facts: Facts) -> Iterator[str]:
    """What modules of the wheels need and nothing in the image has; nothing for wheels on top of conda's packages."""
    from envspec.base_image.libraries import is_known_base
    from envspec.image.libraries import missing_libraries

    image = assembled.image.platform
    resolution = next(each for each in lock.resolutions if each.target.platform is image)
    base = lock.on(image).base_image
    if base is None or not is_known_base(base, facts) or resolution.conda:
        return
    row = facts.libraries_of(base.os)
    if row is None:
        return
    libraries = {*row.base}
    if assembled.system_files:
        libraries |= assembled.system_files.names()
    contents = {}
    for package in resolution.packages:
        content = assembled.wheels.get(package.wheel.sha256)
        if content:
            contents[package] = content.libraries

    def has(name: str) -> bool:
        return name in libraries

    for missing in missing_libraries(contents, row.os, has, facts):
        ways = f": add {', '.join(map(repr, missing.apt))} to [system] apt" if missing.apt else ""
        yield f"{image.value}: {missing}, which nothing in the image has{ways}"


class Destinations(Struct, frozen=True):
    """Where an image goes.

    tar, layout: files to write.
    push: a reference.
    load: its name in this machine's engine.
    tag: its name in the tar.
    """

    tar: Path | None = None
    layout: Path | None = None
    push: str | None = None
    load: str | None = None
    tag: str = ""


class Built(Struct, frozen=True):
    """The images of one build.

    digest: of what a push puts under the tag: the manifest, or the index of several.
    lock: with all that they were built of.
    """

    images: tuple[Image, ...]
    digest: str
    lock: Lock


def build(options: ImageOptions, destinations: Destinations, context: Context) -> Built:
    """Build images, and write, push or load them; without an output they are only kept in the cache.

    Raises:
        StaleLock: an image has another ID than the lock records; nothing was written or pushed.
        NetworkError, UsageError, UnfitMachine, NoSolution: as the stages say.
    """
    return run_interruptible(_build(options, destinations, context))


async def identify(options: ImageOptions, context: Context) -> Lock:
    """The lock with the IDs of its images, and with what their system layers and their sources' wheels are."""
    options = await with_built(options, context, lacks_wheel)
    async with ImageSession(options, context) as session:
        assembled = await session.build()
    pyc = options.bytecode is Bytecode.COMPILED
    images = {(each.platform, each.pyc): each for each in options.lock.images}
    systems = {each.platform: each for each in options.lock.system}
    for built in assembled:
        platform = built.image.platform
        # Those that are new are the last.
        images.pop((platform, pyc), None)
        images[platform, pyc] = ImageId(platform, built.locked_id, pyc)
        if built.system:
            systems[built.system.platform] = built.system
    return replace(options.lock, images=tuple(images.values()), system=tuple(systems.values()))


async def _build(options: ImageOptions, destinations: Destinations, context: Context) -> Built:
    outputs.check_outputs(destinations.tar, destinations.layout)
    options = await completed(options, context)
    async with ImageSession(options, context) as session:
        assembled = await session.build()
        images = tuple(each.image for each in assembled)
        for each in assembled:
            _compare(options, each)
        index = None
        digest = images[0].digest
        if len(images) > 1:
            index = index_of(images, annotations_of(options.lock, options.identity, None))
            digest = digest_of(index)
        if destinations.tar or destinations.layout:
            await session.fetch_base_layers(assembled)
        files = outputs.files_of(images, index, [destinations.tag] if destinations.tag else [])
        for write, path in ((outputs.write_layout, destinations.layout), (outputs.write_tar, destinations.tar)):
            if path:
                writing = partial(write, path, files, session.open)
                await session.with_wheels(lambda: asyncio.to_thread(writing, session.writing(images)))  # noqa: B023
        if destinations.load:
            name = destinations.load
            await session.with_wheels(lambda: _load(session, assembled, name))
        if destinations.push:
            await _push(session, assembled, index, destinations.push)
    return Built(images, digest, options.lock)


def _is_unbuilt(package: Package) -> bool:
    return package.unbuilt is not None


def _wanted(lock: Lock) -> Callable[[Package], bool]:
    """Which sources are built for an image: of another tool's lock also what is compiled, since nothing records it."""
    return lacks_wheel if adopted_source(lock.directory) else _is_unbuilt


async def completed(options: ImageOptions, context: Context) -> ImageOptions:
    """The options with all that an image needs beyond the lock: see `with_bases` and `with_built`."""
    return await with_built(await with_bases(options, context), context, _wanted(options.lock))


async def with_bases(options: ImageOptions, context: Context) -> ImageOptions:
    """The options with the digests of the bases, for the lock of another tool: no network was used to adopt it. They
    are kept: the next image has the same base.
    """
    lock = options.lock
    folder = lock.directory
    if folder is None or adopted_source(folder) is None or context.is_offline:
        return options
    if all(pinned.digest for image in lock.base_images for pinned in image.digests):
        return options
    from envspec.operations.lock.assemble import with_known_digests
    from envspec.operations.lock.complete import lock_files

    lock = await with_known_digests(lock, with_mirrors_of(lock, context))
    write_folder(folder, lock_files(lock))
    return replace(options, lock=lock, identity=identity(lock))


async def with_built(
    options: ImageOptions, context: Context, wanted: Callable[[Package], bool] = _is_unbuilt
) -> ImageOptions:
    """The options with a wheel for every wanted source in the lock, built if the lock records none.

    What must be compiled is not among them by default: `lock --image` compiles it once.
    """
    lock = options.lock
    if not lock.base_images or not any(map(wanted, image_packages(options))):
        return options
    from envspec.operations.build_wheels import Builds

    async with Session(with_mirrors_of(lock, context)) as session:
        for platform in options.platforms:
            lock = await Builds(lock, session).record(platform, wanted)
    return replace(options, lock=lock, identity=identity(lock))


def _compare(options: ImageOptions, built: BuiltImage) -> None:
    pyc, platform = options.bytecode is Bytecode.COMPILED, built.image.platform
    for row in options.lock.images:
        if row.platform is platform and row.pyc is pyc and row.id != built.locked_id:
            without = ", without the project's code," if options.lock.image.has_code else ""
            raise StaleLock(
                f"the image of {options.lock.name} on {platform.value}{without} is {built.locked_id}; the lock records "
                f"{row.id}",
                hint="if the change is intended, record it by `envspec lock --image SPEC`; another envspec or another "
                "patch of the compiling Python gives another image",
            )


async def _load(session: ImageSession, assembled: Sequence[BuiltImage], tag: str) -> None:
    """Load an image into the engine under a name; layers that the engine has are not sent.

    Raises:
        UsageError: several platforms. NoEngine, EngineUnreachable, EngineError: the engine fails.
    """
    if len(assembled) > 1:
        raise UsageError("an engine loads the image of one platform", hint="choose it by --platform")
    await asyncio.to_thread(_load_image, session, assembled[0], tag, asyncio.get_running_loop())


def _load_image(session: ImageSession, one: BuiltImage, tag: str, loop: asyncio.AbstractEventLoop) -> None:
    from envspec.image import engine as loading

    image, engine = one.image, session.clients.engine()
    loaded = loading.find_image(engine, image)
    if loaded is None:
        loading.check_reads(engine, session.options.compression)
        existing = loading.count_loaded_layers(engine, image)
        if existing < len(one.base.layers):
            asyncio.run_coroutine_threadsafe(session.fetch_base_layers([one]), loop).result()
        files = loading.files_to_load(image, [tag], existing)
        total = 0
        for _, content in files:
            total += len(content) if isinstance(content, bytes) else content.size_bytes
        moved = session.clients.bytes_moved(ImageStage.LOADING, total)
        loaded = loading.load(engine, image, tar_of(files, session.open, moved))
    loading.tag_image(engine, loaded, tag)


async def _push(session: ImageSession, assembled: Sequence[BuiltImage], index: bytes | None, name: str) -> None:
    """Push images, several as one index. The tag is moved last.

    Raises:
        NetworkError: the registry refuses something.
    """
    target = parse(name)
    registry = await session.clients.registry()
    from envspec.registry.copy import RemoteBlob, push_image

    def assembled_layer(blob: Descriptor, start: int) -> Iterator[bytes]:
        return session.open(blob).chunks(start)

    def whole(config: bytes, start: int) -> Iterator[bytes]:
        return iter([config[start:]])

    blobs: dict[str, Blob | RemoteBlob] = {}
    documents: list[Manifest] = []
    for each in assembled:
        documents.append(Manifest(each.image.manifest, OCI_MANIFEST))
        source = parse(each.base.name)
        for layer in each.base.layers:
            kept = session.blobs.open(layer.blob) if session.blobs.has(layer.blob) else None
            blobs[layer.blob.digest] = RemoteBlob(layer.blob, source, local=kept)
        for layer in each.image.layers[len(each.base.layers) :]:
            # Assembled only if the registry does not have it.
            blobs.setdefault(layer.blob.digest, StreamedBlob(layer.blob, partial(assembled_layer, layer.blob)))
        config = Descriptor(OCI_CONFIG, each.image.id, len(each.image.config))
        blobs[config.digest] = StreamedBlob(config, partial(whole, each.image.config))
    if index is not None:
        documents.append(Manifest(index, OCI_INDEX, ManifestKind.INDEX))

    def report(done: int, total: int) -> None:
        session.context.reporter.progress(Step(ImageStage.PUSHING, 0, 0, done, total))

    async def push() -> None:
        # Also if the registry has everything: no bytes are reported then.
        session.context.reporter.progress(Step(ImageStage.PUSHING))
        await push_image(registry, target, tuple(blobs.values()), documents, report=report)

    # A second try sends nothing that the registry has by then.
    await session.with_wheels(push)


def is_pushed(name: str, digest: str, context: Context) -> bool:
    """Whether the tag names this digest; False as well if the registry does not answer: the push then reports why.

    Raises:
        RequestError: the registry can't be reached.
    """
    from envspec.registry.errors import RegistryError
    from envspec.registry.push import tag_digest

    async def look() -> bool:
        async with Session(context) as session:
            return await tag_digest(await session.registry(), parse(name)) == digest

    try:
        return run_interruptible(look())
    except RegistryError:
        return False


def record_images_of(spec_path: Path, directory: Path, context: Context, *, anew: bool = False) -> tuple[Path, ...]:
    """Write the image ID of each linux platform into the lock of a spec; the paths that changed.

    anew: as in `record_images`.

    Raises:
        UsageError, UnfitMachine, EnvspecError: as `record_images` says.
    """
    from envspec.io.store import Store
    from envspec.operations.lock.cache import remember_ours
    from envspec.spec import load_spec

    spec = load_spec(spec_path, context.now())
    context = context.with_spec(spec.registry.mirrors, unconfined=not spec.pip.build.sandbox)

    def on(lock: Lock, platform: Platform) -> Lock:
        return run_interruptible(identify(ImageOptions(lock, identity(lock), (platform,)), context))

    changed = record_images(directory, on, context.reporter.warning, anew=anew)
    with closing(Store(context.cache)) as store:
        remember_ours(store, (directory / LOCK_FILE).read_bytes())
    return changed


def record_images(
    directory: Path, identify: Callable[[Lock, Platform], Lock], warn: Callable[[str], None], *, anew: bool = False
) -> tuple[Path, ...]:
    """Write the image ID of each platform into the lock; the paths that changed.

    identify: the lock with the image's ID on one platform, and with what its system layer was made of. A platform whose
    system layer can't be built on this machine keeps what was recorded, with a warning. anew: accept system layers and
    wheels that differ from the recorded ones.

    Raises:
        UsageError: the lock has no linux platform. UnfitMachine: none of its images can be built on this machine.
        EnvspecError: as `identify`; the lock is then unchanged.
    """
    # Brings all that locking needs, which an image that is only built does without.
    from envspec.operations.lock.complete import lock_files

    lock = read_lock(directory)
    platforms = platforms_with_image(lock)
    unfit: dict[Platform, UnfitMachine] = {}
    for platform in platforms:
        before = _without_builds(lock, platform) if anew else lock
        try:
            lock = identify(before, platform)
        except UnfitMachine as error:
            unfit[platform] = error
    if len(unfit) == len(platforms):
        raise unfit[platforms[0]]
    for platform, why in unfit.items():
        warn(f"{platform.value}: its image's ID is not recorded: {why.message}")
    return write_folder(directory, lock_files(lock))


def _without_builds(lock: Lock, platform: Platform) -> Lock:
    """The lock without what builds have found for a platform: its system layer, and the wheels of its sources."""

    def as_source(package: Package) -> Package:
        return replace(package, built=None, record_sha256=None) if package.built else package

    resolutions = list(lock.resolutions)
    for number, part in enumerate(resolutions):
        if part.target.platform is platform:
            resolutions[number] = replace(part, packages=tuple(map(as_source, part.packages)))
    system = tuple(each for each in lock.system if each.platform is not platform)
    return replace(lock, resolutions=tuple(resolutions), system=system)
