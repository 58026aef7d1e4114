"""The base image's config and layers, by the digest that the lock pins: from the cache, else from its registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from envspec.errors import UsageError
from envspec.image.config import BadBase, Base, read_config
from envspec.image.layer import Layer
from envspec.model import BaseImage, Lock, PinnedDigest, Platform
from envspec.registry.faults import NotThere
from envspec.registry.manifest import Kind, Manifest
from envspec.registry.pull import contents
from envspec.registry.reference import Reference, is_digest, parse


class Documents(Protocol):
    """Manifests and configs by digest, checked: what was asked for once is kept."""

    async def manifest(self, reference: Reference) -> Manifest: ...

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]: ...


async def base_on(lock: Lock, platform: Platform, documents: Documents) -> Base:
    """The base of one platform's image.

    Raises:
        UsageError: the lock has no base image, or none by digest. NotThere: the registry has it no more.
        BadBase: it can't be read.
    """
    image, pinned = pinned_on(lock, platform)
    name = f"{image.repository}:{image.tag}" if image.tag else image.repository
    reference = parse(image.repository).at(pinned.digest or "")
    manifest = await documents.manifest(reference)
    if manifest.kind is Kind.INDEX:
        child = manifest.child(platform)
        if child is None:
            raise NotThere(
                f"{name}@{pinned.digest} is not published for {platform.value}",
                hint=f"it has {manifest.platforms_in_words or 'no platform'}; lock again with another base",
            )
        reference = reference.at(child.digest)
        manifest = await documents.manifest(reference)
    manifest.check_is_single(str(reference))
    config = read_config(await documents.config(reference, manifest), f"{name}@{pinned.digest}")
    return Base(name, pinned.digest or "", manifest.digest, config, _layers(manifest, config, str(reference)))


def pinned_on(lock: Lock, platform: Platform) -> tuple[BaseImage, PinnedDigest]:
    """The base image and its digest for a platform.

    Raises:
        UsageError: there is none; says what to do.
    """
    if lock.base_image is None:
        raise UsageError(
            f"the lock {lock.name} names no base image, so there is nothing to put an image on",
            hint="name one in the spec, by [cuda] or by `[image] base`, and lock again",
        )
    if "://" in lock.base_image.repository:
        # A spec can't say so: whoever changed the lock would have the login sent over plain http.
        raise UsageError(
            f"the lock {lock.name} names its base image by a URL", hint="lock again: an image is named by its host"
        )
    pinned = next((row for row in lock.base_image.digests if row.platform is platform), None)
    if pinned is None or pinned.digest is None:
        raise UsageError(
            f"the digest of {lock.base_image.repository}:{lock.base_image.tag} on {platform.value} is not in the lock",
            hint="run `envspec lock SPEC` where its registry is reached, or name the base by digest in [image] base",
        )
    return lock.base_image, pinned


def _layers(manifest: Manifest, config: Mapping[str, Any], where: str) -> tuple[Layer, ...]:
    rows = contents(manifest, where).layers
    if foreign := next((row.descriptor.digest for row in rows if row.is_foreign), None):
        raise BadBase(
            f"{where}: its layer {foreign} is named by URLs of its owner's, and envspec fetches layers from the "
            "image's registry alone",
            hint="take another base image",
        )
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, Mapping) else None
    if not isinstance(diff_ids, list) or len(rows) != len(diff_ids) or not all(map(is_digest, diff_ids)):
        raise BadBase(f"{where}: its layers are not those of its config", hint="the image is damaged; take another one")
    return tuple(Layer(diff_id, row.descriptor, "") for diff_id, row in zip(diff_ids, rows, strict=True))
