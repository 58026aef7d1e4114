"""Wheels from indexes.

A lock never names the default index. Pages that `envspec lock` read are in the cache's memory and good for this: a file
that was listed once has the hash that it had.
"""

from __future__ import annotations

import asyncio
import netrc
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from envspec.context import Context
from envspec.errors import NetworkError, UsageError
from envspec.fetch.download import Downloads
from envspec.fetch.types import Archive, OnFetched, Truncated, WrongArchive, archive_path, check, ignore_fetched
from envspec.io.download import DownloadFile
from envspec.io.http import Http, open_http
from envspec.io.http_settings import default_index_url, keeps_logins
from envspec.io.http_types import BadStatus, Credential, IncompleteResponse, Stalled, Unreachable
from envspec.io.store import Store, StoredPage
from envspec.models import DEFAULT_INDEX, Package
from envspec.origins import PYTORCH_INDEX, origin_of
from envspec.resolve.pypi.index.client import IndexClient, unreadable_page
from envspec.resolve.pypi.index.page import BadPage, ListedFile, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex

if TYPE_CHECKING:
    from aiohttp import ClientResponse


#: A connection that brought so many bytes before it broke is not counted against patience.
_PROGRESS_BYTES: Final = 16 << 20
_GONE: Final = frozenset({403, 404, 410})
_REFUSED: Final = frozenset({401, 403})


class Lookup(Enum):
    """Where a file's address may come from. REMEMBERED: from a page that was read earlier. ANEW: from its index."""

    REMEMBERED = "remembered"
    ANEW = "anew"


#: Gives the address of a file, with the credentials that its server wants.
Locate = Callable[[Archive, Lookup], Awaitable[str]]


class IndexTransport:
    """http: opened when the first file is asked for. locate: where each file is."""

    resumes: Final = True

    def __init__(self, http: Callable[[], Awaitable[Http]], locate: Locate) -> None:
        self._http = http
        self._locate = locate

    async def bring(self, archive: Archive, sink: DownloadFile) -> None:
        """See `Transport.fetch`."""
        await sink.adopt()
        url = await self._locate(archive, Lookup.REMEMBERED)
        try:
            await self._fetch(replace(archive, url=url), sink)
        except BadStatus as fault:
            if fault.status in _REFUSED:
                fault.hint = (
                    "write a login for its host into ~/.netrc, or into the file that NETRC names; https alone gets it"
                )
            if fault.status not in _GONE:
                raise
            # An index that gives every reader addresses of their own, or has moved the file since.
            anew = await self._locate(archive, Lookup.ANEW)
            if anew == url:
                raise
            await sink.restart()
            await self._fetch(replace(archive, url=anew), sink)

    async def _fetch(self, archive: Archive, sink: DownloadFile) -> None:
        wrong = 0
        while True:
            before = sink.size
            try:
                await self._pour(archive, sink)
                await sink.settle()
                check(archive, sink)
            except (Truncated, WrongArchive) as fault:
                # What was there from an earlier answer may be of another file: then from its beginning, once.
                wrong += 1
                if wrong > 1 or not (sink.is_joined or isinstance(fault, Truncated)):
                    raise
                await sink.restart()
            except (IncompleteResponse, Stalled, Unreachable):
                if not sink.is_joined or sink.size - before < _PROGRESS_BYTES:
                    raise
            else:
                return

    async def _pour(self, archive: Archive, sink: DownloadFile) -> None:
        if archive.size_bytes is not None and sink.size == archive.size_bytes:
            return

        def rest() -> dict[str, str]:
            return {"Range": f"bytes={sink.size}-"} if sink.size else {}

        async def use(answer: ClientResponse) -> None:
            if answer.status == 416 and sink.size:
                raise _NoSuchPart
            if not 200 <= answer.status < 300:
                raise BadStatus(str(answer.url), answer.status, retry_after=answer.headers.get("Retry-After"))
            await _begin(archive, answer, sink)
            async for chunk in answer.content.iter_any():
                await sink.take(chunk)
                if sink.limit is not None and sink.size > sink.limit:
                    raise Truncated(archive.of, archive.url, sink.size, sink.limit)

        http = await self._http()
        try:
            await http.stream(archive.url, use, headers=rest)
        except _NoSuchPart:
            await sink.restart()
            await http.stream(archive.url, use, headers=rest)


class _NoSuchPart(Exception):
    """The file ends before the part that was asked for."""


async def _begin(archive: Archive, answer: ClientResponse, sink: DownloadFile) -> None:
    """Make the sink ready for an answer's first byte.

    Raises:
        Truncated: it is known already that the file is not of the locked size.
    """
    if answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {sink.size}-"):
        sink.is_joined = True
    elif sink.size:
        await sink.restart()
    if answer.status == 206 and not sink.is_joined:
        raise NetworkError(
            f"{archive.of}: the server sends another part of {archive.filename} than was asked for",
            hint="a proxy in between may be at fault: look at the URL with curl -v",
        )
    coming = None if "Content-Encoding" in answer.headers else answer.content_length
    if coming is not None and sink.limit is not None and sink.size + coming != sink.limit:
        raise Truncated(archive.of, archive.url, sink.size + coming, sink.limit)


#: A page of any age will do: it is asked for again where the file is not on it.
_EVER: Final = datetime.min.replace(tzinfo=timezone.utc)
#: PyTorch's own indexes, as rows name them: `pytorch-cu128`.
PYTORCH: Final = "pytorch-"


def archive_of(package: Package) -> Archive:
    """The file that is locked for a package; its address, where the lock has none, is empty."""
    file = package.file
    return Archive(f"{package.name} {package.version}", file.url or "", file.filename, file.sha256, file.size_bytes)


class WheelUrls:
    """Addresses of the files of these packages. upstream: pages, from memory or from the network."""

    def __init__(self, packages: Iterable[Package], upstream: IndexClient, environ: Mapping[str, str]) -> None:
        self._packages = {(each.file.sha256, each.file.filename): each for each in packages}
        self._upstream = upstream
        self._environ = environ

    async def of(self, archive: Archive, ask: Ask = Lookup.REMEMBERED) -> str:
        """The address of an archive; it may hold its index's credentials.

        Raises:
            NetworkError: the index does not have it, lists it with another hash, or does not answer.
        """
        package = self._packages[archive.sha256, archive.filename]
        index = _index_of(package, self._environ)
        if index is None:
            return archive.url
        found = None
        if ask is Lookup.REMEMBERED:
            found = await self._listed(index, package, _EVER)
        return self._upstream.authorised(index, (found or await self._asked(index, package)).url)

    async def _asked(self, index: PackageIndex, package: Package) -> ListedFile:
        found = await self._listed(index, package, self._upstream.began)
        if found is None:
            raise NetworkError(
                f"{package.name} {package.version}: {package.file.filename} is not on the page of {package.name} at "
                f"{index.shown_url}",
                hint="was it deleted there? ENVSPEC_DEFAULT_INDEX names another index; or lock again",
            )
        return found

    async def _listed(self, index: PackageIndex, package: Package, as_of: datetime) -> ListedFile | None:
        """The package's file as its page has it; None where it is not there."""
        try:
            page = await self._upstream.page(index, package.name, as_of)
        except NotListed:
            return None
        found = _row_of(index, package, page)
        if found is None or found.sha256 in (None, package.file.sha256):
            return found
        if as_of == _EVER:
            # What an older page said may have been put right.
            return None
        raise NetworkError(
            f"{package.name} {package.version}: {index.shown_url} lists {found.filename} with SHA-256 {found.sha256}, "
            f"locked {package.file.sha256}",
            hint="find out who changed the file, and lock again only if the change is meant",
        )


def logins(urls: Iterable[str], environ: Mapping[str, str]) -> dict[str, Credential]:
    """The logins of `~/.netrc` (or the file that NETRC names) for the hosts that locked addresses are on, by origin.

    A lock holds no credentials, and what they give access to is known by its hash: they can't change what comes. Who
    writes a lock's addresses must not get logins that way: none is sent over plain http, where anyone on the way reads
    it, and the file's `default`, which is for any host, to nobody.

    Raises:
        UsageError: the file can't be understood.
    """
    origins = set(filter(keeps_logins, map(origin_of, urls))) - {""}
    path = _netrc(environ)
    if not origins or path is None or not path.is_file():
        return {}
    try:
        known = netrc.netrc(path)
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as fault:
        # The words of netrc's own error may be a password.
        where = f"its line {fault.lineno} has another form" if isinstance(fault, netrc.NetrcParseError) else str(fault)
        raise UsageError(f"{path} can't be read: {where}", hint="correct it, or name another by NETRC") from None
    found = {}
    for origin in sorted(origins):
        login = known.hosts.get(urlsplit(origin).hostname or "")
        if login is not None:
            found[origin] = Credential(login[0], login[2] or "")
    return found


def _netrc(environ: Mapping[str, str]) -> Path | None:
    if named := environ.get("NETRC"):
        return Path(named)
    return Path(environ["HOME"], ".netrc") if environ.get("HOME") else None


def _index_of(package: Package, environ: Mapping[str, str]) -> PackageIndex | None:
    """The index whose page names the file's address; None where the lock does."""
    name = package.file.index
    if name == DEFAULT_INDEX or not package.file.url:
        return PackageIndex(DEFAULT_INDEX, default_index_url(environ))
    mirror = environ.get("ENVSPEC_PYTORCH_INDEX")
    if mirror and name.startswith(PYTORCH) and mirror != PYTORCH_INDEX:
        variant = name.removeprefix(PYTORCH)
        return PackageIndex(name, mirror.format(variant=variant).rstrip("/") + "/", dated=False)
    return None


def _row_of(index: PackageIndex, package: Package, page: StoredPage) -> ListedFile | None:
    try:
        listing = parse_page(page.body, page.content_type, page.url)
        rows = [listing.file(n) for n, name in enumerate(listing.names) if name == package.file.filename]
    except BadPage as error:
        raise unreadable_page(index, package.name, error) from error
    # The same name twice would be two files: the locked one is meant.
    return next((row for row in rows if row.sha256 == package.file.sha256), rows[0] if rows else None)


def wheel_path(cache: Path, package: Package) -> Path:
    """Where the package's wheel is, or will be once it is fetched; for an sdist, where the wheel built of it is."""
    wheel = package.built or package.file
    return archive_path(cache, f"{package.name} {package.version}", wheel.sha256, wheel.filename)


async def fetch_wheels(
    packages: Sequence[Package],
    context: Context,
    arrived: OnFetched = ignore_fetched,
    stage: str = "fetching wheels",
) -> Mapping[str, Path]:
    """SHA-256 -> the checked file in the cache, of the file that is locked for each package (an sdist for an sdist).

    Addresses are looked up for those alone that the cache lacks; where it has all, nothing is asked and aiohttp not
    even imported.

    Raises:
        WrongArchive: other content than the lock's. NetworkError: not to be had. UsageError: proxies, CA bundle or
        netrc can't be used. CannotKeep: the cache can't be written.
    """
    async with AsyncExitStack() as stack:
        store = stack.enter_context(closing(Store(context.cache)))
        upstream = IndexClient(store, context.now)
        opening = asyncio.Lock()
        stack.push_async_callback(upstream.close)

        async def opened() -> Http:
            async with opening:
                if upstream.http is None:
                    known = logins((each.file.url for each in packages if each.file.url), context.environ)
                    door = open_http(
                        context.environ, credentials=known, timeouts=context.timeouts, on_retry=context.reporter.warning
                    )
                    upstream.http = await stack.enter_async_context(door)
                return upstream.http

        located = WheelUrls(packages, upstream, context.environ)

        async def locate(archive: Archive, ask: Lookup) -> str:
            await opened()
            return await located.of(archive, ask)

        downloads = Downloads(context, IndexTransport(opened, locate), stage)
        return await downloads.fetch([archive_of(each) for each in packages], arrived)
