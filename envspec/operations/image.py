"""Lock to image, and the image to a tar, a layout, a registry or an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.errors import StaleLock, UnfitMachine, UsageError
from envspec.fetch.types import Step
from envspec.image import outputs
from envspec.image.build import Assembled
from envspec.image.config import OCI_CONFIG, annotations_of, index_of
from envspec.image.layers.types import Image, Layer
from envspec.image.options import Bytecode, ImageOrder, ImageWorld, Stage
from envspec.image.outputs import tar_of
from envspec.io.tasks import run_interruptible
from envspec.lock.folder import read_lock, write_folder
from envspec.models import ImageId, Lock, Platform
from envspec.operations.image_session import ImageWork
from envspec.operations.lock import lock_files
from envspec.operations.session import Doors
from envspec.registry.copy import ManifestBody, RemoteBlob, push_image
from envspec.registry.errors import RegistryError
from envspec.registry.push import tag_digest
from envspec.registry.reference import parse
from envspec.registry.types import OCI_INDEX, OCI_MANIFEST, Blob, Descriptor, digest_of

if TYPE_CHECKING:
    from envspec.image.diff import ImageDiff


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where an image goes. push: a reference. load: its name in this machine's engine. tag: its name in the tar."""

    tar: Path | None = None
    layout: Path | None = None
    push: str | None = None
    load: str | None = None
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """What came of an order. digest: of what a push puts under the tag: the manifest, or the index of several."""

    images: tuple[Image, ...]
    digest: str


class OtherImage(StaleLock):
    """The image is not the one that the lock records."""


def build(order: ImageOrder, wanted: Outputs, world: ImageWorld) -> Built:
    """Assemble the images of an order, and bring them where they are wanted; nowhere but the cache without a wish.

    Raises:
        OtherImage: an image has another ID than the lock records; nothing was written or pushed.
        NetworkError, UsageError, UnfitMachine, NoSolution: as the stages say.
    """
    return run_interruptible(_build(order, wanted, world))


async def identify(order: ImageOrder, world: ImageWorld) -> Lock:
    """The lock with the IDs of its images, and with what their system layers and their sources' wheels are."""
    order = await _with_built(order, world)
    async with ImageWork(order, world) as work:
        assembled = await work.assemble()
    pyc = order.bytecode is Bytecode.COMPILED
    mine = [ImageId(each.image.platform, each.image.id, pyc) for each in assembled]
    replaced = {(each.platform, each.pyc) for each in mine}
    others = [each for each in order.lock.images if (each.platform, each.pyc) not in replaced]
    systems = {each.platform: each for each in order.lock.system}
    systems |= {each.system.platform: each.system for each in assembled if each.system}
    return replace(order.lock, images=(*others, *mine), system=tuple(systems.values()))


def mirror(lock: Lock, target: str, world: ImageWorld) -> str:
    """Copy the base image of a lock, by its digest and for all of its platforms; what it is called there."""
    return run_interruptible(_mirror(lock, target, world))


def diff(first: str, second: str, platform: Platform, world: ImageWorld) -> ImageDiff:
    """What a pull of the second image moves where the first one is.

    Each is a registry's reference, a layout, a tar, or a lock whose layers the cache knows or can make.
    """
    return run_interruptible(_diff(first, second, platform, world))


async def _mirror(lock: Lock, target: str, world: ImageWorld) -> str:
    from envspec.operations.image_diff import mirror_base

    return await mirror_base(lock, target, world)


async def _diff(first: str, second: str, platform: Platform, world: ImageWorld) -> ImageDiff:
    from envspec.image.diff import diff_images
    from envspec.operations.image_diff import read_side

    return diff_images(*[await read_side(name, platform, world) for name in (first, second)])


async def _build(order: ImageOrder, wanted: Outputs, world: ImageWorld) -> Built:
    async with ImageWork(order, world) as work:
        assembled = await work.assemble()
        images = tuple(each.image for each in assembled)
        for image in images:
            _compare(order, image)
        index = index_of(images, annotations_of(order.lock, order.identity, None)) if len(images) > 1 else None
        if wanted.tar or wanted.layout:
            await work.fetch_base_layers(assembled)
        tags = [wanted.tag] if wanted.tag else []
        if wanted.layout:
            await _write(outputs.write_layout, wanted.layout, outputs.files_of(images, index, tags), images, work)
        if wanted.tar:
            await _write(outputs.write_tar, wanted.tar, outputs.files_of(images, index, tags), images, work)
        if wanted.load:
            name = wanted.load
            await work.with_wheels(lambda: load(work, assembled, name))
        if wanted.push:
            await push(work, assembled, index, wanted.push)
    return Built(images, digest_of(index) if index is not None else images[0].digest)


async def _write(
    write: Callable[[Path, outputs.Files, outputs.Open, outputs.Moved], object],
    path: Path,
    files: outputs.Files,
    images: Sequence[Image],
    work: ImageWork,
) -> None:
    await work.with_wheels(lambda: asyncio.to_thread(write, path, files, work.open, work.writing(images)))


async def _with_built(order: ImageOrder, world: ImageWorld) -> ImageOrder:
    parts = [part for part in order.lock.resolutions if part.target.platform in order.platforms]
    if not any(each.built is None and not each.file.filename.endswith(".whl") for p in parts for each in p.packages):
        return order
    from envspec.operations.build_wheels import with_built

    async with ImageWork(order, world) as work:
        return await with_built(order, work.fetching(), work)


def _compare(order: ImageOrder, image: Image) -> None:
    pyc = order.bytecode is Bytecode.COMPILED
    for row in order.lock.images:
        if row.platform is image.platform and row.pyc is pyc and row.id != image.id:
            raise OtherImage(
                f"the image of {order.lock.name} on {image.platform.value} is {image.id}; the lock records {row.id}",
                hint="another envspec or another patch of the compiling Python makes another image; if the change "
                "is meant, `envspec lock --image SPEC` records it",
            )


async def load(work: ImageWork, assembled: Sequence[Assembled], tag: str) -> str:
    """Put an image into the engine under a name; what the engine calls it. Layers that it has are not sent.

    Raises:
        UsageError: several platforms. NoEngine, EngineUnreachable, EngineError: the engine fails.
    """
    if len(assembled) > 1:
        raise UsageError("an engine takes the image of one platform", hint="choose it by --platform")
    [one] = assembled
    return await asyncio.to_thread(_load, work, one, tag, asyncio.get_running_loop())


def _load(work: ImageWork, one: Assembled, tag: str, loop: asyncio.AbstractEventLoop) -> str:
    from envspec.engine.client import open_engine
    from envspec.image import engine as loading

    image = one.image
    with open_engine(work.world.environ) as engine:
        there = loading.find(engine, image)
        if there is None:
            kept = loading.layers_there(engine, image)
            if kept < len(one.base.layers):
                asyncio.run_coroutine_threadsafe(work.fetch_base_layers([one]), loop).result()
            files = loading.files_without(image, [tag], kept)
            total = sum(len(content) if isinstance(content, bytes) else content.size_bytes for _, content in files)
            there = loading.load(engine, image, tar_of(files, work.open, work.counted(Stage.LOADING, total)))
        loading.name_it(engine, there, tag)
    return there


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A layer that was made here, put together when the registry turns out to lack it."""

    work: ImageWork
    layer: Layer

    @property
    def descriptor(self) -> Descriptor:
        return self.layer.blob

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        return self.work.open(self.layer.blob).chunks(start)


@dataclass(frozen=True, slots=True)
class _InMemory:
    """A small document as a blob."""

    descriptor: Descriptor
    body: bytes

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        yield self.body[start:]


async def push(work: ImageWork, assembled: Sequence[Assembled], index: bytes | None, name: str) -> None:
    """Push images, as one index where there are several. Until all is there the tag names what it named before.

    Raises:
        NetworkError: the registry does not take something.
    """
    target = parse(name)
    registry = await work.registry()
    blobs: dict[str, Blob | RemoteBlob] = {}
    for each in assembled:
        source = parse(each.base.name)
        for layer in each.base.layers:
            kept = work.blobs.open(layer.blob) if work.blobs.has(layer.blob) else None
            blobs[layer.blob.digest] = RemoteBlob(layer.blob, source, local=kept)
        for layer in each.image.layers[len(each.base.layers) :]:
            blobs.setdefault(layer.blob.digest, _Lazy(work, layer))
        config = Descriptor(OCI_CONFIG, each.image.id, len(each.image.config))
        blobs[config.digest] = _InMemory(config, each.image.config)
    documents = [ManifestBody(each.image.manifest, OCI_MANIFEST) for each in assembled]
    documents += [ManifestBody(index, OCI_INDEX)] if index is not None else []

    def report(done: int, total: int) -> None:
        work.world.report(Step(Stage.PUSHING, 0, 0, done, total))

    # Done a second time, it sends nothing again that the registry has by then.
    await work.with_wheels(lambda: push_image(registry, target, tuple(blobs.values()), documents, report=report))


def is_pushed(name: str, digest: str, world: ImageWorld) -> bool:
    """False also where the registry does not say: the push then tells what is wrong.

    Raises:
        RequestError: the registry can't be reached.
    """
    return run_interruptible(_is_pushed(name, digest, world))


async def _is_pushed(name: str, digest: str, world: ImageWorld) -> bool:
    async with Doors(world) as doors:
        try:
            return await tag_digest(await doors.registry(), parse(name)) == digest
        except RegistryError:
            return False


def record_images(
    directory: Path, identify: Callable[[Lock, Platform], Lock], warn: Callable[[str], None]
) -> tuple[Path, ...]:
    """Find out the ID of each platform's image, and write them into the lock; the paths that changed.

    identify: the lock with the image's ID on one platform, and with what its system layer was made of. A platform whose
    system layer can't be made on this machine keeps what was recorded, and is told of.

    Raises:
        UsageError: the lock has no linux platform. UnfitMachine: none of its images can be made here.
        EnvspecError: as `identify` says; the lock is then as it was.
    """
    lock = read_lock(directory)
    platforms = [r.target.platform for r in lock.resolutions if r.target.platform.is_linux]
    if not platforms:
        raise UsageError(
            f"{lock.name} has no linux platform, and images are for linux", hint="add linux-64 to [env] platforms"
        )
    unfit: dict[Platform, UnfitMachine] = {}
    for platform in platforms:
        try:
            lock = identify(lock, platform)
        except UnfitMachine as fault:
            unfit[platform] = fault
    if len(unfit) == len(platforms):
        raise unfit[platforms[0]]
    for platform, why in unfit.items():
        warn(f"{platform.value}: its image's ID is not recorded: {why.message}")
    return write_folder(directory, lock_files(lock))
