"""One function for each command about images: their stages, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.effects.event_loop import run_to_end
from envspec.errors import StaleLock
from envspec.image import outputs
from envspec.image.config import annotations_of
from envspec.image.index_document import index_of
from envspec.image.layer import Image
from envspec.image.order import Bytecode, ImageOrder, ImageWorld
from envspec.model import ImageId, Lock, Platform
from envspec.pipeline.image_work import ImageWork
from envspec.registry.manifest import digest_of

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
    return run_to_end(_build(order, wanted, world))


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
    return run_to_end(_mirror(lock, target, world))


def diff(first: str, second: str, platform: Platform, world: ImageWorld) -> ImageDiff:
    """What a pull of the second image moves where the first one is.

    Each is a registry's reference, a layout, a tar, or a lock whose layers the cache knows or can make.
    """
    return run_to_end(_diff(first, second, platform, world))


def build_by_docker(folder: Path, order: ImageOrder, wanted: Outputs, world: ImageWorld) -> str:
    """Build a lock's Dockerfile by this machine's engine, under `wanted.tag`; the image's ID there.

    Raises:
        UsageError: an output that an engine does not write. NoEngine, BuildFailed: as they say.
    """
    from envspec.pipeline.image_engine import build_dockerfile

    return build_dockerfile(folder, order, wanted, world)


async def _mirror(lock: Lock, target: str, world: ImageWorld) -> str:
    from envspec.pipeline.image_copies import mirror_base

    return await mirror_base(lock, target, world)


async def _diff(first: str, second: str, platform: Platform, world: ImageWorld) -> ImageDiff:
    from envspec.image.diff import diff_images
    from envspec.pipeline.image_copies import read_side

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
            from envspec.pipeline.image_engine import load

            name = wanted.load
            await work.with_wheels(lambda: load(work, assembled, name))
        if wanted.push:
            from envspec.pipeline.image_push import push

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
    from envspec.pipeline.built import with_built

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
