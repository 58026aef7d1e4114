"""The names and addresses of files that a lock has by their hashes alone, from the pages of their indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timezone
from typing import Final

from envspec.adopt.rows import ForeignLock, LockedFile, Row, index_name
from envspec.io.http_settings import default_index_url
from envspec.io.lazy_http import open_lazy_http
from envspec.io.store import StoredPage
from envspec.io.tasks import gather_or_cancel, run_interruptible
from envspec.models import DEFAULT_INDEX
from envspec.operations.lock_state import LockState
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import ListedFile, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex
from envspec.structs import replace

#: Any page is new enough that has the hashes.
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def needs_pages(row: Row) -> bool:
    """Whether a row's files are known by their hashes alone, or their addresses are not."""
    if row.hashes and not row.files:
        return True
    return row.index != DEFAULT_INDEX and any(not file.url for file in row.files)


def with_listed_files(found: ForeignLock, state: LockState) -> ForeignLock:
    """The lock with the files that the pages of its indexes list under its hashes.

    Raises:
        NetworkError: a page can't be read. OfflineMiss: no network, and no page in the cache has the hashes.
    """
    if not any(map(needs_pages, found.rows)):
        return found
    return replace(found, rows=run_interruptible(_listed(found, state)))


async def _listed(found: ForeignLock, state: LockState) -> tuple[Row, ...]:
    async with AsyncExitStack() as stack:
        client = IndexClient(state.store, state.context.now, environ=state.context.environ)
        stack.push_async_callback(client.close)
        if not state.context.is_offline:
            client.http = await stack.enter_async_context(open_lazy_http(state.context.environ))

        async def of_row(row: Row) -> Row:
            if not needs_pages(row):
                return row
            hashes = row.hashes or frozenset(file.sha256 for file in row.files)
            for index in _indexes(row, found.indexes, default_index_url(state.context.environ)):
                if files := await _files(row.name, index, hashes, client):
                    name = index_name(index.url) if found.indexes else row.index
                    return replace(row, index=name, index_url=index.url, files=files)
            return row

        return tuple(await gather_or_cancel(map(of_row, found.rows), state.context.jobs))


def _indexes(row: Row, urls: Sequence[str], default: str) -> Iterable[PackageIndex]:
    """Where to look for a row: on its own index, else on those that the lock names, else on the default one."""
    if row.index != DEFAULT_INDEX:
        urls = (row.index_url,)
    for url in urls or (default,):
        name = index_name(url)
        if name == DEFAULT_INDEX or url == default:
            yield PackageIndex(DEFAULT_INDEX, default)
        else:
            yield PackageIndex(name, f"{url.rstrip('/')}/", dated=False)


async def _files(name: str, index: PackageIndex, hashes: frozenset[str], client: IndexClient) -> tuple[LockedFile, ...]:
    """The files of these hashes; none if the index does not have them."""

    async def read(page: StoredPage) -> tuple[LockedFile, ...]:
        listing = await asyncio.to_thread(parse_page, page.body, page.content_type, page.url)
        files = (listing.file(number) for number in range(len(listing.names)))
        return tuple(_locked(file) for file in files if file.sha256 in hashes)

    for as_of in (_EARLIEST, client.began):
        try:
            if files := await client.page(index, name, as_of, read):
                return files
        except NotListed:
            return ()
    return ()


def _locked(file: ListedFile) -> LockedFile:
    uploaded = datetime.fromisoformat(file.uploaded.replace("Z", "+00:00")) if file.uploaded else None
    return LockedFile(file.filename, file.url, file.sha256 or "", file.size_bytes, uploaded)
