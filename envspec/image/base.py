"""The base image's manifest and config."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from envspec.context import Connectivity
from envspec.errors import OfflineMiss, UsageError
from envspec.image.config import BadBase, Base, read_config
from envspec.image.layers.store import BlobStore
from envspec.image.layers.types import Layer
from envspec.io.http_types import RequestError
from envspec.models import BaseImage, Lock, PinnedDigest, Platform
from envspec.registry.client import Registry
from envspec.registry.errors import ImageNotFound
from envspec.registry.reference import Reference, is_digest, parse
from envspec.registry.types import Manifest, ManifestKind, image_blobs, read_json, read_manifest


async def base_at(image: BaseImage, pinned: PinnedDigest, documents: ManifestCache) -> Base:
    """A base on the platform of one of its digests.

    Raises:
        ImageNotFound: the registry does not have it any more. BadBase: it can't be read.
    """
    name, platform = image.name, pinned.platform
    reference = parse(image.repository).at(pinned.digest or "")
    manifest = await documents.manifest(reference)
    if manifest.kind is ManifestKind.INDEX:
        child = manifest.child(platform)
        if child is None:
            raise ImageNotFound(
                f"{name}@{pinned.digest} is not published for {platform.value}",
                hint=f"lock again with another base; it has {manifest.platforms_in_words or 'no platform'}",
            )
        reference = reference.at(child.digest)
        manifest = await documents.manifest(reference)
    manifest.check_is_single(str(reference))
    config = read_config(await documents.config(reference, manifest), f"{name}@{pinned.digest}")
    return Base(name, pinned.digest or "", manifest.digest, config, _layers(manifest, config, str(reference)))


def pinned_base(lock: Lock, platform: Platform) -> tuple[BaseImage, PinnedDigest]:
    """The base image and its digest for a platform. Raises UsageError: there is none."""
    lock = lock.on(platform)
    if lock.base_image is None:
        raise UsageError(
            f"the lock {lock.name} has no base image to build on",
            hint="set [cuda] or `[image] base` in the spec, and lock again",
        )
    if "://" in lock.base_image.repository:
        # A spec can't contain it: a changed lock could send the login over plain http.
        raise UsageError(
            f"the base image of the lock {lock.name} is a URL", hint="lock again: an image's name begins with its host"
        )
    pinned = next((row for row in lock.base_image.digests if row.platform is platform), None)
    if pinned is None or pinned.digest is None:
        raise UsageError(
            f"the digest of {lock.base_image.repository}:{lock.base_image.tag} on {platform.value} is not in the lock",
            hint="run `envspec lock SPEC` on a machine that reaches its registry, or set [image] base to a digest",
        )
    return lock.base_image, pinned


def _layers(manifest: Manifest, config: Mapping[str, Any], where: str) -> tuple[Layer, ...]:
    _, *rows = image_blobs(manifest, where)
    if foreign := next((row.digest for row in rows if row.is_foreign), None):
        raise BadBase(
            f"{where}: its layer {foreign} has URLs outside of the registry; envspec fetches layers from the image's "
            "registry only",
            hint="select another base image",
        )
    diff_ids = (config.get("rootfs") or {}).get("diff_ids")
    if not isinstance(diff_ids, list) or len(rows) != len(diff_ids) or not all(map(is_digest, diff_ids)):
        raise BadBase(f"{where}: its layers differ from its config", hint="select another image: this one is damaged")
    return tuple(Layer(diff_id, row, "") for diff_id, row in zip(diff_ids, rows, strict=True))


_DOCUMENT: Final = "application/octet-stream"


class ManifestCache(Struct, frozen=True):
    """Checked manifests and configs by digest, from the cache or a registry.

    opened: returns the client. asking: called before a request to a registry.
    """

    blobs: BlobStore
    opened: Callable[[], Awaitable[Registry]]
    connectivity: Connectivity
    asking: Callable[[], None]

    async def manifest(self, reference: Reference) -> Manifest:
        """The manifest of a reference with a digest.

        Raises:
            NetworkError: the request failed, or the manifest is not in the cache with --offline.
        """

        async def fetch(registry: Registry) -> bytes:
            return (await registry.manifest(reference)).body

        digest = reference.digest or ""
        body = await self._read(digest, str(reference), reference, fetch)
        return read_manifest(body, "", where=str(reference), algorithm=digest.partition(":")[0])

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]:
        """The config of a manifest, parsed. Raises as `manifest`."""
        where = f"{reference.name}: config {manifest.config}"
        body = await self._read(
            manifest.config, where, reference, lambda registry: registry.config_bytes(reference, manifest)
        )
        return read_json(body, _DOCUMENT, where=where)

    async def _read(
        self, digest: str, what: str, reference: Reference, fetch: Callable[[Registry], Awaitable[bytes]]
    ) -> bytes:
        if (body := self.blobs.read(digest)) is not None:
            return body
        if self.connectivity is Connectivity.OFFLINE:
            raise OfflineMiss(what)
        self.asking()
        registry = await self.opened()
        try:
            body = await fetch(registry)
        except RequestError as error:
            # A lock names the original registry, which this machine may not reach.
            error.restate(
                f"the base image {reference.name} can't be read: {error.message}",
                f"{error.hint}; if another registry has a copy: `--mirror {reference.registry}=HOST`",
            )
            raise
        self.blobs.write(digest, body)
        return body
