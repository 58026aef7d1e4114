"""Wheels that somebody has built already: looked for where others keep them, checked, and put into the cache.

`ENVSPEC_BUILT_WHEELS` names the place, by URL or as a folder: `<place>/<sha256>/<file name>`. The folder `archives` of
an envspec cache is such a place, behind any file server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from envspec.credentials import shown
from envspec.effects.http import Http, open_http
from envspec.effects.http_faults import BadStatus
from envspec.errors import NetworkError, UsageError
from envspec.fetch.download import Downloads
from envspec.fetch.index_transport import Ask, IndexTransport
from envspec.fetch.values import Archive, Fetching, archive_path
from envspec.model import BuiltWheel, Package

#: The variable that names the place.
PLACE: Final = "ENVSPEC_BUILT_WHEELS"


def address_of(wheel: BuiltWheel, place: str) -> str:
    """Where a wheel is at a place.

    Raises:
        UsageError: the place is neither an http(s) or file URL nor an absolute folder.
    """
    scheme = urlsplit(place).scheme
    if scheme in {"http", "https", "file"}:
        return f"{place.rstrip('/')}/{wheel.sha256}/{quote(wheel.filename)}"
    if not Path(place).is_absolute():
        raise UsageError(f"{PLACE}={place}: neither a URL nor an absolute folder", hint=f"correct {PLACE}, or unset it")
    return (Path(place) / wheel.sha256 / wheel.filename).as_uri()


async def find_built(packages: Sequence[Package], how: Fetching, environ: Mapping[str, str]) -> Mapping[str, Path]:
    """SHA-256 -> the checked file in the cache, of those built wheels that the cache or the place has.

    Raises:
        UsageError: what names the place can't be used. CannotKeep: the cache can't be written.
    """
    place = environ.get(PLACE)
    found: dict[str, Path] = {}
    async with AsyncExitStack() as stack:
        opening = asyncio.Lock()
        opened: list[Http] = []

        async def http() -> Http:
            async with opening:
                if not opened:
                    opened.append(await stack.enter_async_context(open_http(environ, patience=how.patience)))
                return opened[0]

        async def located(archive: Archive, _: Ask) -> str:
            return archive.url

        for package in packages:
            wheel = package.built
            if wheel is None:
                continue
            of = f"{package.name} {package.version}"
            kept = archive_path(how.cache, of, wheel.sha256, wheel.filename)
            if not place and not kept.is_file():
                continue
            url = address_of(wheel, place) if place else kept.as_uri()
            archive = Archive(of, url, wheel.filename, wheel.sha256, wheel.size_bytes)
            try:
                found |= await Downloads(how, IndexTransport(http, located)).fetch([archive])
            except NetworkError as fault:
                _tell(fault, archive, place, how)
    return found


def _tell(fault: NetworkError, archive: Archive, place: str | None, how: Fetching) -> None:
    """Why a place did not give a wheel; that it does not have it is no news."""
    gone = isinstance(fault, BadStatus) and fault.status in (404, 410)
    missing = not gone and place is not None and isinstance(fault.__cause__, FileNotFoundError)
    if place is not None and not gone and not missing:
        how.warn(f"{archive.of}: {shown(place)} does not give its wheel: {fault.message}")
