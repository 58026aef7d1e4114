"""Images from one repository to another, and new images into one: blobs first, the tag last.

A blob goes from registry to registry without touching this machine's disk; within one registry it is mounted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from envspec.errors import UsageError
from envspec.io.http_types import RequestError
from envspec.models import Platform
from envspec.registry.client import Registry
from envspec.registry.errors import RegistryError, WrongDigest
from envspec.registry.pull import image_blobs, pull_manifest, read_blob
from envspec.registry.push import BlobTransfer, Sending, Transfer, push_blob, push_manifest, push_pieces, tag_digest
from envspec.registry.reference import Reference, endpoint_of
from envspec.registry.types import OCI_PLATFORMS, BadManifest, Blob, Descriptor, Manifest, ManifestKind, digest_of

#: Blobs on their way at once.
JOBS: Final = 4
#: Manifests below an index. An index inside of an index is rare, and each names as many more.
_MOST_MANIFESTS: Final = 1000
_DEEPEST: Final = 4


@dataclass(frozen=True, slots=True)
class RemoteBlob:
    """A blob that another repository holds. kept: a copy of it on this machine. is_foreign: see `pull.Row`."""

    descriptor: Descriptor
    source: Reference
    kept: Blob | None = None
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class ManifestBody:
    """A manifest or an index to push. algorithm: of the digest by which others name it."""

    body: bytes
    media_type: str
    algorithm: str = "sha256"

    @property
    def digest(self) -> str:
        """Of its body."""
        return digest_of(self.body, self.algorithm)


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """What stands under the target's name now. moved: what was done for each blob, none where all was there."""

    digest: str
    media_type: str
    moved: tuple[BlobTransfer, ...]


async def copy_blob(
    registry: Registry, target: Reference, blob: RemoteBlob, report: Callable[[int], None] = lambda _: None
) -> BlobTransfer:
    """See to it that `target`'s repository has a blob of another one, mounted where both are of one registry.

    Raises:
        NetworkError: one of the registries refuses, or patience has ended. WrongDigest: the source's bytes are others.
    """
    if blob.is_foreign:
        report(blob.descriptor.size_bytes)
        return BlobTransfer(blob.descriptor, Transfer.LEFT)
    source = endpoint_of(blob.source, registry.mirrors)
    mount_from = (source.repository,) if source.base == endpoint_of(target).base else ()
    if blob.kept is not None:
        return await push_blob(registry, target, blob.kept, mount_from, report)
    pieces = partial(_pieces, registry, blob, _Checked(blob))
    return await push_pieces(registry, target, blob.descriptor, pieces, Sending(mount_from, report))


async def push_image(
    registry: Registry,
    target: Reference,
    blobs: Sequence[Blob | RemoteBlob],
    documents: Sequence[ManifestBody],
    mount_from: Sequence[str] = (),
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[BlobTransfer, ...]:
    """An image whose blobs are here, in other repositories, or both; what was done for each blob.

    documents: manifests, and last what gets the tag: the image's own manifest, or the index of those before it. Until
    all else is there the tag names what it named before; where it names the right thing already, nothing is asked for.
    mount_from: repositories of the same registry that may have the blobs. report: bytes done, bytes in all.

    Raises:
        NetworkError: the registry doesn't take it. The first fault ends the other uploads.
    """
    *children, last = documents
    if await tag_digest(registry, target) == last.digest:
        return ()
    total = _Total(sum(blob.descriptor.size_bytes for blob in blobs), report)

    def send(blob: Blob | RemoteBlob) -> Awaitable[BlobTransfer]:
        if isinstance(blob, RemoteBlob):
            return copy_blob(registry, target, blob, total.add)
        return push_blob(registry, target, blob, mount_from, total.add)

    moved = await _each([partial(send, blob) for blob in blobs])
    for child in children:
        by_digest = replace(target, tag=None, digest=child.digest)
        await push_manifest(registry, by_digest, child.body, child.media_type)
    await push_manifest(registry, target, last.body, last.media_type)
    return moved


async def mirror(
    registry: Registry,
    source: Reference,
    target: Reference,
    platforms: Sequence[Platform] | None = None,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> MirrorResult:
    """Copy an image, or an index with all that it names, under the same digests.

    target: without a tag it gets the source's, and where that has none either the image is there by its digest alone.
    platforms: of an index one platform's manifest can be taken alone, and its digest is then what stands there; an
    index can't be cut, since that would be another digest. report: bytes done, bytes in all.

    Raises:
        UsageError: several platforms, and not all that the index has.
        NotThere, WrongDigest, BadManifest, NetworkError: of one of the registries. The target's tag is as it was.
    """
    manifest = await pull_manifest(registry, source)
    if manifest.kind is ManifestKind.INDEX and platforms is not None:
        manifest = await _of_platforms(registry, source, manifest, platforms)
    if target.digest not in {None, manifest.digest}:
        raise UsageError(
            f"{target}: {source} has the digest {manifest.digest}", hint="name the target by a tag, or by this digest"
        )
    target = replace(target, tag=target.tag or source.tag, digest=manifest.digest)
    if await tag_digest(registry, target) == manifest.digest:
        return MirrorResult(manifest.digest, manifest.media_type, ())
    documents = await _with_children(registry, source, manifest)
    blobs: dict[str, RemoteBlob] = {}
    for single in documents:
        if single.kind is ManifestKind.MANIFEST:
            held = image_blobs(single, f"{source.name}@{single.digest}")
            blobs[held.config.digest] = RemoteBlob(held.config, source)
            blobs |= {
                row.descriptor.digest: RemoteBlob(row.descriptor, source, is_foreign=row.is_foreign)
                for row in held.layers
            }
    moved = await push_image(
        registry,
        target,
        tuple(blobs.values()),
        [ManifestBody(each.body, each.media_type, each.digest.partition(":")[0]) for each in documents],
        report=report,
    )
    return MirrorResult(manifest.digest, manifest.media_type, moved)


async def _of_platforms(
    registry: Registry, source: Reference, index: Manifest, platforms: Sequence[Platform]
) -> Manifest:
    """The index itself when all of its platforms are wanted, else the one platform's manifest."""
    has = set(index.platforms)
    wanted = {"/".join(OCI_PLATFORMS[platform]) for platform in platforms if platform in OCI_PLATFORMS}
    if has and has <= wanted:
        return index
    if len(platforms) != 1:
        raise UsageError(
            f"{source} has {index.platforms_in_words}, and a part of an index has another digest",
            hint="mirror it whole, or one platform alone",
        )
    return await pull_manifest(registry, source, platforms[0])


async def _with_children(registry: Registry, source: Reference, manifest: Manifest) -> list[Manifest]:
    """All manifests below one, each once and before what names it, itself last.

    Raises:
        BadManifest: there are more than any image has.
    """
    found: dict[str, Manifest] = {}

    async def look(at: Manifest, depth: int) -> None:
        for child in at.children:
            if child.digest in found:
                continue
            if depth == _DEEPEST or len(found) >= _MOST_MANIFESTS:
                raise BadManifest(
                    f"{source}: more than {_MOST_MANIFESTS} manifests, or indexes more than {_DEEPEST} deep",
                    hint="mirror one platform's image by its digest",
                )
            below = await registry.manifest(replace(source, tag=None, digest=child.digest))
            await look(below, depth + 1)
            found[below.digest] = below

    await look(manifest, 0)
    return [*found.values(), manifest]


@dataclass(slots=True)
class _Total:
    size_bytes: int
    report: Callable[[int, int], None]
    done_bytes: int = 0

    def add(self, count: int) -> None:
        self.done_bytes += count
        self.report(self.done_bytes, self.size_bytes)


class _Checked:
    """The hash of a blob that passes by. What is read a second time, after a fault, is not counted again."""

    def __init__(self, blob: RemoteBlob) -> None:
        self._blob = blob
        self._hash = hashlib.new(blob.descriptor.digest.partition(":")[0])
        self._size = 0

    def take(self, at: int, piece: bytes) -> None:
        """Bytes from `at` on.

        Raises:
            WrongDigest: they were the last, and it is another blob.
        """
        new = piece[max(0, self._size - at) :]
        self._hash.update(new)
        self._size += len(new)
        if self._size < self._blob.descriptor.size_bytes:
            return
        found = f"{self._hash.name}:{self._hash.hexdigest()}"
        if found != self._blob.descriptor.digest:
            raise WrongDigest(
                f"{self._blob.source.name}: blob {self._blob.descriptor.digest}: the bytes that came have the digest "
                f"{found}",
                hint="a proxy changed it on the way, or the registry's copy is damaged: don't use it",
            )


async def _pieces(registry: Registry, blob: RemoteBlob, checked: _Checked, start: int) -> AsyncGenerator[bytes, None]:
    """A blob from its source. Its last bytes are given when all of them are known to be right."""
    at = start
    try:
        async with aclosing(read_blob(registry, blob.source, blob.descriptor, start)) as stream:
            async for piece in stream:
                checked.take(at, piece)
                at += len(piece)
                yield piece
    except RequestError as fault:
        # Patience with the source has ended; to the upload this is no fault of its own that passes.
        raise RegistryError(fault.message, hint=fault.hint) from fault


async def _each(calls: Sequence[Callable[[], Awaitable[BlobTransfer]]]) -> tuple[BlobTransfer, ...]:
    """All results, a few at a time; the first fault ends the rest."""
    slots = asyncio.Semaphore(JOBS)

    async def call(make: Callable[[], Awaitable[BlobTransfer]]) -> BlobTransfer:
        async with slots:
            return await make()

    tasks = [asyncio.ensure_future(call(make)) for make in calls]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
