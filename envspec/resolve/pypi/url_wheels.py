"""Wheels that a spec names by URL: fetched once, hashed, and from then on a version like any other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from email.parser import BytesParser
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envspec.credentials import filled, without_credentials
from envspec.errors import NetworkError
from envspec.io.http import Http
from envspec.io.store import Store, StoredMetadata
from envspec.resolve import cache
from envspec.resolve.pypi.index.client import OfflineMiss
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.remote_wheel import BadWheel, part_of, pour, read_metadata, read_record
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
    """The wheel at a requirement's URL, hashed. environ: has the values of variables in the URL's login.

    A wheel that was fetched at or after `as_of` is not fetched again.

    Raises:
        NetworkError: it can't be fetched, is no wheel, or has another hash than the spec demands.
    """
    url = without_credentials(str(requirement.url))
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    key = cache.key_of(["wheel", url])
    known = store.answer(key)
    if known is None or datetime.fromisoformat(known["asked"]) < as_of or store.metadata(known["sha256"]) is None:
        if http is None:
            raise OfflineMiss(url)
        asked = now()
        sha256, metadata, record = await _fetch(http, filled(str(requirement.url), environ), filename)
        store.put_metadata(sha256, metadata)
        store.put_record(sha256, record)
        known = {"asked": asked.isoformat(), "sha256": sha256, "size_bytes": metadata.size_bytes}
        store.put_answer(key, known)
    if requirement.sha256 and requirement.sha256 != known["sha256"]:
        raise NetworkError(
            f"{url} has SHA-256 {known['sha256']}, the spec demands {requirement.sha256}",
            hint="correct the spec if the file is right; else tell who serves it",
        )
    return ListedFile(filename, url, known["sha256"], known["size_bytes"], None, None, None, None)


async def _fetch(http: Http, url: str, filename: str) -> tuple[str, StoredMetadata, bytes | None]:
    with tempfile.TemporaryFile() as file:
        sha256 = await pour(http, url, file, _LARGEST_BYTES)
        metadata, record = await _metadata(file, filename)
        return sha256, StoredMetadata(metadata, file.seek(0, os.SEEK_END)), record


async def _metadata(file: IO[bytes], filename: str) -> tuple[bytes, bytes | None]:
    """METADATA, and RECORD where it can be read."""
    read = part_of(file)
    try:
        metadata, _ = await read_metadata(read)
        _same_release(metadata, filename)
    except BadWheel as error:
        raise NetworkError(f"{filename} is no usable wheel: {error}", hint="check the URL in the spec") from error
    try:
        return metadata, await read_record(read)
    except BadWheel:
        return metadata, None


def _same_release(metadata: bytes, filename: str) -> None:
    """Refuse a wheel that is another one by what it says of itself."""
    head = BytesParser().parsebytes(metadata, headersonly=True)
    name, version = head.get("Name", ""), head.get("Version", "")
    wanted_name, wanted_version, *_ = parse_wheel_filename(filename)
    try:
        same = canonicalize_name(name) == wanted_name and Version(version) == wanted_version
    except InvalidVersion:
        same = False
    if not same:
        raise BadWheel(f"its METADATA says {name} {version}")
