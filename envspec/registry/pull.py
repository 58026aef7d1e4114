"""Blobs, manifests and configs out of a registry, each checked against its digest."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envspec.errors import NetworkError
from envspec.io.cache import as_cache_error
from envspec.io.download import CHUNK, DownloadFile
from envspec.io.file_locks import lock_file
from envspec.io.http import read_whole
from envspec.io.http_types import IncompleteResponse, Response
from envspec.models import Platform
from envspec.registry.auth import RepositoryAccess
from envspec.registry.client import Registry, Retry, RetryableError, raise_refusal
from envspec.registry.errors import ImageNotFound, WrongDigest, refusal, shortened
from envspec.registry.reference import Reference, endpoint_of, is_digest
from envspec.registry.types import MAX_ENTRIES, BadManifest, Descriptor, Manifest, ManifestKind, is_size, read_json

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_WORDS_BYTES: Final = 1024 * 1024
_FOREIGN: Final = ("application/vnd.docker.image.rootfs.foreign.", "application/vnd.oci.image.layer.nondistributable.")


@dataclass(frozen=True, slots=True)
class LayerDescriptor:
    """A blob as its manifest names it.

    is_foreign: whether it is named by URLs of its owner's, who lets no registry hand it out. Nothing is fetched from
    them: whoever makes a manifest could have any address asked for.
    """

    descriptor: Descriptor
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class ImageBlobs:
    """What a single manifest is made of. layers: the lowest first."""

    config: Descriptor
    layers: tuple[LayerDescriptor, ...]


async def pull_manifest(registry: Registry, reference: Reference, platform: Platform | None = None) -> Manifest:
    """What `reference` names; with a platform, that platform's own manifest where it names an index.

    Raises:
        NotThere: no such image, or not for the platform. WrongDigest, BadManifest, NetworkError: no usable answer.
    """
    manifest = await registry.manifest(reference)
    if platform is None or manifest.kind is ManifestKind.MANIFEST:
        return manifest
    child = manifest.child(platform)
    if child is None:
        raise ImageNotFound(
            f"{reference} is not published for {platform.value}",
            hint=f"it has {manifest.platforms_in_words or 'no platform that envspec builds for'}",
        )
    return await registry.manifest(replace(reference, tag=None, digest=child.digest))


def image_blobs(manifest: Manifest, where: str) -> ImageBlobs:
    """The blobs of a single manifest.

    Raises:
        BadManifest: it is an index, or its rows are no descriptors.
    """
    document = read_json(manifest.body, manifest.media_type, where=where)
    layers = document.get("layers")
    manifest.check_is_single(where)
    if not isinstance(layers, list) or len(layers) > MAX_ENTRIES:
        raise BadManifest(f"{where}: no layers in it, or more than {MAX_ENTRIES}", hint="take another image")
    config = _row(document.get("config"), where)
    return ImageBlobs(config.descriptor, tuple(_row(layer, where) for layer in layers))


def _row(value: object, where: str) -> LayerDescriptor:
    row = value if isinstance(value, dict) else {}
    digest, size = row.get("digest"), row.get("size")
    if not is_digest(digest) or not is_size(size):
        raise BadManifest(
            f"{where}: a blob without digest or size, or of a size that none has", hint="the registry's copy is damaged"
        )
    kind = shortened(row.get("mediaType", ""))
    return LayerDescriptor(Descriptor(kind, str(digest), size), bool(row.get("urls")) and kind.startswith(_FOREIGN))


async def fetch_blob(
    registry: Registry,
    reference: Reference,
    descriptor: Descriptor,
    path: Path,
    report: Callable[[int], None] = lambda _: None,
) -> None:
    """A blob of `reference`'s repository into `path`, which is there with the right bytes or not at all.

    Goes on where an earlier try, of this process or another, broke off; two processes fetch it once. report: told of
    every change of how much is there, in bytes.

    Raises:
        WrongDigest: other bytes, or another size. ImageNotFound, AccessRefused, NetworkError: not to be had.
        CannotKeep: the folder can't be written.
    """
    unfinished = path.with_name(f"{path.name}.part")
    with as_cache_error(path.parent):
        if await asyncio.to_thread(_is_whole, path, descriptor):
            report(descriptor.size_bytes)
            return
        held = await lock_file(unfinished)
        with os.fdopen(held, "r+b", buffering=0) as file:
            if await asyncio.to_thread(_is_whole, path, descriptor):
                report(descriptor.size_bytes)
                unfinished.unlink(missing_ok=True)
                return
            sink = DownloadFile(file, path.parent, descriptor.size_bytes, report, descriptor.digest.partition(":")[0])
            try:
                is_right = await _fill(registry, reference, descriptor, sink)
            except WrongDigest:
                unfinished.unlink()
                raise
            finally:
                await sink.rest()
            # Not for the next run to go on with: it is whole, or wrong.
            unfinished.replace(path) if is_right else unfinished.unlink()
    if not is_right:
        raise WrongDigest(
            f"{reference.name}: blob {descriptor.digest}: the bytes that came have another digest",
            hint="a proxy changed it on the way, or the registry's copy is damaged: don't use it",
        )


async def read_blob(
    registry: Registry, reference: Reference, descriptor: Descriptor, start: int = 0
) -> AsyncGenerator[bytes, None]:
    """A blob's bytes from `start` to its end, over as many requests as it takes. Whoever takes them checks the digest.

    Raises:
        WrongDigest: the registry's blob has another size. ImageNotFound, AccessRefused, NetworkError: not to be had.
    """
    endpoint, http = endpoint_of(reference, registry.mirrors), registry.http
    access = RepositoryAccess(endpoint)
    url = f"{endpoint.base}/{endpoint.repository}/blobs/{descriptor.digest}"
    tries = Retry(http.timeouts, http.on_retry, f"{reference.name}: blob {descriptor.digest}")
    at = start
    while at < descriptor.size_bytes:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={at}-"} if at else {})
        try:
            async with registry.open(access, "GET", url, headers=headers) as answer:
                skip = await _skip(answer, at, descriptor, registry, access)
                async for chunk in answer.content.iter_any():
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
                        url, "the answer broke off before its end", hint="try again; if it stays, look there"
                    )
                )
        except (NetworkError, RetryableError) as fault:
            await tries.after(fault, at)


async def _skip(
    answer: ClientResponse, at: int, descriptor: Descriptor, registry: Registry, access: RepositoryAccess
) -> int:
    """How many bytes of an answer come before `at`: none, or all of them where the server knows no ranges."""
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != at:
            raise _other_size(descriptor, access, "another part than was asked for")
        if found[2] not in {"*", str(descriptor.size_bytes)}:
            raise _other_size(descriptor, access, found[2])
        return 0
    if answer.status == 200:
        length = answer.content_length
        if length not in {None, descriptor.size_bytes} and "Content-Encoding" not in answer.headers:
            raise _other_size(descriptor, access, str(length))
        return at
    if answer.status == 416:
        raise _other_size(descriptor, access, "less")
    whole = Response(
        str(answer.url),
        answer.status,
        answer.headers,
        await read_whole(answer, _WORDS_BYTES, registry.http.timeouts.total_s),
    )
    return raise_refusal(whole, refusal(whole, access.endpoint, descriptor.digest, registry.login_source(access)))


def _other_size(descriptor: Descriptor, access: RepositoryAccess, found: str) -> WrongDigest:
    endpoint = access.endpoint
    return WrongDigest(
        f"{endpoint.registry}/{endpoint.repository}: blob {descriptor.digest} has {descriptor.size_bytes} bytes by its "
        f"manifest, and the registry gives {found}",
        hint="a proxy changed it on the way, or the registry's copy is damaged: don't use it",
    )


async def _fill(registry: Registry, reference: Reference, descriptor: Descriptor, sink: DownloadFile) -> bool:
    """Bring what is missing; whether it then is the blob."""
    await sink.adopt()
    if sink.size > descriptor.size_bytes:
        await sink.restart()
    while True:
        is_first = not sink.size
        async with contextlib.aclosing(read_blob(registry, reference, descriptor, sink.size)) as stream:
            async for piece in stream:
                await sink.take(piece)
        await sink.settle()
        if sink.digest == descriptor.digest.partition(":")[2]:
            return True
        if is_first:
            return False
        # What an earlier run left may be what is wrong.
        await sink.restart()


def _is_whole(path: Path, descriptor: Descriptor) -> bool:
    algorithm, _, digest = descriptor.digest.partition(":")
    seen = hashlib.new(algorithm)
    try:
        with path.open("rb", buffering=0) as file:
            while data := file.read(CHUNK):
                seen.update(data)
    except FileNotFoundError:
        return False
    return seen.hexdigest() == digest
