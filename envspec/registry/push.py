"""Blobs and manifests into a registry; what is there already is not sent."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from urllib.parse import quote

from envspec.registry.auth import Access
from envspec.registry.blob import Blob, Descriptor
from envspec.registry.client import Registry
from envspec.registry.faults import AccessRefused, WrongDigest, shortened
from envspec.registry.manifest import ACCEPT, digest_of
from envspec.registry.pieces import Pieces, pieces_of
from envspec.registry.reference import Action, Reference, endpoint
from envspec.registry.tries import passes, persist, refuse
from envspec.registry.upload_answers import is_there, next_location, push_refusal
from envspec.registry.uploads import CHUNK_BYTES, Upload, let_go


class How(Enum):
    """How a blob came to where it has to be."""

    EXISTS = "exists"
    MOUNTED = "mounted"
    UPLOADED = "uploaded"
    LEFT = "left at its own URL"


@dataclass(frozen=True, slots=True)
class Moved:
    """What was done for one blob. sent_bytes: what went to the registry, more than its size where a try broke off."""

    descriptor: Descriptor
    how: How
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sending:
    """How a blob is sent: see `push_blob`."""

    mount_from: tuple[str, ...] = ()
    report: Callable[[int], None] = lambda _: None
    chunk_bytes: int = CHUNK_BYTES


async def push_blob(
    registry: Registry,
    reference: Reference,
    blob: Blob,
    mount_from: Sequence[str] = (),
    report: Callable[[int], None] = lambda _: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Moved:
    """See to it that `reference`'s repository has a blob.

    mount_from: other repositories of the same registry that may have it. report: told of every change of how much is
    there, in bytes; all of it at once where nothing has to be sent. The name is taken literally: `[registry.mirrors]`
    is for reading.

    Raises:
        NetworkError: the registry doesn't take it, or patience has ended. WrongDigest: it finds other bytes.
        ShortBlob: the copy on this machine is not whole.
    """
    sending = Sending(tuple(mount_from), report, chunk_bytes)
    try:
        return await push_pieces(registry, reference, blob.descriptor, partial(pieces_of, blob), sending)
    except WrongDigest as fault:
        found = await asyncio.to_thread(_digest, blob)
        if found == blob.descriptor.digest:
            raise
        raise WrongDigest(
            f"blob {blob.descriptor.digest}: its copy on this machine has the digest {found}",
            hint="the cache is damaged: remove it and build again",
        ) from fault


async def push_pieces(
    registry: Registry, reference: Reference, descriptor: Descriptor, pieces: Pieces, sending: Sending
) -> Moved:
    """`push_blob` for bytes that come from elsewhere."""
    access, report = _access(reference, sending.mount_from), sending.report
    place, http = access.place, registry.http
    url = f"{place.base}/{place.repository}/blobs/{descriptor.digest}"
    try:
        there = await persist(http.patience, http.notice, url, partial(is_there, registry, access, descriptor))
    except AccessRefused:
        if not access.also:
            raise
        # A token server may refuse all because of one repository: then nothing is mounted.
        access = Access(place, Action.PUSH)
        there = await persist(http.patience, http.notice, url, partial(is_there, registry, access, descriptor))
    if there:
        report(descriptor.size_bytes)
        return Moved(descriptor, How.EXISTS)
    location = None
    for name in access.also:
        if location:
            await let_go(registry, access, location)
        location = await persist(
            http.patience, http.notice, url, partial(_mount, registry, access, descriptor.digest, name)
        )
        if location is None:
            report(descriptor.size_bytes)
            return Moved(descriptor, How.MOUNTED)
    upload = Upload(registry, access, descriptor, pieces, location or None, report, sending.chunk_bytes)
    return Moved(descriptor, How.UPLOADED, await upload.run())


async def push_manifest(registry: Registry, reference: Reference, body: bytes, media_type: str) -> str:
    """Put a manifest or an index under `reference`'s tag, or under its digest where it has no tag; its digest.

    To be called when the registry has all that it names: until then the tag names what it named before.

    Raises:
        NetworkError: the registry doesn't take it. WrongDigest: it keeps something else under that name.
    """
    access = _access(reference, ())
    place, http = access.place, registry.http
    digest = digest_of(body, (reference.digest or "sha256:").partition(":")[0])
    if reference.digest not in {None, digest}:
        raise WrongDigest(
            f"{reference}: the manifest to push has the digest {digest}", hint="push it by its own digest, or by a tag"
        )
    name = reference.tag or reference.digest or "latest"
    url = f"{place.base}/{place.repository}/manifests/{name}"

    async def put() -> str:
        answer = await registry.ask(access, "PUT", url, headers={"Content-Type": media_type}, body=body)
        if not 200 <= answer.status < 300:
            refuse(answer, push_refusal(answer, access, name, registry))
        return answer.headers.get("Docker-Content-Digest", "").strip()

    kept = await persist(http.patience, http.notice, url, put)
    kept = kept or await held_digest(registry, reference) or "nothing"
    # A registry may name it by another algorithm than ours: that can't be compared.
    if kept != digest and (kept == "nothing" or kept.partition(":")[0] == digest.partition(":")[0]):
        raise WrongDigest(
            f"{reference}: pushed as {digest}, and the registry keeps {shortened(kept)} there",
            hint="a proxy changes what is sent, or someone pushed the same tag at this moment",
        )
    return digest


async def held_digest(registry: Registry, reference: Reference) -> str | None:
    """The digest that the registry itself (no mirror) has under a name; None where it has nothing, or doesn't say."""
    access = _access(reference, ())
    place, http = access.place, registry.http
    name = reference.tag or reference.digest or "latest"
    url = f"{place.base}/{place.repository}/manifests/{name}"

    async def head() -> str | None:
        answer = await registry.ask(access, "HEAD", url, headers={"Accept": ACCEPT})
        if answer.status in {401, 403} or passes(answer.status):
            refuse(answer, push_refusal(answer, access, name, registry))
        return answer.headers.get("Docker-Content-Digest", "").strip() or None if answer.status == 200 else None

    return await persist(http.patience, http.notice, url, head)


async def _mount(registry: Registry, access: Access, digest: str, source: str) -> str | None:
    """None when the registry has mounted the blob; else where it can be uploaded, empty when that was not told."""
    place = access.place
    url = f"{place.base}/{place.repository}/blobs/uploads/?mount={digest}&from={quote(source, safe='')}"
    answer = await registry.ask(access, "POST", url, headers={"Content-Type": "application/octet-stream"}, body=b"")
    if answer.status == 201:
        return None
    if passes(answer.status):
        refuse(answer, push_refusal(answer, access, digest, registry))
    return next_location(answer, access) if answer.status == 202 else ""


def _access(reference: Reference, mount_from: Sequence[str]) -> Access:
    place = endpoint(reference)
    return Access(place, Action.PUSH, tuple(dict.fromkeys(name for name in mount_from if name != place.repository)))


def _digest(blob: Blob) -> str:
    computed = hashlib.new(blob.descriptor.digest.partition(":")[0])
    for piece in blob.chunks(0):
        computed.update(piece)
    return f"{computed.name}:{computed.hexdigest()}"
