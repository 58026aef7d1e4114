"""Images in registries, OCI layouts and tars: their documents, and the bytes of their layers."""

from __future__ import annotations

import asyncio
import json
import lzma
import posixpath
import tarfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Final

from msgspec import Struct

from envspec.context import Context
from envspec.errors import OfflineMiss, UsageError
from envspec.escaping import excerpt
from envspec.image.base_contents import OpenBlob
from envspec.io.files import read_untrusted
from envspec.lockfile.header import LOCK_FILE
from envspec.models import Platform
from envspec.operations.session import Session
from envspec.registry.client import CONFIG_BYTES
from envspec.registry.pull import read_blob
from envspec.registry.reference import is_digest, parse
from envspec.registry.types import OCI_PLATFORMS, Descriptor, ManifestKind, digest_of
from envspec.verifier.regular import open_regular

_PIECE_BYTES: Final = 1 << 20
_NO_TAR: Final = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)
_UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError, OSError)


class NoImage(UsageError, code="no-such-image"):
    """A name that is no image, layout, tar or lock, or that can't be read."""

    def __init__(self, name: str, why: str, advice: str = "") -> None:
        forms = "name an image in a registry, an OCI layout, a tar of `image build --output`, or a lock"
        super().__init__(f"{name}: {why}", hint=advice or forms)


class FoundImage(Struct, frozen=True):
    """One platform's image.

    name: as the user wrote it.
    id: digest of `config`.
    opened: the bytes of a layer's blob, as they are stored.
    platform: of its entry in an index; None without one.
    """

    name: str
    id: str
    manifest: Mapping[str, Any]
    config: bytes
    opened: OpenBlob
    platform: Platform | None = None


@asynccontextmanager
async def open_image(name: str, platform: Platform, context: Context) -> AsyncIterator[FoundImage]:
    """An image in a layout, a tar or a registry. platform: of an index.

    Raises:
        NoImage: it is none, or can't be read. NetworkError: its registry does not return it.
    """
    if (found := read_path(name, platform)) is not None:
        yield found
        return
    if not is_in_a_registry(name):
        raise NoImage(
            name,
            "there is no tar or OCI layout at this path, and no host or tag of a registry in it",
            "name an image in a registry with its tag: python:3.12; a tar, or an OCI layout",
        )
    if context.is_offline:
        raise OfflineMiss(name, "name a tar or an OCI layout, or run with a network")
    async with Session(context) as session:
        yield await _read_registry(name, platform, session)


def is_in_a_registry(name: str) -> bool:
    """Whether a name has a host, a tag or a digest; docker's shortest names look like a lock's."""
    if name.startswith((".", "/", "~")) or Path(name).exists():
        return False
    first, slash, _ = name.partition("/")
    has_host = bool(slash) and (first == "localhost" or "." in first)
    return has_host or ":" in name or "@" in name


def read_path(name: str, platform: Platform) -> FoundImage | None:
    """A layout or a tar; None if the name is neither.

    Raises:
        NoImage: it can't be read.
    """
    path = Path(name)
    if (path / "oci-layout").is_file():
        return _read_layout(
            name,
            platform,
            lambda inner: read_untrusted(path / inner, CONFIG_BYTES),
            lambda blob: _pieces(lambda: open_regular(path / _path(blob.digest))),
        )
    if not path.is_file() or path.name == LOCK_FILE:
        return None
    try:
        with tarfile.open(path) as archive:

            def read(inner: str) -> bytes:
                with _member(archive, inner) as file:
                    return file.read(CONFIG_BYTES)

            names = set(map(posixpath.normpath, archive.getnames()))
            if "index.json" not in names:
                return _read_docker_archive(name, archive, read)
            image = _read_layout(name, platform, read, lambda blob: _tar_pieces(path, _path(blob.digest)))
            if "manifest.json" in names:
                _check_manifest_json(image, read)
            return image
    except _NO_TAR as error:
        why = str(error).partition("\n")[0].rstrip(" (-:")
        raise NoImage(name, f"no tar that can be read: {why}") from error


def _read_layout(name: str, platform: Platform, read: Callable[[str], bytes], opened: OpenBlob) -> FoundImage:
    """From a layout, whose files `read` gives."""

    def checked(digest: str) -> bytes:
        body = read(_path(digest))
        if digest_of(body, digest.partition(":")[0]) != digest:
            raise ValueError(f"the content of {digest} has another digest")
        return body

    try:
        digests = {row["digest"] for row in json.loads(read("index.json"))["manifests"]}
        if len(digests) > 1:
            raise NoImage(name, f"it has {len(digests)} images", "copy one of them into a layout of its own")
        document = json.loads(checked(*digests))
        of_index = None
        if "manifests" in document:
            document = json.loads(checked(_child(name, document, platform)))
            of_index = platform
        identity = document["config"]["digest"]
        return FoundImage(name, identity, document, checked(identity), opened, of_index)
    except _UNREADABLE as error:
        raise _unreadable(name, error) from error


def _check_manifest_json(image: FoundImage, read: Callable[[str], bytes]) -> None:
    """Docker's image store without containerd reads `manifest.json` of a tar with both, and compares layers with the
    config.
    """
    try:
        configs = {digest_of(read(row["Config"])) for row in json.loads(read("manifest.json"))}
    except _UNREADABLE as error:
        raise _unreadable(image.name, error) from error
    if image.id not in configs or (image.platform is None and len(configs) > 1):
        raise NoImage(image.name, "index.json and manifest.json name different images", "write the tar again")


def _read_docker_archive(name: str, archive: tarfile.TarFile, read: Callable[[str], bytes]) -> FoundImage:
    """From a tar of `docker save` before Docker 25 or of skopeo, whose layers are not compressed.

    Source: moby, `image/spec/v1.2.md`, "Combined Image JSON + Filesystem Changeset Format".
    """
    try:
        rows = json.loads(read("manifest.json"))
        if len(rows) > 1:
            raise NoImage(name, f"it has {len(rows)} images", "write a tar of one of them")
        row = rows[0]
        config = read(row["Config"])
        places = {}
        layers = []
        for diff_id, place in zip(json.loads(config)["rootfs"]["diff_ids"], row["Layers"], strict=True):
            places[diff_id] = place
            with _member(archive, place) as file:
                size = file.seek(0, 2)
            layers.append({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": diff_id, "size": size})
    except _UNREADABLE as error:
        raise _unreadable(name, error) from error
    manifest = {"config": {"digest": digest_of(config), "size": len(config)}, "layers": layers}
    path = Path(name)
    return FoundImage(name, digest_of(config), manifest, config, lambda blob: _tar_pieces(path, places[blob.digest]))


def _unreadable(name: str, error: Exception) -> NoImage:
    return NoImage(name, f"no image that can be read ({type(error).__name__}: {error})")


def _member(archive: tarfile.TarFile, inner: str) -> IO[bytes]:
    try:
        member = archive.extractfile(inner)
    except KeyError:
        # As `tar --create --directory LAYOUT .` names it.
        member = archive.extractfile(f"./{inner}")
    if member is None:
        raise KeyError(inner)
    return member


async def _pieces(opened: Callable[[], IO[bytes]]) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(opened) as file:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece


async def _tar_pieces(path: Path, inner: str) -> AsyncGenerator[bytes, None]:
    # Opened for each file: layers are read at the same time.
    with await asyncio.to_thread(tarfile.open, path) as archive:
        async for piece in _pieces(lambda: _member(archive, inner)):
            yield piece


def _child(name: str, index: Mapping[str, Any], platform: Platform) -> str:
    wanted = OCI_PLATFORMS.get(platform)
    for row in index["manifests"]:
        named = row.get("platform", {})
        if (named.get("os"), named.get("architecture")) == wanted:
            return str(row["digest"])
    raise NoImage(name, f"nothing for {platform.value} in it: choose by --platform")


def _path(digest: str) -> str:
    if not is_digest(digest):
        raise ValueError(f"{excerpt(digest)!r} is not a digest")
    return f"blobs/{digest.replace(':', '/', 1)}"


async def _read_registry(name: str, platform: Platform, session: Session) -> FoundImage:
    reference = parse(name)
    registry = await session.registry()
    manifest = await registry.manifest(reference)
    of_index = None
    if manifest.kind is ManifestKind.INDEX:
        of_index = platform
        child = manifest.child(platform)
        if child is None:
            raise NoImage(name, f"it has {manifest.platforms_in_words}: choose by --platform")
        reference = reference.at(child.digest)
        manifest = await registry.manifest(reference)
    manifest.check_is_single(name)
    config = await registry.config_bytes(reference, manifest)

    def opened(blob: Descriptor) -> AsyncGenerator[bytes, None]:
        return read_blob(registry, reference, blob)

    return FoundImage(name, manifest.config, json.loads(manifest.body), config, opened, of_index)
