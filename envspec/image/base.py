"""The base image's manifest and config."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from envspec.errors import NetworkError, UsageError
from envspec.fetch.types import Network
from envspec.image.config import BadBase, Base, read_config
from envspec.image.layers.store import BlobStore
from envspec.image.layers.types import Layer
from envspec.io.http_types import RequestError
from envspec.models import BaseImage, Lock, PinnedDigest, Platform
from envspec.registry.client import Registry
from envspec.registry.errors import ImageNotFound
from envspec.registry.pull import image_blobs
from envspec.registry.reference import Reference, is_digest, parse
from envspec.registry.types import Manifest, ManifestKind, read_json, read_manifest


class Documents(Protocol):
    """Manifests and configs by digest, checked: what was asked for once is kept."""

    async def manifest(self, reference: Reference) -> Manifest: ...

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]: ...


async def base_on(lock: Lock, platform: Platform, documents: Documents) -> Base:
    """The base of one platform's image.

    Raises:
        UsageError: the lock has no base image, or none by digest. ImageNotFound: the registry has it no more.
        BadBase: it can't be read.
    """
    image, pinned = pinned_on(lock, platform)
    name = f"{image.repository}:{image.tag}" if image.tag else image.repository
    reference = parse(image.repository).at(pinned.digest or "")
    manifest = await documents.manifest(reference)
    if manifest.kind is ManifestKind.INDEX:
        child = manifest.child(platform)
        if child is None:
            raise ImageNotFound(
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
    rows = image_blobs(manifest, where).layers
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


_DOCUMENT: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class KeptDocuments:
    """`base.Documents` out of the cache, and what it lacks out of a registry.

    opened: the client, made when needed. asking: told before a registry is asked.
    """

    blobs: BlobStore
    opened: Callable[[], Awaitable[Registry]]
    network: Network
    asking: Callable[[], None]

    async def manifest(self, reference: Reference) -> Manifest:
        """The manifest that `reference` names by digest.

        Raises:
            NetworkError: it is not to be had, or not in the cache where nothing may be fetched.
        """
        digest = reference.digest or ""
        body = self.blobs.read(digest)
        if body is not None:
            return read_manifest(body, "", where=str(reference), algorithm=digest.partition(":")[0])
        registry = await self._registry(str(reference))
        with _reaching(reference):
            found = await registry.manifest(reference)
        self.blobs.keep(found.digest, found.body)
        return found

    async def config(self, reference: Reference, manifest: Manifest) -> Mapping[str, object]:
        """The config that a manifest names, parsed. Raises as `manifest` does."""
        where = f"{reference.name}: config {manifest.config}"
        body = self.blobs.read(manifest.config)
        if body is None:
            registry = await self._registry(where)
            with _reaching(reference):
                body = await registry.config_bytes(reference, manifest)
            self.blobs.keep(manifest.config, body)
        return read_json(body, _DOCUMENT, where=where)

    async def _registry(self, what: str) -> Registry:
        if self.network is Network.OFFLINE:
            raise NetworkError(
                f"{what} is not in the cache, and --offline forbids asking its registry",
                hint="run once without --offline",
            )
        self.asking()
        return await self.opened()


@contextmanager
def _reaching(reference: Reference) -> Iterator[None]:
    """A lock names the original registry, which need not be one that this machine reaches: says what helps."""
    try:
        yield
    except RequestError as fault:
        raise NetworkError(
            f"the base image {reference.name} can't be asked for: {fault.message}",
            hint=f"{fault.hint}; where another registry stands in for it: `--mirror {reference.registry}=HOST`",
        ) from fault
