"""Wheels that a spec names by URL, fetched once and hashed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from email.parser import BytesParser
from typing import Final
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envspec.credentials import filled, without_credentials
from envspec.errors import NetworkError
from envspec.io.http import Http
from envspec.io.store import Store, StoredMetadata
from envspec.resolve import cache
from envspec.resolve.pypi.index.file_metadata import BadRemoteWheel, read_file
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import OfflineMiss
from envspec.spec import Requirement

_LARGEST_BYTES: Final = 8 * 1024**3


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
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    key = cache.key_of(["wheel", url])
    cached = store.answer(key)
    if cached is None or datetime.fromisoformat(cached["fetched"]) < as_of or store.metadata(cached["sha256"]) is None:
        if http is None:
            raise OfflineMiss(url)
        started = now()
        sha256, metadata, record = await _fetch(http, filled(str(requirement.url), environ), filename)
        store.put_metadata(sha256, metadata)
        store.put_record(sha256, record)
        cached = {"fetched": started.isoformat(), "sha256": sha256, "size_bytes": metadata.size_bytes}
        store.put_answer(key, cached)
    if requirement.sha256 and requirement.sha256 != cached["sha256"]:
        raise NetworkError(
            f"{url} has SHA-256 {cached['sha256']}, the spec has {requirement.sha256}",
            hint="correct the spec if the file is right, else report it to whoever serves it",
        )
    return ListedFile(filename, url, cached["sha256"], cached["size_bytes"])


async def _fetch(http: Http, url: str, filename: str) -> tuple[str, StoredMetadata, bytes | None]:
    """The SHA-256, METADATA, and RECORD if it can be read."""
    with tempfile.TemporaryFile() as file:
        sha256 = await http.download(url, file, _LARGEST_BYTES)
        try:
            metadata, size_bytes, record = await read_file(file)
            _check_release(metadata, filename)
        except BadRemoteWheel as error:
            raise NetworkError(f"{filename} is no usable wheel: {error}", hint="check the URL in the spec") from error
        return sha256, StoredMetadata(metadata, size_bytes), record


def _check_release(metadata: bytes, filename: str) -> None:
    """Refuse a wheel whose METADATA has another name or version than its file name."""
    head = BytesParser().parsebytes(metadata, headersonly=True)
    name, version = head.get("Name", ""), head.get("Version", "")
    expected_name, expected_version, *_ = parse_wheel_filename(filename)
    with suppress(InvalidVersion):
        if canonicalize_name(name) == expected_name and Version(version) == expected_version:
            return
    raise BadRemoteWheel(f"its METADATA is of {name} {version}")
