"""Two images compared, and base images copied into another registry."""

from __future__ import annotations

import json
import os
from pathlib import Path

from envspec.context import Context, Step
from envspec.errors import StaleLock, UsageError
from envspec.image.diff import ComparedImage, ImageDiff, compared_image, diff_images
from envspec.image.options import ImageOptions, ImageStage
from envspec.io.tasks import run_interruptible
from envspec.models import Lock, Platform
from envspec.operations.image import ImageSession, completed, with_mirrors_of
from envspec.operations.image_source import FoundImage, NoImage, is_in_a_registry, open_image, read_path
from envspec.operations.session import Session
from envspec.registry.reference import parse
from envspec.spec.owner import adopted_source


def diff(first: str, second: str, platform: Platform, context: Context) -> ImageDiff:
    """What a pull of the second image transfers if the first one is in the engine.

    Each is a registry's reference, a layout, a tar, or a lock, whose image is built if it is not in the cache.

    Raises:
        NoImage: one of them is none. NetworkError: its registry does not return it.
    """

    async def read(name: str) -> ComparedImage:
        if (found := read_path(name, platform)) is not None:
            return compared_of(found)
        if (lock := _lock_of(name)) is not None:
            return await _build_lock(name, lock, platform, context)
        async with open_image(name, platform, context) as image:
            return compared_of(image)

    async def read_both() -> tuple[ComparedImage, ComparedImage]:
        return await read(first), await read(second)

    return diff_images(*run_interruptible(read_both()))


def mirror(lock: Lock, target: str, context: Context) -> str:
    """Copy the base image of a lock, by its digest and for all of its platforms; its new name."""
    from envspec.image.base import pinned_base
    from envspec.registry.copy import mirror

    wanted = {}
    for platform in lock.linux_platforms:
        image, pinned = pinned_base(lock, platform)
        wanted[pinned.digest or ""] = parse(f"{image.repository}:{image.tag}").at(pinned.digest or "")
    copied, context = parse(target), with_mirrors_of(lock, context)

    def report(done: int, total: int) -> None:
        context.reporter.progress(Step(ImageStage.PUSHING, 0, 0, done, total))

    async def copy() -> str:
        copies = []
        async with Session(context) as session:
            registry = await session.registry()
            for each in wanted.values():
                digest = await mirror(registry, each, copied, report)
                copies.append(f"{copied.name}@{digest}")
        return "\n".join(copies)

    return run_interruptible(copy())


def _lock_of(name: str) -> Lock | None:
    from envspec.lockfile.folder import find_lock, read_lock

    try:
        folder = find_lock(name, Path())
    except (UsageError, StaleLock) as error:
        if is_in_a_registry(name):
            return None
        # A typo must not become a request to a registry.
        why = error.message if Path(name).exists() else f"{error.message}, and no tar or OCI layout at this path"
        advice = f"name an image in a registry with its tag: python:3.12; for a lock: {error.hint}"
        raise NoImage(name, why, advice) from error
    return read_lock(folder)


async def _build_lock(name: str, lock: Lock, platform: Platform, context: Context) -> ComparedImage:
    from envspec.lockfile.document import identity

    locked = lock.linux_platforms
    if not locked:
        raise NoImage(name, "it has no linux platform")
    chosen = platform if platform in locked else locked[0]
    options = await completed(ImageOptions(lock, identity(lock), (chosen,)), context)
    async with ImageSession(options, context) as session:
        [assembled] = await session.build()
    image = assembled.image
    return compared_image(_name_of(lock) or name, image.id, json.loads(image.manifest), json.loads(image.config))


def _name_of(lock: Lock) -> str:
    """The lock of another tool, of which a lock in the cache was made; empty for any other lock."""
    if (source := adopted_source(lock.directory)) is None:
        return ""
    return os.path.relpath(source)


def compared_of(image: FoundImage) -> ComparedImage:
    """Raises NoImage: its documents are not an image's."""
    try:
        return compared_image(image.name, image.id, image.manifest, json.loads(image.config))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise NoImage(image.name, f"no image that can be read ({type(error).__name__}: {error})") from error
