"""Images into a registry, from this machine or another repository: blobs first, the tag last.

A blob is streamed from registry to registry without a local copy; within one registry it is mounted.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from envspec.errors import UsageError
from envspec.io.http_types import RequestError
from envspec.io.tasks import gather_or_cancel
from envspec.registry.client import Registry
from envspec.registry.errors import RegistryError, WrongDigest
from envspec.registry.pull import read_blob
from envspec.registry.push import Pieces, Upload, push_access, push_blob, push_manifest, tag_digest
from envspec.registry.reference import Reference, endpoint_of
from envspec.registry.types import BadManifest, Blob, Descriptor, Manifest, ManifestKind, image_blobs
from envspec.structs import replace

#: Concurrent transfers of blobs.
JOBS: Final = 4
#: Manifests below an index; nested indexes are rare.
_MAX_MANIFESTS: Final = 1000
_MAX_DEPTH: Final = 4


class RemoteBlob(Struct, frozen=True):
    """A blob in another repository. local: a copy on this machine."""

    descriptor: Descriptor
    source: Reference
    local: Blob | None = None


async def copy_blob(
    registry: Registry, target: Reference, blob: RemoteBlob, report: Callable[[int], None] = lambda _: None
) -> None:
    """Ensure that `target`'s repository has a blob of another one, mounted if both are in one registry.

    Raises:
        NetworkError: one of the registries refuses. WrongDigest: the source has other bytes.
    """
    if blob.descriptor.is_foreign:
        report(blob.descriptor.size_bytes)
        return
    source = endpoint_of(blob.source, registry.mirrors)
    mount_from = (source.repository,) if source.base == endpoint_of(target).base else ()
    if blob.local is not None:
        await push_blob(registry, target, blob.local, mount_from, report)
        return
    access = push_access(target, mount_from)
    await Upload(registry, access, blob.descriptor, _checked_pieces(registry, blob), report).run()


async def push_image(
    registry: Registry,
    target: Reference,
    blobs: Sequence[Blob | RemoteBlob],
    documents: Sequence[Manifest],
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Push an image whose blobs are local or in other repositories.

    documents: manifests; the last one gets the tag, after all others are there. If the tag already has its digest,
    nothing is pushed. report: bytes done, bytes in all.

    Raises:
        NetworkError: the registry refuses it. The first error cancels the other uploads.
    """
    *children, last = documents
    if await tag_digest(registry, target) == last.digest:
        return
    size_bytes, done_bytes = sum(blob.descriptor.size_bytes for blob in blobs), 0

    def add(count: int) -> None:
        nonlocal done_bytes
        done_bytes += count
        report(done_bytes, size_bytes)

    def send(blob: Blob | RemoteBlob) -> Awaitable[None]:
        if isinstance(blob, RemoteBlob):
            return copy_blob(registry, target, blob, add)
        return push_blob(registry, target, blob, report=add)

    await gather_or_cancel([send(blob) for blob in blobs], JOBS)
    for child in children:
        by_digest = replace(target, tag=None, digest=child.digest)
        await push_manifest(registry, by_digest, child.body, child.media_type)
    await push_manifest(registry, target, last.body, last.media_type)


async def mirror(
    registry: Registry,
    source: Reference,
    target: Reference,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """Copy an image, or an index with all of its images, under the same digests; the digest.

    target: without a tag it gets the source's, if that has one. report: bytes done, bytes in all.

    Raises:
        UsageError: the target has another digest.
        ImageNotFound, WrongDigest, BadManifest, NetworkError: of one of the registries; the target's tag is unchanged.
    """
    manifest = await registry.manifest(source)
    if target.digest not in {None, manifest.digest}:
        raise UsageError(
            f"{target}: {source} has the digest {manifest.digest}", hint="use a tag for the target, or this digest"
        )
    target = replace(target, tag=target.tag or source.tag, digest=manifest.digest)
    if await tag_digest(registry, target) == manifest.digest:
        return manifest.digest
    documents = await _with_children(registry, source, manifest)
    blobs: dict[str, RemoteBlob] = {}
    for single in documents:
        if single.kind is ManifestKind.MANIFEST:
            found = image_blobs(single, f"{source.name}@{single.digest}")
            blobs |= {blob.digest: RemoteBlob(blob, source) for blob in found}
    await push_image(registry, target, tuple(blobs.values()), documents, report)
    return manifest.digest


async def _with_children(registry: Registry, source: Reference, manifest: Manifest) -> list[Manifest]:
    """All manifests below one, each once and before its index, itself last.

    Raises:
        BadManifest: too many, or too deep.
    """
    found: dict[str, Manifest] = {}

    async def visit(index: Manifest, depth: int) -> None:
        for child in index.children:
            if child.digest in found:
                continue
            if depth == _MAX_DEPTH or len(found) >= _MAX_MANIFESTS:
                raise BadManifest(
                    f"{source}: more than {_MAX_MANIFESTS} manifests, or indexes more than {_MAX_DEPTH} deep",
                    hint="mirror one platform's image by its digest",
                )
            below = await registry.manifest(replace(source, tag=None, digest=child.digest))
            await visit(below, depth + 1)
            found[below.digest] = below

    await visit(manifest, 0)
    return [*found.values(), manifest]


def _checked_pieces(registry: Registry, blob: RemoteBlob) -> Pieces:
    """A blob from its source. The last bytes are yielded after the digest is verified."""
    expected = blob.descriptor
    computed, hashed_bytes = hashlib.new(expected.digest.partition(":")[0]), 0

    async def pieces(start: int) -> AsyncGenerator[bytes, None]:
        nonlocal hashed_bytes
        at = start
        try:
            async with aclosing(read_blob(registry, blob.source, expected, start)) as stream:
                async for piece in stream:
                    # Bytes that are read again after an error are hashed already.
                    new = piece[max(0, hashed_bytes - at) :]
                    computed.update(new)
                    hashed_bytes += len(new)
                    found = f"{computed.name}:{computed.hexdigest()}"
                    if hashed_bytes == expected.size_bytes and found != expected.digest:
                        raise WrongDigest(
                            f"{blob.source.name}: blob {expected.digest}: the received bytes have the digest {found}",
                            hint="don't use it: a proxy changed it, or the registry's copy is damaged",
                        )
                    at += len(piece)
                    yield piece
        except RequestError as error:
            # All retries of the source failed: the upload must not retry.
            raise RegistryError(error.message, hint=error.hint) from error

    return pieces
