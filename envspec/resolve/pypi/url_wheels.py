"""Wheels that a spec names by URL, fetched once and hashed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from urllib.parse import unquote, urlsplit

from envspec.credentials import without_credentials
from envspec.errors import WrongHash
from envspec.io.http import Http
from envspec.io.store import Store
from envspec.models import DIRECT_URL
from envspec.resolve.pypi.index.client import IndexClient
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import PackageIndex
from envspec.spec import Requirement


async def fetch_wheel(
    requirement: Requirement,
    as_of: datetime,
    http: Http | None,
    store: Store,
    now: Callable[[], datetime],
    environ: Mapping[str, str],
) -> ListedFile:
    """The wheel at a requirement's URL. It is fetched again if the last time was before `as_of`.

    environ: has the values of variables in the URL's login.
    """
    url = without_credentials(str(requirement.url))
    listed = ListedFile(unquote(urlsplit(url).path.rpartition("/")[2]), url)
    client = IndexClient(store, now, http, environ)
    found = await client.measure(PackageIndex(DIRECT_URL, str(requirement.url)), listed, as_of)
    if requirement.sha256 and requirement.sha256 != found.sha256:
        raise WrongHash(
            f"{url} has SHA-256 {found.sha256}, the spec has {requirement.sha256}",
            hint="correct the spec if the file is right, else report it to the server's operator",
        )
    return found
