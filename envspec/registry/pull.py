"""Blobs and manifests from a registry, each checked against its digest."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envspec.errors import NetworkError
from envspec.io.cache import as_cache_error
from envspec.io.download import CHUNK, DownloadFile, partial_file
from envspec.io.http import RetryableError, read_whole
from envspec.io.http_types import IncompleteResponse, Retry
from envspec.registry.auth import RepositoryAccess
from envspec.registry.client import SMALL_BYTES, Registry
from envspec.registry.errors import WrongDigest
from envspec.registry.reference import Reference, endpoint_of
from envspec.registry.types import Descriptor

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_DAMAGED: Final = "don't use it: a proxy changed it, or the registry's copy is damaged"


async def fetch_blob(
    registry: Registry,
    reference: Reference,
    descriptor: Descriptor,
    path: Path,
    report: Callable[[int], None] = lambda _: None,
) -> None:
    """Fetch a blob into `path`, which has the right bytes or does not exist.

    Resumes an earlier attempt; of two processes one fetches it. report: called with the change of bytes done.

    Raises:
        WrongDigest: other bytes, or another size. ImageNotFound, AccessRefused, NetworkError: not to be had.
        CacheError: the folder can't be written.
    """
    with as_cache_error(path.parent):
        if await asyncio.to_thread(_is_whole, path, descriptor):
            report(descriptor.size_bytes)
            return
        async with partial_file(path) as partial:
            # Another process may have fetched it meanwhile.
            if await asyncio.to_thread(_is_whole, path, descriptor):
                report(descriptor.size_bytes)
                return
            algorithm = descriptor.digest.partition(":")[0]
            file = DownloadFile(partial.file, path.parent, descriptor.size_bytes, report, algorithm)
            # For the next run to resume, unless it is wrong.
            partial.keep = True
            try:
                await _fill(registry, reference, descriptor, file)
            except WrongDigest:
                partial.keep = False
                raise
            finally:
                await file.settle()
            partial.finish()


async def read_blob(
    registry: Registry, reference: Reference, descriptor: Descriptor, start: int = 0
) -> AsyncGenerator[bytes, None]:
    """A blob's bytes from `start` to its end, with retries; the caller checks the digest.

    Raises:
        WrongDigest: the registry's blob has another size. ImageNotFound, AccessRefused, NetworkError: not to be had.
    """
    endpoint, http = endpoint_of(reference, registry.mirrors), registry.http
    access = RepositoryAccess(endpoint)
    url = f"{access.repository_url}/blobs/{descriptor.digest}"
    retry = Retry(http.timeouts, f"{reference.name}: blob {descriptor.digest}")
    at = start
    while at < descriptor.size_bytes:
        headers = {"Accept-Encoding": "identity"}
        if at:
            headers["Range"] = f"bytes={at}-"
        try:
            async with registry.open(access, "GET", url, headers=headers) as response:
                skip = await _skip(response, at, descriptor, registry, access)
                async for chunk in response.content.iter_any():
                    piece = chunk[skip:]
                    skip -= len(chunk) - len(piece)
                    if at + len(piece) > descriptor.size_bytes:
                        raise _other_size(descriptor, access, "more")
                    at += len(piece)
                    if piece:
                        yield piece
            if at < descriptor.size_bytes:
                raise RetryableError(
                    IncompleteResponse(
                        url, "the response ended early", hint="try again; if it persists, check the server"
                    )
                )
        except (NetworkError, RetryableError) as error:
            await http.wait_to_retry(retry, error, at)


async def _skip(
    response: ClientResponse, at: int, descriptor: Descriptor, registry: Registry, access: RepositoryAccess
) -> int:
    """How many bytes of a response are before `at`: none, or all of them if the server ignores ranges."""
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != at:
            raise _other_size(descriptor, access, "another part than requested")
        if found[2] not in {"*", str(descriptor.size_bytes)}:
            raise _other_size(descriptor, access, found[2])
        return 0
    if response.status == 200:
        length = response.content_length
        if length not in {None, descriptor.size_bytes} and "Content-Encoding" not in response.headers:
            raise _other_size(descriptor, access, str(length))
        return at
    if response.status == 416:
        raise _other_size(descriptor, access, "less")
    whole = await read_whole(response, SMALL_BYTES, registry.http.timeouts.total_s)
    raise registry.refusal(whole, access, descriptor.digest)


def _other_size(descriptor: Descriptor, access: RepositoryAccess, found: str) -> WrongDigest:
    endpoint = access.endpoint
    return WrongDigest(
        f"{endpoint.registry}/{endpoint.repository}: blob {descriptor.digest} has {descriptor.size_bytes} bytes in its "
        f"manifest, and the registry sends {found}",
        hint=_DAMAGED,
    )


async def _fill(registry: Registry, reference: Reference, descriptor: Descriptor, file: DownloadFile) -> None:
    await file.resume()
    if file.size > descriptor.size_bytes:
        await file.restart()
    while True:
        is_first = not file.size
        async with contextlib.aclosing(read_blob(registry, reference, descriptor, file.size)) as stream:
            async for piece in stream:
                await file.feed(piece)
        await file.flush()
        if file.digest == descriptor.digest.partition(":")[2]:
            return
        if is_first:
            raise WrongDigest(
                f"{reference.name}: blob {descriptor.digest}: the received bytes have another digest", hint=_DAMAGED
            )
        # The part of an earlier run may be wrong.
        await file.restart()


def _is_whole(path: Path, descriptor: Descriptor) -> bool:
    algorithm, _, digest = descriptor.digest.partition(":")
    found = hashlib.new(algorithm)
    try:
        with path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                found.update(data)
    except FileNotFoundError:
        return False
    return found.hexdigest() == digest
