"""The files that a lock names, in the cache: the one call for whoever needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from datetime import datetime
from pathlib import Path

from envspec.effects.http import Http, open_http
from envspec.fetch.download import Downloads
from envspec.fetch.index_transport import Ask, IndexTransport
from envspec.fetch.values import Archive, Arrived, Fetching, archive_path, unheard
from envspec.fetch.wheel_urls import WheelUrls, archive_of, logins
from envspec.model import Package
from envspec.resolve.index.store import Store
from envspec.resolve.index.upstream import Upstream


def wheel_path(cache: Path, package: Package) -> Path:
    """Where the package's wheel is, or will be once it is fetched; for an sdist, where the wheel built of it is."""
    wheel = package.built or package.file
    return archive_path(cache, f"{package.name} {package.version}", wheel.sha256, wheel.filename)


async def fetch_wheels(
    packages: Sequence[Package],
    how: Fetching,
    environ: Mapping[str, str],
    now: Callable[[], datetime],
    arrived: Arrived = unheard,
) -> Mapping[str, Path]:
    """SHA-256 -> the checked file in the cache, of the file that is locked for each package (an sdist for an sdist).

    Addresses are looked up for those alone that the cache lacks; where it has all, nothing is asked and aiohttp not
    even imported.

    Raises:
        WrongArchive: other content than the lock's. NetworkError: not to be had. UsageError: proxies, CA bundle or
        netrc can't be used. CannotKeep: the cache can't be written.
    """
    async with AsyncExitStack() as stack:
        store = stack.enter_context(closing(Store(how.cache)))
        upstream = Upstream(store, now)
        opening = asyncio.Lock()
        stack.push_async_callback(upstream.close)

        async def opened() -> Http:
            async with opening:
                if upstream.http is None:
                    known = logins((each.file.url for each in packages if each.file.url), environ)
                    door = open_http(environ, credentials=known, patience=how.patience, notice=how.warn)
                    upstream.http = await stack.enter_async_context(door)
                return upstream.http

        located = WheelUrls(packages, upstream, environ)

        async def locate(archive: Archive, ask: Ask) -> str:
            await opened()
            return await located.of(archive, ask)

        downloads = Downloads(how, IndexTransport(opened, locate))
        return await downloads.fetch([archive_of(each) for each in packages], arrived)
