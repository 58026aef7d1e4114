"""sdists that a spec names by URL: fetched once, hashed, and kept with all archives."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from envspec.credentials import filled, without_credentials
from envspec.effects.cache import keeping
from envspec.effects.files import beside
from envspec.effects.http import open_http
from envspec.errors import NetworkError
from envspec.fetch.values import Fetching, Network, archive_path
from envspec.model import DIRECT_URL, WheelFile
from envspec.resolve import memory
from envspec.resolve.index.remote_wheel import pour
from envspec.resolve.index.store import Store
from envspec.resolve.index.upstream import OfflineMiss
from envspec.spec import Requirement

_LARGEST_BYTES: Final = 4 << 30


async def fetch_sdist(
    requirement: Requirement, as_of: datetime, asked: datetime, store: Store, how: Fetching, environ: Mapping[str, str]
) -> tuple[WheelFile, Path]:
    """The lock's row of the sdist at a requirement's URL, and the file in the cache.

    asked: the clock. One that was fetched at or after `as_of` is not fetched again.

    Raises:
        NetworkError: it can't be fetched, or has another hash than the spec demands. CannotKeep: the cache is full.
    """
    url = without_credentials(str(requirement.url))
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    key = memory.key_of(["sdist", url])
    known = store.answer(key)

    def kept(sha256: str) -> Path:
        return archive_path(how.cache, requirement.name, sha256, filename)

    there = known is not None and await asyncio.to_thread(kept(known["sha256"]).is_file)
    if known is None or not there or datetime.fromisoformat(known["asked"]) < as_of:
        if how.network is Network.OFFLINE:
            raise OfflineMiss(url)
        with tempfile.TemporaryFile() as file:
            async with open_http(environ) as http:
                sha256 = await pour(http, filled(str(requirement.url), environ), file, _LARGEST_BYTES)
            await asyncio.to_thread(_keep, file, kept(sha256))
            known = {"asked": asked.isoformat(), "sha256": sha256}
        store.remember_answer(key, known)
    if requirement.sha256 and requirement.sha256 != known["sha256"]:
        raise NetworkError(
            f"{url} has SHA-256 {known['sha256']}, the spec demands {requirement.sha256}",
            hint="correct the spec if the file is right; else tell who serves it",
        )
    path = kept(known["sha256"])
    size = (await asyncio.to_thread(path.stat)).st_size
    return WheelFile(DIRECT_URL, filename, known["sha256"], size, url), path


def _keep(file: IO[bytes], path: Path) -> None:
    file.seek(0)
    with keeping(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside(path) as new, new.open("xb") as out:
            shutil.copyfileobj(file, out)
