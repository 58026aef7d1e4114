"""What lies in conda archives, read where they are: of a large one, the part that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from envspec.effects.http_values import Patience
from envspec.effects.surroundings import patience
from envspec.origins import origin_of
from envspec.resolve.conda.channel_client import channel_client, without_login

if TYPE_CHECKING:
    from rattler import Client

    from envspec.model import CondaPackage
    from envspec.resolve.conda.names import Reader
    from envspec.resolve.conda.question import Channel

_PATHS: Final = "info/paths.json"
#: An archive of the old form, or on a server without ranges, comes whole: few Python packages are larger.
_WHOLE_BYTES: Final = 512 * 1024**2
_AT_ONCE: Final = 8


def archive_reader(channels: Sequence[Channel], environ: Mapping[str, str], *, offline: bool) -> Reader:
    """Reads `info/paths.json` of these channels' packages; None where an archive can't be had, for whatever reason.

    It belongs to one event loop, and asks for an archive once however often it is called.
    environ: the patience of HTTP is read from it. offline: only archives in folders (`file://`) are read.
    """
    from rattler.package_streaming import PackageArchive

    waits = patience(environ, Patience())
    clients: dict[str, Client] = {}
    turn = asyncio.Semaphore(_AT_ONCE)

    async def listed(url: str) -> bytes | None:
        if url.startswith("file:"):
            archive = await PackageArchive.from_path(unquote(urlsplit(url).path))
        elif offline:
            return None
        else:
            origin = origin_of(url)
            if origin not in clients:
                clients[origin] = channel_client(waits, origin, [channel.address for channel in channels])
            archive = await PackageArchive.from_url(clients[origin], url, max_spool_size=_WHOLE_BYTES)
        return await archive.read_file(_PATHS)

    async def once(url: str) -> bytes | None:
        try:
            async with turn:
                return await asyncio.wait_for(listed(url), waits.total_s)
        # rattler tells whatever goes wrong with an archive as an OSError.
        except (OSError, asyncio.TimeoutError):
            return None

    running: dict[str, asyncio.Task[bytes | None]] = {}

    async def read(package: CondaPackage) -> bytes | None:
        url = _address(package.url, channels)
        # The same `noarch` archive is asked for by every platform.
        if url not in running:
            running[url] = asyncio.ensure_future(once(url))
        return await running[url]

    return read


def _address(url: str, channels: Sequence[Channel]) -> str:
    """A package's address with its channel's token; user and password are the client's."""
    for channel in channels:
        if url.startswith(f"{channel.url}/"):
            return without_login(channel.address).rstrip("/") + url[len(channel.url) :]
    return url
