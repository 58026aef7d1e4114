"""When the wheels that a build requires were first on their indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from datetime import datetime
from fnmatch import fnmatchcase

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envspec.build.types import BuildRequest
from envspec.context import Context
from envspec.errors import NetworkError
from envspec.fetch.wheels import logins
from envspec.io.http import open_http
from envspec.io.http_settings import default_index_url
from envspec.io.store import Store, StoredPage
from envspec.models import DEFAULT_INDEX, Target
from envspec.names import normalised
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import ListedFile, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex, routes_of
from envspec.resolve.pypi.index.selection import TagRanks
from envspec.spec.targets import marker_environment, wheel_tags


async def first_date(
    requires: Sequence[Requirement], request: BuildRequest, target: Target, context: Context
) -> datetime | None:
    """The earliest time up to which there are wheels for each requirement of a build; None: that is not known.

    Upload times do not change: it is the same on every machine. target: where the build runs.
    """
    environment, newest = marker_environment(target), []
    async with AsyncExitStack() as stack:
        client = IndexClient(stack.enter_context(closing(Store(context.cache))), context.now, environ=context.environ)
        stack.push_async_callback(client.close)
        if not context.is_offline:
            stored = logins((each.url for each in request.indexes), context.environ)
            client.http = await stack.enter_async_context(open_http(context.environ, credentials=stored))
        for requirement in requires:
            if requirement.marker and not requirement.marker.evaluate(environment):
                continue
            index = _index_of(normalised(requirement.name), request, context)
            times = await _upload_times(requirement, index, target, request.as_of, client)
            if not times:
                return None
            newest.append(min(times))
    return max(newest, default=None)


def _index_of(name: str, request: BuildRequest, context: Context) -> PackageIndex:
    for route in routes_of(request.indexes):
        if fnmatchcase(name, route.pattern):
            return route.index
    return PackageIndex(DEFAULT_INDEX, default_index_url(context.environ))


async def _upload_times(
    requirement: Requirement, index: PackageIndex, target: Target, as_of: datetime, client: IndexClient
) -> list[datetime]:
    """Those of the wheels that a target can load and a requirement allows; empty if the index can't be read."""
    ranks = TagRanks(tuple(wheel_tags(target)))

    async def read(page: StoredPage) -> list[datetime]:
        listing = await asyncio.to_thread(parse_page, page.body, page.content_type, page.url)
        times = []
        for number in range(len(listing.names)):
            file = listing.file(number)
            if file.uploaded and ranks.rank(file.filename) is not None and _meets(file, requirement):
                times.append(datetime.fromisoformat(file.uploaded.replace("Z", "+00:00")))
        return times

    # A page of the cache may be older than the release.
    for moment in (as_of, client.began):
        try:
            if times := await client.page(index, normalised(requirement.name), moment, read):
                return times
        except (NotListed, NetworkError):
            return []
    return []


def _meets(file: ListedFile, requirement: Requirement) -> bool:
    try:
        version = parse_wheel_filename(file.filename)[1]
    except InvalidWheelFilename:
        return False
    return file.yanked is None and requirement.specifier.contains(version)
