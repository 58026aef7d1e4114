"""Two images compared, and base images copied into another registry."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from envspec.context import Context, Step
from envspec.errors import StaleLock, UsageError
from envspec.escaping import excerpt
from envspec.image.diff import ComparedImage, ImageDiff, compared_image, diff_images
from envspec.image.options import ImageOptions, ImageStage
from envspec.io.files import read_untrusted
from envspec.io.tasks import run_interruptible
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Lock, Platform
from envspec.operations.image import ImageSession, with_built, with_mirrors_of
from envspec.operations.session import Session
from envspec.registry.client import CONFIG_BYTES
from envspec.registry.reference import is_digest, parse
from envspec.registry.types import OCI_PLATFORMS, ManifestKind


class NoImage(UsageError, code="no-such-image"):
    """A name that is no image, layout, tar or lock, or that can't be read."""

    def __init__(self, name: str, why: str, advice: str = "") -> None:
        forms = "name an image in a registry, an OCI layout, a tar of `image build --output`, or a lock"
        super().__init__(f"{name}: {why}", hint=advice or forms)


def diff(first: str, second: str, platform: Platform, context: Context) -> ImageDiff:
    """What a pull of the second image transfers if the first one is in the engine.

    Each is a registry's reference, a layout, a tar, or a lock, whose image is built if it is not in the cache.

    Raises:
        NoImage: one of them is none. NetworkError: its registry does not return it.
    """

    async def read(name: str) -> ComparedImage:
        if (found := _read_path(name, platform)) is not None:
            return found
        if (lock := _lock_of(name)) is not None:
            return await _build_lock(name, lock, platform, context)
        return await _read_registry(name, platform, context)

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


def _read_path(name: str, platform: Platform) -> ComparedImage | None:
    """A layout or a tar; None where the name is neither."""
    path = Path(name)
    if (path / "oci-layout").is_file():
        return _read_layout(name, platform, lambda inner: read_untrusted(path / inner, CONFIG_BYTES))
    if not path.is_file() or path.name == LOCK_FILE:
        return None
    try:
        with tarfile.open(path) as archive:

            def read(inner: str) -> bytes:
                member = archive.extractfile(inner)
                if member is None:
                    raise KeyError(inner)
                return member.read(CONFIG_BYTES)

            return _read_layout(name, platform, read)
    except (tarfile.TarError, OSError) as error:
        why = str(error).partition("\n")[0].rstrip(" (-:")
        raise NoImage(name, f"no tar that can be read: {why}") from error


def _read_layout(name: str, platform: Platform, read: Callable[[str], bytes]) -> ComparedImage:
    """From a layout, whose files `read` gives."""
    try:
        row = json.loads(read("index.json"))["manifests"][0]
        document = json.loads(read(_path(row["digest"])))
        if "manifests" in document:
            document = json.loads(read(_path(_child(name, document, platform))))
        identity = document["config"]["digest"]
        return compared_image(name, identity, document, json.loads(read(_path(identity))))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise NoImage(name, f"no image that can be read ({type(error).__name__}: {error})") from error


def _child(name: str, index: Mapping[str, Any], platform: Platform) -> str:
    wanted = OCI_PLATFORMS.get(platform)
    for row in index["manifests"]:
        named = row.get("platform", {})
        if (named.get("os"), named.get("architecture")) == wanted:
            return str(row["digest"])
    raise NoImage(name, f"nothing for {platform.value} in it: choose by --platform")


def _path(digest: str) -> str:
    if not is_digest(digest):
        raise ValueError(f"{excerpt(digest)!r} is not a digest")
    return f"blobs/{digest.replace(':', '/', 1)}"


def _lock_of(name: str) -> Lock | None:
    from envspec.lockfile.folder import find_lock, read_lock

    try:
        folder = find_lock(name, Path())
    except (UsageError, StaleLock) as error:
        if _is_in_a_registry(name):
            return None
        # A typo must not become a request to a registry.
        why = error.message if Path(name).exists() else f"{error.message}, and no tar or OCI layout at this path"
        advice = f"name an image in a registry with its tag: python:3.12; for a lock: {error.hint}"
        raise NoImage(name, why, advice) from error
    return read_lock(folder)


def _is_in_a_registry(name: str) -> bool:
    """Whether a name has a host, a tag or a digest; docker's shortest names look like a lock's."""
    if name.startswith((".", "/", "~")) or Path(name).exists():
        return False
    first, slash, _ = name.partition("/")
    has_host = bool(slash) and (first == "localhost" or "." in first)
    return has_host or ":" in name or "@" in name


async def _build_lock(name: str, lock: Lock, platform: Platform, context: Context) -> ComparedImage:
    from envspec.lockfile.document import identity

    locked = lock.linux_platforms
    if not locked:
        raise NoImage(name, "it has no linux platform")
    chosen = platform if platform in locked else locked[0]
    options = await with_built(ImageOptions(lock, identity(lock), (chosen,)), context)
    async with ImageSession(options, context) as session:
        [assembled] = await session.build()
    image = assembled.image
    return compared_image(name, image.id, json.loads(image.manifest), json.loads(image.config))


async def _read_registry(name: str, platform: Platform, context: Context) -> ComparedImage:
    reference = parse(name)
    async with Session(context) as session:
        registry = await session.registry()
        manifest = await registry.manifest(reference)
        if manifest.kind is ManifestKind.INDEX:
            child = manifest.child(platform)
            if child is None:
                raise NoImage(name, f"it has {manifest.platforms_in_words}: choose by --platform")
            reference = reference.at(child.digest)
            manifest = await registry.manifest(reference)
        manifest.check_is_single(name)
        config = await registry.config(reference, manifest)
    try:
        return compared_image(name, manifest.config, json.loads(manifest.body), config)
    except (LookupError, TypeError, ValueError) as error:
        raise NoImage(name, f"no image that can be read ({type(error).__name__}: {error})") from error
