"""Blobs and manifests into a registry.

Source: OCI distribution specification 1.1, "Pushing blobs"; deviations of docker-registry 2.8 are noted in place.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote, urldefrag, urljoin

from envspec.credentials import shown
from envspec.errors import EnvspecError, NetworkError
from envspec.escaping import excerpt
from envspec.io.http import RetryableError
from envspec.io.http_types import Response, Retry
from envspec.registry.auth import RepositoryAccess
from envspec.registry.client import Registry, is_transient_status, with_retries
from envspec.registry.errors import AccessRefused, RegistryError, WrongDigest, error_text
from envspec.registry.reference import Action, Reference, endpoint_of
from envspec.registry.types import ACCEPT, Blob, Descriptor, digest_of

#: Bytes read at once in a thread.
_READ_BYTES: Final = 1024 * 1024
#: 500 MB into docker-registry 2.8 on loopback cost, in CPU seconds of both sides: 2.6 in one request, 2.9 in chunks of
#: 64 MiB, 3.1 of 16 MiB, 4.2 of 4 MiB. Some proxies accept at most 100 MB in one request.
CHUNK_BYTES: Final = 64 * 1024 * 1024
#: Up to this size a blob is sent in one request.
_WHOLE_BYTES: Final = 4 * 1024 * 1024
#: Proxies with a limit on requests rarely have a lower one (nginx's default is 1 MiB).
_MIN_CHUNK_BYTES: Final = 1024 * 1024
#: For the cancellation of an upload, seconds: the push may have failed because the registry does not respond.
_CANCEL_S: Final = 1.0
#: How many chunks of a blob a registry may store hardly anything of, before the upload starts over.
_MAX_SHORT_CHUNKS: Final = 16
_OCTETS: Final = {"Content-Type": "application/octet-stream"}
#: Statuses of registries without chunked uploads for the first chunk.
_NO_CHUNKS: Final = frozenset({400, 404, 405, 411, 415, 501})

#: Yields a blob's bytes from a position on; raises at its end if one of them is wrong.
Pieces = Callable[[int], AsyncGenerator[bytes, None]]


class TruncatedBlob(EnvspecError, exit_code=1, code="internal"):
    """A local blob that ends before its size."""

    def __init__(self, descriptor: Descriptor, found: int) -> None:
        super().__init__(
            f"blob {descriptor.digest}: its local copy has {found} bytes of {descriptor.size_bytes}",
            hint="remove the cache and build again: it is damaged",
        )


async def push_blob(
    registry: Registry,
    reference: Reference,
    blob: Blob,
    mount_from: Sequence[str] = (),
    report: Callable[[int], None] = lambda _: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Ensure that `reference`'s repository has a blob.

    mount_from: other repositories of the same registry that may have it. report: called with the change of bytes done.
    `[registry.mirrors]` are not used: they are for reading.

    Raises:
        NetworkError: the registry refuses it. WrongDigest: it received other bytes. TruncatedBlob: the local copy is
        not whole.
    """
    try:
        pieces = partial(read_ahead, blob)
        access = push_access(reference, mount_from)
        await Upload(registry, access, blob.descriptor, pieces, report, chunk_bytes).run()
    except WrongDigest as error:
        found = await asyncio.to_thread(_digest, blob)
        if found == blob.descriptor.digest:
            raise
        raise WrongDigest(
            f"blob {blob.descriptor.digest}: its local copy has the digest {found}",
            hint="remove the cache and build again: it is damaged",
        ) from error


async def push_manifest(registry: Registry, reference: Reference, body: bytes, media_type: str) -> str:
    """Put a manifest or an index under `reference`'s tag, or its digest if it has no tag; the digest.

    Push all that it refers to before.

    Raises:
        NetworkError: the registry refuses it. WrongDigest: it stored something else under that name.
    """
    access = push_access(reference)
    digest = digest_of(body, (reference.digest or "sha256:").partition(":")[0])
    if reference.digest not in {None, digest}:
        raise WrongDigest(
            f"{reference}: the manifest to push has the digest {digest}", hint="push it by its own digest, or by a tag"
        )
    name = reference.tag or reference.digest or "latest"
    url = f"{access.repository_url}/manifests/{name}"

    async def put() -> str:
        response = await registry.request(access, "PUT", url, headers={"Content-Type": media_type}, body=body)
        if not 200 <= response.status < 300:
            raise registry.refusal(response, access, name)
        return response.headers.get("Docker-Content-Digest", "").strip()

    stored = await with_retries(registry.http, url, put)
    stored = stored or await tag_digest(registry, reference) or "nothing"
    # A digest by another algorithm can't be compared.
    if stored != digest and (stored == "nothing" or stored.partition(":")[0] == digest.partition(":")[0]):
        raise WrongDigest(
            f"{reference}: pushed as {digest}, but the registry has {excerpt(stored)} there",
            hint="push again; if it persists, a proxy changes what is sent, or others push the same tag",
        )
    return digest


async def tag_digest(registry: Registry, reference: Reference) -> str | None:
    """The digest that the registry itself (no mirror) has for a name; None if it has none or does not send it."""
    access = push_access(reference)
    name = reference.tag or reference.digest or "latest"
    url = f"{access.repository_url}/manifests/{name}"

    async def head() -> str | None:
        response = await registry.request(access, "HEAD", url, headers={"Accept": ACCEPT})
        _check_access(response, access, name, registry)
        if response.status != 200:
            return None
        return response.headers.get("Docker-Content-Digest", "").strip() or None

    return await with_retries(registry.http, url, head)


def _check_access(response: Response, access: RepositoryAccess, name: str, registry: Registry) -> None:
    if response.status in {401, 403} or is_transient_status(response.status):
        raise registry.refusal(response, access, name)


def push_access(reference: Reference, mount_from: Sequence[str] = ()) -> RepositoryAccess:
    """The access for pushes, and for mounts from other repositories of the same registry."""
    endpoint = endpoint_of(reference)
    also = tuple(dict.fromkeys(name for name in mount_from if name != endpoint.repository))
    return RepositoryAccess(endpoint, Action.PUSH, also)


def _digest(blob: Blob) -> str:
    computed = hashlib.new(blob.descriptor.digest.partition(":")[0])
    for piece in blob.chunks(0):
        computed.update(piece)
    return f"{computed.name}:{computed.hexdigest()}"


def next_location(response: Response, access: RepositoryAccess, current: str | None = None) -> str:
    """The URL of an upload's next request; `current` if the response has none.

    It may be on another host, which gets the blob and no login: see `Endpoint.why_not_to`.

    Raises:
        RegistryError: there is none, or one that nothing may be sent to.
    """
    endpoint = access.endpoint
    location = response.headers.get("Location") or current
    if not location:
        raise RegistryError(
            f"{endpoint.registry}: it starts an upload without a URL",
            hint=f"check that {endpoint.base} is a registry, not a proxy that removes the `Location` header",
        )
    target = ""
    with contextlib.suppress(ValueError):
        target = urljoin(response.url, location)
    if why := endpoint.why_not_to(target):
        raise RegistryError(
            f"{endpoint.registry}: its URL for an upload, {shown(target)}, {why}",
            hint="contact the registry's operator: behind a TLS proxy, it needs X-Forwarded-Proto, or relative URLs",
        )
    return urldefrag(target).url


def received_bytes(response: Response) -> int | None:
    """The size of an upload at the registry, from `Range: 0-<last byte>`; None without one.

    docker-registry sends `0-0` for none as well as for one. No chunk has one byte, so that it means none.
    """
    found = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", response.headers.get("Range", "").strip())
    if found is None:
        return None
    return int(found[1]) + 1 if int(found[1]) else 0


async def read_ahead(blob: Blob, start: int) -> AsyncGenerator[bytes, None]:
    """Read a blob in a thread, one piece of about 1 MiB ahead of what is sent."""
    iterator = blob.chunks(start)
    ahead = asyncio.ensure_future(asyncio.to_thread(_read_piece, iterator))
    try:
        while data := await asyncio.shield(ahead):
            ahead = asyncio.ensure_future(asyncio.to_thread(_read_piece, iterator))
            yield data
    finally:
        # The thread can't be stopped, and a generator can't be closed while it runs.
        await asyncio.wait({ahead})
        ahead.exception()
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def _read_piece(iterator: Iterator[bytes]) -> bytes:
    """About 1 MiB; empty at the end. The pieces of a recipe may be tiny."""
    found, size = [], 0
    for piece in iterator:
        found.append(piece)
        size += len(piece)
        if size >= _READ_BYTES:
            break
    return b"".join(found)


class UploadStream:
    """A blob's bytes; continues where the last request ended, or from another position after an error."""

    def __init__(self, descriptor: Descriptor, pieces: Pieces) -> None:
        self._descriptor = descriptor
        self._pieces = pieces
        self._stream: AsyncGenerator[bytes, None] | None = None
        self._rest = memoryview(b"")
        #: The stream's position; None while it is read, and after that was interrupted.
        self._at: int | None = None

    async def read(self, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` to `end`. Raises TruncatedBlob if there are fewer."""
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
        stream, self._stream, self._at = self._stream, None, None
        if stream is not None:
            await stream.aclose()


class _UploadLost(RetryableError):
    """The registry does not continue this upload: it has to start over."""


@dataclass(slots=True)
class Upload:
    """The way of one blob into a repository.

    report: called with the change of bytes done, negative if some have to be sent again.
    """

    registry: Registry
    access: RepositoryAccess
    descriptor: Descriptor
    pieces: Pieces
    report: Callable[[int], None] = lambda _: None
    chunk_bytes: int = CHUNK_BYTES
    _location: str | None = None
    _stream: UploadStream = field(init=False)
    _is_whole: bool = field(init=False)
    _offset: int = 0
    _reported: int = 0
    _is_position_known: bool = True
    _starts: int = 0
    _wrong_digests: int = 0
    _short_chunks: int = 0

    def __post_init__(self) -> None:
        self._stream = UploadStream(self.descriptor, self.pieces)
        self._is_whole = self.descriptor.size_bytes <= _WHOLE_BYTES

    @property
    def _subject(self) -> str:
        endpoint = self.access.endpoint
        return f"{endpoint.registry}/{endpoint.repository}: blob {self.descriptor.digest}"

    async def run(self) -> None:
        """Ensure that the repository has the blob: mounted from another one, or sent.

        Raises:
            NetworkError: the registry refuses it. WrongDigest: it received other bytes, twice.
        """
        try:
            if await self._is_there():
                self.report(self.descriptor.size_bytes)
            else:
                retry = Retry(self.registry.http.timeouts, self._subject)
                while not await self._is_done(retry):
                    pass
            self._location = None
        finally:
            await self._cancel()
            await self._stream.close()

    async def _is_there(self) -> bool:
        """Whether the repository has the blob, perhaps mounted now."""
        retried = partial(with_retries, self.registry.http, f"{self.access.repository_url}/{self.descriptor.digest}")
        try:
            exists = await retried(self._exists)
        except AccessRefused:
            if not self.access.also:
                raise
            # A token server may refuse all because of one repository: then nothing is mounted.
            self.access = RepositoryAccess(self.access.endpoint, Action.PUSH)
            exists = await retried(self._exists)
        if exists:
            return True
        for name in self.access.also:
            await self._cancel()
            if await retried(partial(self._mount, name)):
                return True
        return False

    async def _exists(self) -> bool:
        url = f"{self.access.repository_url}/blobs/{self.descriptor.digest}"
        response = await self.registry.request(self.access, "HEAD", url)
        _check_access(response, self.access, self.descriptor.digest, self.registry)
        length = response.headers.get("Content-Length")
        return response.status == 200 and (length is None or length == str(self.descriptor.size_bytes))

    async def _mount(self, source: str) -> bool:
        """Whether the registry has mounted the blob; it may start an upload instead."""
        query = f"mount={self.descriptor.digest}&from={quote(source, safe='')}"
        url = f"{self.access.repository_url}/blobs/uploads/?{query}"
        response = await self.registry.request(self.access, "POST", url, headers=_OCTETS, body=b"")
        if is_transient_status(response.status):
            raise self.registry.refusal(response, self.access, self.descriptor.digest)
        if response.status == 202:
            self._location = next_location(response, self.access)
        return response.status == 201

    async def _is_done(self, retry: Retry) -> bool:
        """Send the next request; whether the registry has the blob now."""
        try:
            if self._location is None:
                # A lost response may have been the last one.
                if self._starts and await self._exists():
                    return True
                await self._start()
            elif not self._is_position_known:
                await self._query_position(self._location)
            elif self._is_whole or self._offset == self.descriptor.size_bytes:
                await self._commit(self._location)
                return True
            else:
                await self._send_chunk(self._location)
        except (NetworkError, RetryableError) as error:
            await self._recover(error, retry)
        return False

    async def _recover(self, error: NetworkError | RetryableError, retry: Retry) -> None:
        reached = self._offset
        if isinstance(error, _UploadLost) or (self._is_whole and self._location is not None):
            await self._cancel()
            self._move_to(0)
        self._is_position_known = self._location is None
        await self.registry.http.wait_to_retry(retry, error, reached)

    async def _start(self) -> None:
        self._starts += 1
        url = f"{self.access.repository_url}/blobs/uploads/"
        response = await self.registry.request(self.access, "POST", url, headers=_OCTETS, body=b"")
        if response.status != 202:
            raise self.registry.refusal(response, self.access, self.descriptor.digest)
        minimum = response.headers.get("OCI-Chunk-Min-Length", "")
        if re.fullmatch(r"[0-9]{1,12}", minimum):
            self.chunk_bytes = max(self.chunk_bytes, int(minimum))
        self._location = next_location(response, self.access)

    async def _send_chunk(self, location: str) -> None:
        start = self._offset
        end = min(start + self.chunk_bytes, self.descriptor.size_bytes)
        response = await self.registry.request(
            self.access,
            "PATCH",
            location,
            headers=_OCTETS | {"Content-Range": f"{start}-{end - 1}"},
            body=self.registry.http.streamed(lambda: self._pieces_between(start, end), end - start),
        )
        if 200 <= response.status < 300:
            reached = received_bytes(response)
            if reached is None:
                reached = end
            self._short_chunks += reached < end and reached - start < _MIN_CHUNK_BYTES
            if not start < reached <= end or self._short_chunks > _MAX_SHORT_CHUNKS:
                raise _UploadLost(self._error(f"has {reached} bytes after {end} were sent"))
            self._location = next_location(response, self.access, location)
            self._move_to(reached)
            return
        self._move_to(start)
        if response.status == 413 and self.chunk_bytes > _MIN_CHUNK_BYTES:
            self.chunk_bytes = max(self.chunk_bytes // 4, _MIN_CHUNK_BYTES)
        elif response.status == 416:
            raise RetryableError(self._error("refuses the position of a chunk"), 0.0)
        elif start == 0 and self._starts <= 1 and response.status in _NO_CHUNKS:
            await self._cancel()
            self._is_whole = True
        else:
            self._raise_error(response)

    async def _commit(self, location: str) -> None:
        """Send the last request, with the whole blob unless it was sent in chunks."""
        size = self.descriptor.size_bytes if self._is_whole else 0
        mark = "&" if "?" in location else "?"
        response = await self.registry.request(
            self.access,
            "PUT",
            f"{location}{mark}digest={self.descriptor.digest}",
            headers=_OCTETS,
            body=self.registry.http.streamed(lambda: self._pieces_between(0, size), size) if size else b"",
            # A registry may copy gigabytes before it responds.
            timeout=self.registry.http.late,
        )
        if not 200 <= response.status < 300:
            self._raise_error(response)
        named = response.headers.get("Docker-Content-Digest", "").strip()
        if named and named != self.descriptor.digest:
            raise WrongDigest(
                f"{self._subject}: the registry stored it as {excerpt(named)}",
                hint="push again; if it persists, check the proxy in between and the registry",
            )

    async def _query_position(self, location: str) -> None:
        response = await self.registry.request(self.access, "GET", location)
        _check_access(response, self.access, self.descriptor.digest, self.registry)
        reached = received_bytes(response) if 200 <= response.status < 300 else None
        self._is_position_known = True
        if reached is None or reached > self.descriptor.size_bytes:
            await self._cancel()
            reached = 0
        else:
            self._location = next_location(response, self.access, location)
        self._move_to(reached)

    def _raise_error(self, response: Response) -> None:
        """Raise the error of a response that does not continue the upload."""
        text = error_text(response.body)
        if text.startswith("DIGEST_INVALID"):
            self._wrong_digests += 1
            wrong = WrongDigest(
                f"{self._subject}: the registry received bytes with another digest ({text})",
                hint="check the proxy in between and the local copy: one of them changed the bytes",
            )
            if self._wrong_digests > 1:
                raise wrong
            raise _UploadLost(wrong)
        if response.status in {400, 404, 409, 410, 416}:
            status = ": ".join(filter(None, (f"HTTP {response.status}", text)))
            raise _UploadLost(self._error(f"does not continue the upload ({status})"))
        raise self.registry.refusal(response, self.access, self.descriptor.digest)

    async def _pieces_between(self, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        self._move_to(start)
        async with contextlib.aclosing(self._stream.read(start, end)) as pieces:
            async for piece in pieces:
                yield piece
                self._report_at(self._reported + len(piece))

    def _move_to(self, offset: int) -> None:
        self._offset = offset
        self._report_at(offset)

    def _report_at(self, position: int) -> None:
        if position != self._reported:
            self.report(position - self._reported)
            self._reported = position

    async def _cancel(self) -> None:
        """Cancel the upload, ignoring errors: the registry removes it after some time. Also in a cancelled task."""
        location, self._location = self._location, None
        if location is not None:
            with contextlib.suppress(NetworkError, asyncio.TimeoutError):
                await asyncio.wait_for(self.registry.request(self.access, "DELETE", location), _CANCEL_S)

    def _error(self, what: str) -> RegistryError:
        return RegistryError(
            f"{self._subject}: the registry {what}", hint="try again; if it persists, contact the registry's operator"
        )
