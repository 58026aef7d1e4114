"""Where the files of a lock are: rows of the default index by its pages, rows of named indexes by their own address.

A lock never names the default index. Pages that `envspec lock` read are in the cache's memory and good for this: a file
that was listed once has the hash that it had.
"""

from __future__ import annotations

import netrc
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from envspec.effects.default_index import default_index_url
from envspec.effects.http_values import Credential
from envspec.effects.surroundings import keeps_logins
from envspec.errors import NetworkError, UsageError
from envspec.fetch.index_transport import Ask
from envspec.fetch.values import Archive
from envspec.model import DEFAULT_INDEX, Package
from envspec.origins import PYTORCH_INDEX, origin_of
from envspec.resolve.index.page import BadPage, ListedFile, parse_page
from envspec.resolve.index.store import StoredPage
from envspec.resolve.index.upstream import Index, NotListed, Upstream, unreadable

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

    def __init__(self, packages: Iterable[Package], upstream: Upstream, environ: Mapping[str, str]) -> None:
        self._packages = {(each.file.sha256, each.file.filename): each for each in packages}
        self._upstream = upstream
        self._environ = environ

    async def of(self, archive: Archive, ask: Ask = Ask.REMEMBERED) -> str:
        """The address of an archive; it may hold its index's credentials.

        Raises:
            NetworkError: the index does not have it, lists it with another hash, or does not answer.
        """
        package = self._packages[archive.sha256, archive.filename]
        index = _index_of(package, self._environ)
        if index is None:
            return archive.url
        found = None
        if ask is Ask.REMEMBERED:
            found = await self._listed(index, package, _EVER)
        return self._upstream.authorised(index, (found or await self._asked(index, package)).url)

    async def _asked(self, index: Index, package: Package) -> ListedFile:
        found = await self._listed(index, package, self._upstream.began)
        if found is None:
            raise NetworkError(
                f"{package.name} {package.version}: {package.file.filename} is not on the page of {package.name} at "
                f"{index.shown_url}",
                hint="was it deleted there? ENVSPEC_DEFAULT_INDEX names another index; or lock again",
            )
        return found

    async def _listed(self, index: Index, package: Package, as_of: datetime) -> ListedFile | None:
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


def _index_of(package: Package, environ: Mapping[str, str]) -> Index | None:
    """The index whose page names the file's address; None where the lock does."""
    name = package.file.index
    if name == DEFAULT_INDEX or not package.file.url:
        return Index(DEFAULT_INDEX, default_index_url(environ))
    mirror = environ.get("ENVSPEC_PYTORCH_INDEX")
    if mirror and name.startswith(PYTORCH) and mirror != PYTORCH_INDEX:
        variant = name.removeprefix(PYTORCH)
        return Index(name, mirror.format(variant=variant).rstrip("/") + "/", dated=False)
    return None


def _row_of(index: Index, package: Package, page: StoredPage) -> ListedFile | None:
    try:
        listing = parse_page(page.body, page.content_type, page.url)
        rows = [listing.row(n) for n, name in enumerate(listing.names) if name == package.file.filename]
    except BadPage as error:
        raise unreadable(index, package.name, error) from error
    # The same name twice would be two files: the locked one is meant.
    return next((row for row in rows if row.sha256 == package.file.sha256), rows[0] if rows else None)
