"""Wheels that were built of a lock's sources: where `ENVSPEC_BUILT_WHEELS` has them, and how they get there.

A place is one of

- a folder, or its URL, with `<sha256>/<file name>` below it: such as the folder `archives` of an envspec cache;
- `oci://REGISTRY/REPOSITORY`: a wheel is a blob there, found by its digest. `publish` gives each a manifest and a tag,
  without which registries remove blobs;
- `index+URL`: the simple pages of a package index, to which `uv publish` or twine uploads wheels.

Whatever a place gives is checked by the lock's SHA-256.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from envspec.context import Context, Step
from envspec.credentials import shown
from envspec.errors import NetworkError, UsageError
from envspec.fetch.download import Downloads
from envspec.fetch.sources import copy_to_cache
from envspec.fetch.types import Archive, archive_path
from envspec.fetch.wheels import IndexTransport, Lookup, NotOnPage, fetch_wheels
from envspec.io.cache import as_cache_error
from envspec.io.http import Http, open_http
from envspec.io.http_types import BadStatus
from envspec.models import DEFAULT_INDEX, BuiltWheel, Lock, Package, WheelFile
from envspec.operations.lock_state import packages_in
from envspec.operations.session import Session
from envspec.structs import replace

if TYPE_CHECKING:
    from envspec.registry.types import Blob, Manifest

#: The variable with the place.
BUILT_WHEELS: Final = "ENVSPEC_BUILT_WHEELS"
_REGISTRY: Final = "oci://"
_INDEX: Final = "index+"
_WHEEL_TYPE: Final = "application/vnd.pypi.wheel"
#: The empty configuration of artifacts that are no images. Source: OCI image specification 1.1, "Guidance for an empty
#: descriptor".
_EMPTY: Final = b"{}"
_EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"


async def find_built(packages: Sequence[Package], context: Context) -> Mapping[str, Path]:
    """SHA-256 -> the checked file in the cache, of the built wheels in the cache or in `ENVSPEC_BUILT_WHEELS`.

    Raises:
        UsageError: the variable can't be used. CacheError: the cache can't be written.
    """
    place = context.environ.get(BUILT_WHEELS, "")
    found: dict[str, Path] = {}
    async with Session(context) as session:
        opened: list[Http] = []

        async def http() -> Http:
            # One archive is fetched at a time.
            if not opened:
                opened.append(await session.enter_async_context(open_http(context.environ, timeouts=context.timeouts)))
            return opened[0]

        for package in packages:
            wheel = package.built
            if wheel is None:
                continue
            cached = archive_path(context.cache, _name_version(package), wheel.sha256, wheel.filename)
            # A damaged one is fetched again.
            if not place and not cached.is_file():
                continue
            try:
                found |= await _fetch_wheel(package, wheel, cached, place, session, http)
            except NetworkError as error:
                if place and not _is_missing(error):
                    why = f"its wheel can't be fetched from {shown(place)}: {error.message}"
                    context.reporter.warning(f"{_name_version(package)}: {why}")
    return found


def _name_version(package: Package) -> str:
    return f"{package.name} {package.version}"


def _is_missing(error: NetworkError) -> bool:
    """Whether a place does not have the wheel, which is normal."""
    from envspec.registry.errors import ImageNotFound

    is_gone = isinstance(error, BadStatus) and error.status in (404, 410)
    return is_gone or isinstance(error, (NotOnPage, ImageNotFound)) or isinstance(error.__cause__, FileNotFoundError)


async def _fetch_wheel(
    package: Package,
    wheel: BuiltWheel,
    cached: Path,
    place: str,
    session: Session,
    http: Callable[[], Awaitable[Http]],
) -> Mapping[str, Path]:
    context = session.context
    if place.startswith(_REGISTRY) and not context.is_offline:
        from envspec.registry.pull import fetch_blob
        from envspec.registry.reference import parse
        from envspec.registry.types import Descriptor

        blob = Descriptor(_WHEEL_TYPE, f"sha256:{wheel.sha256}", wheel.size_bytes)
        with as_cache_error(cached.parent):
            await asyncio.to_thread(cached.parent.mkdir, parents=True, exist_ok=True)
        await fetch_blob(await session.registry(), parse(place.removeprefix(_REGISTRY)), blob, cached)
        return {wheel.sha256: cached}
    if place.startswith(_INDEX):
        listed = replace(package, file=WheelFile(DEFAULT_INDEX, wheel.filename, wheel.sha256, wheel.size_bytes))
        environ = {**context.environ, "ENVSPEC_DEFAULT_INDEX": place.removeprefix(_INDEX)}
        return await fetch_wheels([listed], replace(context, environ=environ), stage="fetching built wheels")
    url = cached.as_uri() if not place or place.startswith(_REGISTRY) else built_wheel_url(wheel, place)

    async def locate(archive: Archive, _: Lookup) -> str:
        return archive.url

    archive = Archive(_name_version(package), url, wheel.filename, wheel.sha256, wheel.size_bytes)
    return await Downloads(context, IndexTransport(http, locate, context.environ)).fetch([archive])


def built_wheel_url(wheel: BuiltWheel, place: str) -> str:
    """The URL of a wheel below a folder or its URL.

    Raises:
        UsageError: `place` is neither an http(s) or file URL nor an absolute folder.
    """
    if urlsplit(place).scheme in {"http", "https", "file"}:
        return f"{place.rstrip('/')}/{wheel.sha256}/{quote(wheel.filename)}"
    if not Path(place).is_absolute():
        raise UsageError(
            f"{BUILT_WHEELS}={place}: neither a URL nor an absolute folder",
            hint=f"correct it (a folder, a URL, {_REGISTRY}REGISTRY/REPOSITORY or {_INDEX}URL), or unset it",
        )
    return (Path(place) / wheel.sha256 / wheel.filename).as_uri()


async def publish(lock: Lock, place: str, context: Context) -> tuple[BuiltWheel, ...]:
    """Copy a lock's built wheels from the cache into a folder, or push them to a registry; these wheels.

    Raises:
        UsageError: the lock has none, one of them is not in the cache, or the place is neither.
        NetworkError: the registry refuses one. CacheError: the folder can't be written.
    """
    packages = {each.built: each for each in packages_in(lock.resolutions) if each.built}
    if not packages:
        raise UsageError(
            f"{lock.name} has no wheel that was built", hint="build and record them by `envspec lock SPEC --image`"
        )
    environ = dict(context.environ)
    environ.pop(BUILT_WHEELS, None)
    found = await find_built(tuple(packages.values()), replace(context, environ=environ))
    missing = [_name_version(each) for wheel, each in packages.items() if wheel.sha256 not in found]
    if missing:
        raise UsageError(
            f"the wheels of {', '.join(missing)} are not in this machine's cache",
            hint="build them by `envspec image build LOCK`, or publish where the lock was made",
        )
    if place.startswith(_INDEX):
        files = " ".join(str(found[wheel.sha256]) for wheel in packages)
        raise UsageError(
            "wheels are uploaded to an index by its own tools", hint=f"uv publish --publish-url UPLOAD-URL {files}"
        )
    for wheel, package in packages.items():
        path = found[wheel.sha256]
        context.reporter.progress(Step(f"publishing {wheel.filename}"))
        if place.startswith(_REGISTRY):
            await _push(path, package, wheel, place.removeprefix(_REGISTRY), context)
        else:
            await asyncio.to_thread(_copy, path, Path(place, wheel.sha256, wheel.filename))
    return tuple(packages)


def _copy(wheel: Path, path: Path) -> None:
    with wheel.open("rb") as file:
        copy_to_cache(file, path.absolute())


async def _push(path: Path, package: Package, wheel: BuiltWheel, repository: str, context: Context) -> None:
    from envspec.registry.copy import push_image
    from envspec.registry.reference import parse

    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{package.name}-{package.version}")[:100]
    target = replace(parse(repository), tag=f"{tag}-{wheel.sha256[:16]}")
    blobs, manifest = _artifact(path, wheel)
    async with Session(context) as session:
        await push_image(await session.registry(), target, blobs, [manifest])


def _artifact(path: Path, wheel: BuiltWheel) -> tuple[list[Blob], Manifest]:
    from envspec.image.layers.store import FileBlob, StreamedBlob
    from envspec.registry.types import OCI_MANIFEST, Descriptor, Manifest, digest_of

    layer = Descriptor(_WHEEL_TYPE, f"sha256:{wheel.sha256}", wheel.size_bytes)
    config = Descriptor(_EMPTY_TYPE, digest_of(_EMPTY), len(_EMPTY))

    def written(blob: Descriptor) -> dict[str, object]:
        return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size_bytes}

    body = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": _WHEEL_TYPE,
        "config": written(config),
        "layers": [{**written(layer), "annotations": {"org.opencontainers.image.title": wheel.filename}}],
    }
    blobs: list[Blob] = [FileBlob(path, layer), StreamedBlob(config, lambda start: iter([_EMPTY[start:]]))]
    return blobs, Manifest(json.dumps(body, separators=(",", ":")).encode(), OCI_MANIFEST)
