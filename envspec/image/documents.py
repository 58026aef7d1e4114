"""Manifests and configs of base images by digest: kept once they were asked for, so that the next build asks nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from envspec.effects.http_faults import RequestFault
from envspec.errors import NetworkError
from envspec.fetch.values import Network
from envspec.image.blobs import BlobStore
from envspec.registry.client import Registry
from envspec.registry.manifest import Manifest, read_json, read_manifest
from envspec.registry.reference import Reference

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
    except RequestFault as fault:
        raise NetworkError(
            f"the base image {reference.name} can't be asked for: {fault.message}",
            hint=f"{fault.hint}; where another registry stands in for it: `--mirror {reference.registry}=HOST`",
        ) from fault
