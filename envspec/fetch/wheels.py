"""Wheels from indexes.

A lock never names the default index. Pages cached by `envspec lock` are used here: the hash of a listed file does not
change.
"""

from __future__ import annotations

import asyncio
import netrc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from envspec.context import Context
from envspec.credentials import without_credentials
from envspec.errors import NetworkError, UsageError, WrongHash
from envspec.fetch.download import Downloads
from envspec.fetch.types import Archive, OnFetched, Truncated, WrongArchive, archive_path, check, ignore_fetched
from envspec.io.download import DownloadFile
from envspec.io.http import Http, open_http, status_error
from envspec.io.http_settings import default_index_url, keeps_logins
from envspec.io.http_types import BadStatus, Credential, IncompleteResponse, Stalled, Unreachable
from envspec.io.store import Store, StoredPage
from envspec.io.tasks import gather_or_cancel
from envspec.models import DEFAULT_INDEX, Package
from envspec.origins import PYTORCH, PYTORCH_INDEX, origin_of
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import ListedFile, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex
from envspec.structs import replace

if TYPE_CHECKING:
    from aiohttp import ClientResponse


#: A connection that broke after this many bytes does not count as a failed attempt.
_PROGRESS_BYTES: Final = 16 << 20
_GONE: Final = frozenset({403, 404, 410})
#: Statuses of a server that a login may change.
REFUSED: Final = frozenset({401, 403})
#: A cached page of any age is good enough: it is fetched again if the file is not on it.
_ANY_AGE: Final = datetime.min.replace(tzinfo=timezone.utc)


def login_hint(url: str, environ: Mapping[str, str]) -> str:
    """What to do if a server refuses a request for a file."""
    if not keeps_logins(url):
        return "logins of a netrc file are not sent over plain http: use an index with https"
    host, path = urlsplit(url).hostname or "", _netrc(environ)
    if path is None or not path.is_file():
        return f"write a login for {host} into ~/.netrc, or into the file that NETRC names"
    try:
        hosts = _logins_in(path)
    except UsageError as error:
        return f"{error.message}: correct it"
    if host in hosts:
        return f"correct the login for {host} in {path}"
    hint = f"add a login for {host} to {path}"
    if "default" in hosts:
        hint += ", whose `default` is not used"
    return hint


class Lookup(Enum):
    """Where a file's URL may come from: a cached page, or its index."""

    CACHED = "cached"
    FRESH = "fresh"


#: Gives the URL of a file, with the credentials for its server.
Locate = Callable[[Archive, Lookup], Awaitable[str]]


class IndexTransport:
    """http: opened for the first file. locate: gives each file's URL. environ: names the netrc file of hints."""

    resumes: Final = True

    def __init__(self, http: Callable[[], Awaitable[Http]], locate: Locate, environ: Mapping[str, str]) -> None:
        self._http = http
        self._locate = locate
        self._environ = environ

    async def fetch(self, archive: Archive, file: DownloadFile) -> None:
        """See `Transport.fetch`."""
        await file.resume()
        url = await self._locate(archive, Lookup.CACHED)
        try:
            await self._fetch(replace(archive, url=url), file)
        except BadStatus as error:
            if error.status in REFUSED:
                error.hint = login_hint(error.url, self._environ)
            if error.status not in _GONE:
                raise
            # An index that gives every reader its own URLs, or has moved the file since.
            fresh = await self._locate(archive, Lookup.FRESH)
            if fresh == url:
                raise
            await file.restart()
            await self._fetch(replace(archive, url=fresh), file)

    async def _fetch(self, archive: Archive, file: DownloadFile) -> None:
        is_second = False
        while True:
            before = file.size
            try:
                await self._fetch_rest(archive, file)
                await file.flush()
                check(archive, file)
            except (Truncated, WrongArchive) as error:
                # The part from an earlier response may be of another file: start over, once.
                if is_second or not (file.is_resumed or isinstance(error, Truncated)):
                    raise
                is_second = True
                await file.restart()
            except (IncompleteResponse, Stalled, Unreachable):
                if not file.is_resumed or file.size - before < _PROGRESS_BYTES:
                    raise
            else:
                return

    async def _fetch_rest(self, archive: Archive, file: DownloadFile) -> None:
        if archive.size_bytes is not None and file.size == archive.size_bytes:
            return

        def headers() -> dict[str, str]:
            return {"Range": f"bytes={file.size}-"} if file.size else {}

        async def use(response: ClientResponse) -> None:
            if response.status == 416 and file.size:
                raise _NoSuchRange
            if not 200 <= response.status < 300:
                raise status_error(response)
            await _begin(archive, response, file)
            async for chunk in response.content.iter_any():
                await file.feed(chunk)
                if file.limit is not None and file.size > file.limit:
                    raise Truncated(archive.of, archive.url, file.size, file.limit)

        http = await self._http()
        try:
            await http.stream(archive.url, use, headers=headers)
        except _NoSuchRange:
            await file.restart()
            await http.stream(archive.url, use, headers=headers)


class _NoSuchRange(Exception):
    """The file ends before the requested range."""


async def _begin(archive: Archive, response: ClientResponse, file: DownloadFile) -> None:
    """Prepare the file for a response's first byte.

    Raises:
        Truncated: the headers already show another size than the locked one.
    """
    if response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {file.size}-"):
        file.is_resumed = True
    elif file.size:
        await file.restart()
    if response.status == 206 and not file.is_resumed:
        raise NetworkError(
            f"{archive.of}: the server sends another part of {archive.filename} than requested",
            hint="look at the URL with curl -v: a proxy in between may cause it",
        )
    rest = None if "Content-Encoding" in response.headers else response.content_length
    if rest is not None and file.limit is not None and file.size + rest != file.limit:
        raise Truncated(archive.of, archive.url, file.size + rest, file.limit)


def archive_of(package: Package) -> Archive:
    """The locked file of a package; its URL is empty if the lock has none."""
    file = package.file
    return Archive(f"{package.name} {package.version}", file.url or "", file.filename, file.sha256, file.size_bytes)


class NotOnPage(NetworkError, code="file-not-on-index"):
    """An index does not list a locked file."""


class WheelUrls:
    """URLs of the files of these packages. upstream: pages, cached or from the network."""

    def __init__(self, packages: Iterable[Package], upstream: IndexClient, environ: Mapping[str, str]) -> None:
        self._packages = {(each.file.sha256, each.file.filename): each for each in packages}
        self._upstream = upstream
        self._environ = environ

    async def of(self, archive: Archive, lookup: Lookup = Lookup.CACHED) -> str:
        """The URL of an archive; it may contain its index's credentials.

        Raises:
            NetworkError: as `listed`.
        """
        index, url = await self.listed(archive, lookup)
        return url if index is None else self._upstream.with_login(index, url)

    async def listed(self, archive: Archive, lookup: Lookup = Lookup.CACHED) -> tuple[PackageIndex | None, str]:
        """The index whose page lists an archive, None if the lock has its URL; and the URL, as it is listed.

        Raises:
            NetworkError: the index does not list it, lists it with another hash, or does not answer.
        """
        package = self._packages[archive.sha256, archive.filename]
        index = _index_of(package, self._environ)
        if index is None:
            return None, archive.url
        found = None
        if lookup is Lookup.CACHED:
            found = await self._listed(index, package, _ANY_AGE)
        found = found or await self._listed(index, package, self._upstream.began)
        if found is None:
            raise NotOnPage(
                f"{package.name} {package.version}: {package.file.filename} is not on the page of {package.name} at "
                f"{index.shown_url}",
                hint="lock again, or set ENVSPEC_DEFAULT_INDEX to an index that still has the file",
            )
        return index, found.url

    async def _listed(self, index: PackageIndex, package: Package, as_of: datetime) -> ListedFile | None:
        async def read(page: StoredPage) -> ListedFile | None:
            listing = parse_page(page.body, page.content_type, page.url)
            files = [listing.file(n) for n, name in enumerate(listing.names) if name == package.file.filename]
            # If the name is listed twice, the locked file counts.
            locked = [file for file in files if file.sha256 == package.file.sha256]
            return next(iter(locked or files), None)

        try:
            found = await self._upstream.page(index, package.name, as_of, read)
        except NotListed:
            return None
        if found is None or found.sha256 in (None, package.file.sha256):
            return found
        if as_of == _ANY_AGE:
            # A newer page may have corrected it.
            return None
        raise WrongHash(
            f"{package.name} {package.version}: {index.shown_url} lists {found.filename} with SHA-256 {found.sha256}, "
            f"locked {package.file.sha256}",
            hint="find out who changed the file, and lock again only if the change is intended",
        )


def logins(urls: Iterable[str], environ: Mapping[str, str]) -> dict[str, Credential]:
    """The logins in `~/.netrc` (or the file in NETRC) for the hosts of locked URLs, by origin.

    A lock contains no credentials, and files are checked by hash: a login cannot change them. The author of a lock's
    URLs must not obtain logins: none is sent over plain http, where anyone on the way reads it, and the file's
    `default`, which is for any host, is not used.

    Raises:
        UsageError: the file can't be parsed.
    """
    origins = set(filter(keeps_logins, map(origin_of, urls))) - {""}
    path = _netrc(environ)
    if not origins or path is None or not path.is_file():
        return {}
    hosts = _logins_in(path)
    logins_of = ((origin, hosts.get(urlsplit(origin).hostname or "")) for origin in sorted(origins))
    return {origin: Credential(login[0], login[2] or "") for origin, login in logins_of if login is not None}


def _logins_in(path: Path) -> Mapping[str, tuple[str, str | None, str | None]]:
    """Host -> login, account and password.

    Raises:
        UsageError: the file can't be parsed.
    """
    try:
        return netrc.netrc(path).hosts
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        # The text of netrc's own error may contain a password.
        where = f"line {error.lineno} is invalid" if isinstance(error, netrc.NetrcParseError) else str(error)
        raise UsageError(f"{path} can't be read: {where}", hint="correct it, or set NETRC to another file") from None


def _netrc(environ: Mapping[str, str]) -> Path | None:
    if named := environ.get("NETRC"):
        return Path(named)
    return Path(environ["HOME"], ".netrc") if environ.get("HOME") else None


def _index_of(package: Package, environ: Mapping[str, str]) -> PackageIndex | None:
    """The index whose page lists the file; None if the lock has its URL."""
    name = package.file.index
    if name == DEFAULT_INDEX or not package.file.url:
        return PackageIndex(DEFAULT_INDEX, default_index_url(environ))
    mirror = environ.get("ENVSPEC_PYTORCH_INDEX")
    if mirror and name.startswith(PYTORCH) and mirror != PYTORCH_INDEX:
        variant = name.removeprefix(PYTORCH)
        return PackageIndex(name, mirror.format(variant=variant).rstrip("/") + "/", dated=False)
    return None


def wheel_path(cache: Path, package: Package) -> Path:
    """The path of the package's wheel in the cache, fetched or not; of an sdist, of the wheel built from it."""
    wheel = package.wheel
    return archive_path(cache, f"{package.name} {package.version}", wheel.sha256, wheel.filename)


async def fetch_wheels(
    packages: Sequence[Package],
    context: Context,
    on_fetched: OnFetched = ignore_fetched,
    stage: str = "fetching wheels",
) -> Mapping[str, Path]:
    """SHA-256 -> the checked file in the cache, of each package's locked file (of an sdist, the sdist).

    If the cache has all of them, no URL is looked up and aiohttp not even imported.

    Raises:
        WrongArchive: not the locked content. NetworkError: not available. UsageError: proxies, CA bundle or netrc can't
        be used. CacheError: the cache can't be written.
    """
    async with _looking_up(packages, context) as (urls, opened):

        async def locate(archive: Archive, lookup: Lookup) -> str:
            await opened()
            return await urls.of(archive, lookup)

        downloads = Downloads(context, IndexTransport(opened, locate, context.environ), stage)
        return await downloads.fetch([archive_of(each) for each in packages], on_fetched)


async def locate_wheels(packages: Sequence[Package], context: Context) -> dict[str, tuple[str, str]]:
    """SHA-256 -> the URL of each package's locked file, and that of the index whose page lists it, empty if the lock
    has the file's URL. Both without credentials.

    Raises:
        NetworkError: an index does not list a file, or does not answer. UsageError: as `fetch_wheels`.
    """
    async with _looking_up(packages, context) as (urls, opened):
        if not context.is_offline:
            await opened()

        async def one(package: Package) -> tuple[str, tuple[str, str]]:
            index, url = await urls.listed(archive_of(package))
            return package.file.sha256, (without_credentials(url), without_credentials(index.url) if index else "")

        return dict(await gather_or_cancel(map(one, packages), context.jobs))


@asynccontextmanager
async def _looking_up(
    packages: Sequence[Package], context: Context
) -> AsyncIterator[tuple[WheelUrls, Callable[[], Awaitable[Http]]]]:
    """What finds the URLs of these packages, and what opens the connection for it, once."""
    async with AsyncExitStack() as stack:
        store = stack.enter_context(closing(Store(context.cache)))
        upstream = IndexClient(store, context.now)
        opening = asyncio.Lock()
        stack.push_async_callback(upstream.close)

        http: Http | None = None

        async def opened() -> Http:
            nonlocal http
            async with opening:
                if http is None:
                    stored = logins((each.file.url for each in packages if each.file.url), context.environ)
                    entering = open_http(
                        context.environ,
                        credentials=stored,
                        timeouts=context.timeouts,
                        on_retry=context.reporter.warning,
                    )
                    http = upstream.http = await stack.enter_async_context(entering)
                return http

        yield WheelUrls(packages, upstream, context.environ), opened
