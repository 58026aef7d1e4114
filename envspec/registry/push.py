"""Blobs and manifests into a registry.

Source: OCI distribution specification 1.1, "Pushing blobs"; what docker-registry 2.8 does beside it stands where it is
dealt with.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from envspec.credentials import shown
from envspec.errors import EnvspecError, NetworkError
from envspec.io.http_types import Response
from envspec.registry.auth import RepositoryAccess
from envspec.registry.client import Registry, Retry, RetryableError, is_transient_status, raise_refusal, with_retries
from envspec.registry.errors import (
    AccessRefused,
    ImageNotFound,
    RegistryError,
    WrongDigest,
    error_text,
    refusal,
    shortened,
)
from envspec.registry.reference import Action, Reference, endpoint_of
from envspec.registry.types import ACCEPT, Blob, Descriptor, digest_of


async def blob_exists(registry: Registry, access: RepositoryAccess, descriptor: Descriptor) -> bool:
    """Whether the registry has a blob in this repository."""
    endpoint = access.endpoint
    answer = await registry.request(access, "HEAD", f"{endpoint.base}/{endpoint.repository}/blobs/{descriptor.digest}")
    if answer.status in {401, 403} or is_transient_status(answer.status):
        raise_refusal(answer, push_refusal(answer, access, descriptor.digest, registry))
    length = answer.headers.get("Content-Length")
    return answer.status == 200 and (length is None or length == str(descriptor.size_bytes))


def next_location(answer: Response, access: RepositoryAccess, current: str | None = None) -> str:
    """Where an upload goes on; `current` where the answer doesn't say.

    It may be on another host, which gets the blob and no login: `Endpoint.may_name` says which.

    Raises:
        RegistryFault: nowhere, or where nothing may be sent.
    """
    endpoint = access.endpoint
    location = answer.headers.get("Location") or current
    if not location:
        raise RegistryError(
            f"{endpoint.registry}: it begins an upload and doesn't say where",
            hint=f"is {endpoint.base} a registry, or a proxy that takes the `Location` header away?",
        )
    try:
        target = urljoin(answer.url, location)
        parts = urlsplit(target)
        host = parts.hostname or ""
    except ValueError:
        target, host = "", ""
        parts = urlsplit(target)
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc:
        raise RegistryError(
            f"{endpoint.registry}: it wants an upload at something that is no URL",
            hint="tell whoever runs the registry: its `Location` is wrong",
        )
    if not endpoint.may_name(target):
        plain = "plain http" if parts.scheme == "http" else "a service of this machine's own"
        raise RegistryError(
            f"{endpoint.registry}: it wants an upload at {shown(target)}, which is {plain}",
            hint="behind a proxy that ends TLS a registry has to be told so: X-Forwarded-Proto, or relative URLs",
        )
    return urldefrag(target).url


def received_bytes(answer: Response) -> int | None:
    """How many bytes the registry has of an upload, from `Range: 0-<last byte>`; None where it doesn't say.

    docker-registry says `0-0` of none as well as of one. No chunk has one byte, so that it means none.
    """
    found = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", answer.headers.get("Range", "").strip())
    if found is None:
        return None
    return int(found[1]) + 1 if int(found[1]) else 0


def push_refusal(answer: Response, access: RepositoryAccess, asked: str, registry: Registry) -> RegistryError:
    """The error for an answer that takes nothing."""
    endpoint, said = access.endpoint, error_text(answer.body)
    name = f"{endpoint.registry}/{endpoint.repository}"
    if answer.status == 404:
        return ImageNotFound(
            f"{name}: the registry has no such repository{f' ({said})' if said else ''}",
            hint="check its spelling; some registries want a repository to be made before the first push",
        )
    if answer.status == 405:
        return RegistryError(
            f"{name}: the registry takes nothing (HTTP 405{f', {said}' if said else ''})",
            hint="it is read-only, or a mirror of another one: push to the original",
        )
    if answer.status == 413:
        return RegistryError(
            f"{name}: {asked} is larger than what is let through (HTTP 413{f', {said}' if said else ''})",
            hint="a proxy in front of the registry has a limit on requests (nginx: client_max_body_size)",
        )
    return refusal(answer, endpoint, asked, registry.login_source(access), access.action)


#: What is read at once in a thread, in bytes.
_READ_BYTES: Final = 1024 * 1024

#: Gives a blob's bytes from a position on. It never gives a byte that is not the blob's without an error at its end.
Pieces = Callable[[int], AsyncGenerator[bytes, None]]


class TruncatedBlob(EnvspecError):
    """A blob of this machine's that ends before its size."""

    exit_code = 1

    def __init__(self, descriptor: Descriptor, found: int) -> None:
        super().__init__(
            f"blob {descriptor.digest}: its copy here has {found} bytes of {descriptor.size_bytes}",
            hint="the cache is damaged: remove it and build again",
        )


async def read_ahead(blob: Blob, start: int) -> AsyncGenerator[bytes, None]:
    """Read a blob in a thread, one piece ahead of what is sent, in pieces of about 1 MiB."""
    iterator = blob.chunks(start)
    ahead = asyncio.ensure_future(asyncio.to_thread(_gather, iterator))
    try:
        while data := await asyncio.shield(ahead):
            ahead = asyncio.ensure_future(asyncio.to_thread(_gather, iterator))
            yield data
    finally:
        # The thread can't be stopped, and a generator can't be closed while it runs.
        await asyncio.wait({ahead})
        ahead.exception()
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def _gather(iterator: Iterator[bytes]) -> bytes:
    """About 1 MiB of what comes; empty at the end. A recipe's pieces may be tiny ones."""
    found, size = [], 0
    for piece in iterator:
        found.append(piece)
        size += len(piece)
        if size >= _READ_BYTES:
            break
    return found[0] if len(found) == 1 else b"".join(found)


class UploadStream:
    """A blob that is read on from where the last request ended, or from elsewhere after a fault."""

    def __init__(self, descriptor: Descriptor, pieces: Pieces) -> None:
        self._descriptor = descriptor
        self._pieces = pieces
        self._stream: AsyncGenerator[bytes, None] | None = None
        self._rest = memoryview(b"")
        #: Where the stream stands; None while it is read, and after that was broken off.
        self._at: int | None = None

    async def take(self, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` to `end`.

        Raises:
            ShortBlob: there are less.
        """
        if self._stream is None or self._at != start:
            await self.close()
            self._stream, self._rest = self._pieces(start), memoryview(b"")
        at = start
        while at < end:
            if not self._rest:
                self._at = None
                self._rest = memoryview(await anext(self._stream, b""))
                if not self._rest:
                    raise TruncatedBlob(self._descriptor, at)
            part, self._rest = self._rest[: end - at], self._rest[end - at :]
            at += len(part)
            self._at = at
            yield part

    async def close(self) -> None:
        """Let go of what it reads from."""
        stream, self._stream, self._at = self._stream, None, None
        if stream is not None:
            await stream.aclose()


#: 500 MB into docker-registry 2.8 on loopback cost, in CPU seconds of both sides: 2.6 in one request, 2.9 in chunks of
#: 64 MiB, 3.1 of 16 MiB, 4.2 of 4 MiB. Some proxies let 100 MB through in one request.
CHUNK_BYTES: Final = 64 * 1024 * 1024
#: Up to this size a blob is sent whole: a request less, and little to send again.
_WHOLE_BYTES: Final = 4 * 1024 * 1024
#: Proxies with a limit on requests rarely go below this (nginx's own is 1 MiB).
_LEAST_CHUNK_BYTES: Final = 1024 * 1024
#: For the last word to a registry, seconds: it may be what the push fails of.
_LET_GO_S: Final = 1.0
#: How many chunks of a blob a registry may keep next to nothing of: all of it would be sent for ever.
_SHORT: Final = 16
_OCTETS: Final = {"Content-Type": "application/octet-stream"}
#: What a registry that takes no chunks says to the first one.
_NO_CHUNKS: Final = frozenset({400, 404, 405, 411, 415, 501})


class UploadMode(Enum):
    """How a blob is sent."""

    CHUNKS = "chunks"
    WHOLE = "whole"


async def cancel_upload(registry: Registry, access: RepositoryAccess, location: str) -> None:
    """Have a registry forget an upload that nobody goes on with; where it does not listen, it will after its own time.

    Also on the way out of a task that is cancelled.
    """
    with contextlib.suppress(NetworkError, asyncio.TimeoutError):
        await asyncio.wait_for(registry.request(access, "DELETE", location), _LET_GO_S)


class _Lost(RetryableError):
    """The registry doesn't go on with this upload: it has to be begun anew."""


@dataclass(slots=True)
class Upload:
    """One blob on its way. `run` ends when the registry has it.

    location: of an upload that has begun already, by a mount that was not granted. report: told of every change of how
    much has gone, in bytes; negative where some of it has to go again. sent_bytes: what went twice counts twice.
    """

    registry: Registry
    access: RepositoryAccess
    descriptor: Descriptor
    pieces: Pieces
    location: str | None = None
    report: Callable[[int], None] = lambda _: None
    chunk_bytes: int = CHUNK_BYTES
    sent_bytes: int = 0
    _cursor: UploadStream = field(init=False)
    _way: UploadMode = field(init=False)
    _offset: int = 0
    _told: int = 0
    _is_sure: bool = True
    _begun: int = 0
    _wrong: int = 0
    _short: int = 0

    def __post_init__(self) -> None:
        self._cursor = UploadStream(self.descriptor, self.pieces)
        self._way = UploadMode.WHOLE if self.descriptor.size_bytes <= _WHOLE_BYTES else UploadMode.CHUNKS

    @property
    def _what(self) -> str:
        endpoint = self.access.endpoint
        return f"{endpoint.registry}/{endpoint.repository}: blob {self.descriptor.digest}"

    async def run(self) -> int:
        """Send it; the bytes that went.

        Raises:
            NetworkError: the registry doesn't take it, or patience has ended.
            WrongDigest: twice the registry found other bytes than the digest says.
        """
        http = self.registry.http
        tries = Retry(http.timeouts, http.on_retry, self._what)
        try:
            while True:
                try:
                    if await self._step():
                        self.location = None
                        return self.sent_bytes
                except (NetworkError, RetryableError) as fault:
                    await self._take_in(fault, tries)
        finally:
            await self._leave()
            await self._cursor.close()

    async def _step(self) -> bool:
        """The next request; whether the registry has the blob now."""
        if self.location is None:
            # An answer that got lost may have been the last one.
            if self._begun and await blob_exists(self.registry, self.access, self.descriptor):
                return True
            await self._begin()
        elif not self._is_sure:
            await self._find_out(self.location)
        elif self._way is UploadMode.WHOLE or self._offset == self.descriptor.size_bytes:
            await self._commit(self.location)
            return True
        else:
            await self._send_chunk(self.location)
        return False

    async def _take_in(self, fault: NetworkError | RetryableError, tries: Retry) -> None:
        reached = self._offset
        if isinstance(fault, _Lost) or (self._way is UploadMode.WHOLE and self.location is not None):
            await self._leave()
            self._stand_at(0)
        self._is_sure = self.location is None
        await tries.after(fault, reached)

    async def _begin(self) -> None:
        endpoint = self.access.endpoint
        self._begun += 1
        answer = await self.registry.request(
            self.access,
            "POST",
            f"{endpoint.base}/{endpoint.repository}/blobs/uploads/",
            headers=_OCTETS,
            body=b"",
        )
        if answer.status != 202:
            raise_refusal(answer, self._refusal(answer))
        least = answer.headers.get("OCI-Chunk-Min-Length", "")
        if re.fullmatch(r"[0-9]{1,12}", least):
            self.chunk_bytes = max(self.chunk_bytes, int(least))
        self.location = next_location(answer, self.access)

    async def _send_chunk(self, location: str) -> None:
        start = self._offset
        end = min(start + self.chunk_bytes, self.descriptor.size_bytes)
        answer = await self.registry.request(
            self.access,
            "PATCH",
            location,
            headers=_OCTETS | {"Content-Range": f"{start}-{end - 1}"},
            body=self.registry.http.streamed(lambda: self._going(start, end), end - start),
        )
        if 200 <= answer.status < 300:
            reached = received_bytes(answer)
            reached = end if reached is None else reached
            self._short += reached < end and reached - start < _LEAST_CHUNK_BYTES
            if not start < reached <= end or self._short > _SHORT:
                raise _Lost(self._fault(f"says that it has {reached} bytes after {end} were sent"))
            self.location = next_location(answer, self.access, location)
            self._stand_at(reached)
            return
        self._stand_at(start)
        if answer.status == 413 and self.chunk_bytes > _LEAST_CHUNK_BYTES:
            self.chunk_bytes = max(self.chunk_bytes // 4, _LEAST_CHUNK_BYTES)
        elif answer.status == 416:
            raise RetryableError(self._fault("refuses the place at which a chunk begins"), 0.0)
        elif start == 0 and self._begun <= 1 and answer.status in _NO_CHUNKS:
            await self._leave()
            self._way = UploadMode.WHOLE
        else:
            self._give_up(answer)

    async def _commit(self, location: str) -> None:
        """The last request, with the whole blob where no chunks went."""
        size = self.descriptor.size_bytes if self._way is UploadMode.WHOLE else 0
        mark = "&" if "?" in location else "?"
        answer = await self.registry.request(
            self.access,
            "PUT",
            f"{location}{mark}digest={self.descriptor.digest}",
            headers=_OCTETS,
            body=self.registry.http.streamed(lambda: self._going(0, size), size) if size else b"",
            # A registry may copy a blob of gigabytes before it answers.
            answer_s=self.registry.http.timeouts.total_s,
        )
        if not 200 <= answer.status < 300:
            self._give_up(answer)
        named = answer.headers.get("Docker-Content-Digest", "").strip()
        if named and named != self.descriptor.digest:
            raise WrongDigest(
                f"{self._what}: the registry names it {shortened(named)}",
                hint="a proxy in between answers for something else, or the registry is broken",
            )

    async def _find_out(self, location: str) -> None:
        """Ask how much the registry has."""
        answer = await self.registry.request(self.access, "GET", location)
        if answer.status in {401, 403} or is_transient_status(answer.status):
            raise_refusal(answer, self._refusal(answer))
        reached = received_bytes(answer) if 200 <= answer.status < 300 else None
        self._is_sure = True
        if reached is None or reached > self.descriptor.size_bytes:
            await self._leave()
            reached = 0
        else:
            self.location = next_location(answer, self.access, location)
        self._stand_at(reached)

    def _give_up(self, answer: Response) -> None:
        """Raise what an answer means that is none of those in which an upload goes on."""
        said = error_text(answer.body)
        if said.startswith("DIGEST_INVALID"):
            self._wrong += 1
            wrong = WrongDigest(
                f"{self._what}: the registry finds another digest in the bytes that came ({said})",
                hint="a proxy changes what is sent, or the copy on this machine is damaged",
            )
            if self._wrong > 1:
                raise wrong
            raise _Lost(wrong)
        if answer.status in {400, 404, 409, 410, 416}:
            raise _Lost(
                self._fault(f"doesn't go on with the upload (HTTP {answer.status}{': ' if said else ''}{said})")
            )
        raise_refusal(answer, self._refusal(answer))

    async def _going(self, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        self._stand_at(start)
        async with contextlib.aclosing(self._cursor.take(start, end)) as pieces:
            async for piece in pieces:
                yield piece
                self.sent_bytes += len(piece)
                self._tell(self._told + len(piece))

    def _stand_at(self, offset: int) -> None:
        self._offset = offset
        self._tell(offset)

    def _tell(self, position: int) -> None:
        if position != self._told:
            self.report(position - self._told)
            self._told = position

    async def _leave(self) -> None:
        """End an upload that is not to be gone on with, if one has begun."""
        location, self.location = self.location, None
        if location is not None:
            await cancel_upload(self.registry, self.access, location)

    def _fault(self, does: str) -> RegistryError:
        return RegistryError(
            f"{self._what}: the registry {does}", hint="try again; if it stays, tell whoever runs the registry"
        )

    def _refusal(self, answer: Response) -> RegistryError:
        return push_refusal(answer, self.access, self.descriptor.digest, self.registry)


class Transfer(Enum):
    """How a blob came to where it has to be."""

    EXISTS = "exists"
    MOUNTED = "mounted"
    UPLOADED = "uploaded"
    LEFT = "left at its own URL"


@dataclass(frozen=True, slots=True)
class BlobTransfer:
    """What was done for one blob. sent_bytes: what went to the registry, more than its size where a try broke off."""

    descriptor: Descriptor
    how: Transfer
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
) -> BlobTransfer:
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
        return await push_pieces(registry, reference, blob.descriptor, partial(read_ahead, blob), sending)
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
) -> BlobTransfer:
    """`push_blob` for bytes that come from elsewhere."""
    access, report = _access(reference, sending.mount_from), sending.report
    endpoint, http = access.endpoint, registry.http
    url = f"{endpoint.base}/{endpoint.repository}/blobs/{descriptor.digest}"
    try:
        there = await with_retries(
            http.timeouts, http.on_retry, url, partial(blob_exists, registry, access, descriptor)
        )
    except AccessRefused:
        if not access.also:
            raise
        # A token server may refuse all because of one repository: then nothing is mounted.
        access = RepositoryAccess(endpoint, Action.PUSH)
        there = await with_retries(
            http.timeouts, http.on_retry, url, partial(blob_exists, registry, access, descriptor)
        )
    if there:
        report(descriptor.size_bytes)
        return BlobTransfer(descriptor, Transfer.EXISTS)
    location = None
    for name in access.also:
        if location:
            await cancel_upload(registry, access, location)
        location = await with_retries(
            http.timeouts, http.on_retry, url, partial(_mount, registry, access, descriptor.digest, name)
        )
        if location is None:
            report(descriptor.size_bytes)
            return BlobTransfer(descriptor, Transfer.MOUNTED)
    upload = Upload(registry, access, descriptor, pieces, location or None, report, sending.chunk_bytes)
    return BlobTransfer(descriptor, Transfer.UPLOADED, await upload.run())


async def push_manifest(registry: Registry, reference: Reference, body: bytes, media_type: str) -> str:
    """Put a manifest or an index under `reference`'s tag, or under its digest where it has no tag; its digest.

    To be called when the registry has all that it names: until then the tag names what it named before.

    Raises:
        NetworkError: the registry doesn't take it. WrongDigest: it keeps something else under that name.
    """
    access = _access(reference, ())
    endpoint, http = access.endpoint, registry.http
    digest = digest_of(body, (reference.digest or "sha256:").partition(":")[0])
    if reference.digest not in {None, digest}:
        raise WrongDigest(
            f"{reference}: the manifest to push has the digest {digest}", hint="push it by its own digest, or by a tag"
        )
    name = reference.tag or reference.digest or "latest"
    url = f"{endpoint.base}/{endpoint.repository}/manifests/{name}"

    async def put() -> str:
        answer = await registry.request(access, "PUT", url, headers={"Content-Type": media_type}, body=body)
        if not 200 <= answer.status < 300:
            raise_refusal(answer, push_refusal(answer, access, name, registry))
        return answer.headers.get("Docker-Content-Digest", "").strip()

    kept = await with_retries(http.timeouts, http.on_retry, url, put)
    kept = kept or await tag_digest(registry, reference) or "nothing"
    # A registry may name it by another algorithm than ours: that can't be compared.
    if kept != digest and (kept == "nothing" or kept.partition(":")[0] == digest.partition(":")[0]):
        raise WrongDigest(
            f"{reference}: pushed as {digest}, and the registry keeps {shortened(kept)} there",
            hint="a proxy changes what is sent, or someone pushed the same tag at this moment",
        )
    return digest


async def tag_digest(registry: Registry, reference: Reference) -> str | None:
    """The digest that the registry itself (no mirror) has under a name; None where it has nothing, or doesn't say."""
    access = _access(reference, ())
    endpoint, http = access.endpoint, registry.http
    name = reference.tag or reference.digest or "latest"
    url = f"{endpoint.base}/{endpoint.repository}/manifests/{name}"

    async def head() -> str | None:
        answer = await registry.request(access, "HEAD", url, headers={"Accept": ACCEPT})
        if answer.status in {401, 403} or is_transient_status(answer.status):
            raise_refusal(answer, push_refusal(answer, access, name, registry))
        return answer.headers.get("Docker-Content-Digest", "").strip() or None if answer.status == 200 else None

    return await with_retries(http.timeouts, http.on_retry, url, head)


async def _mount(registry: Registry, access: RepositoryAccess, digest: str, source: str) -> str | None:
    """None when the registry has mounted the blob; else where it can be uploaded, empty when that was not told."""
    endpoint = access.endpoint
    url = f"{endpoint.base}/{endpoint.repository}/blobs/uploads/?mount={digest}&from={quote(source, safe='')}"
    answer = await registry.request(access, "POST", url, headers={"Content-Type": "application/octet-stream"}, body=b"")
    if answer.status == 201:
        return None
    if is_transient_status(answer.status):
        raise_refusal(answer, push_refusal(answer, access, digest, registry))
    return next_location(answer, access) if answer.status == 202 else ""


def _access(reference: Reference, mount_from: Sequence[str]) -> RepositoryAccess:
    endpoint = endpoint_of(reference)
    return RepositoryAccess(
        endpoint, Action.PUSH, tuple(dict.fromkeys(name for name in mount_from if name != endpoint.repository))
    )


def _digest(blob: Blob) -> str:
    computed = hashlib.new(blob.descriptor.digest.partition(":")[0])
    for piece in blob.chunks(0):
        computed.update(piece)
    return f"{computed.name}:{computed.hexdigest()}"
