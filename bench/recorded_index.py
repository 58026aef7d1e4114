"""The default index, recorded on first use and served on loopback in its own form: PEP 691 pages, PEP 658 metadata,
ETags, gzip, connections that stay open, and the time of a network's round trip before each answer.

What is missing in the recording is fetched from the default index, without that time; `fetched` counts it. Unlike the
real index it speaks HTTP/1.1 without TLS and has its files on the same host. It runs as a process of its own.

`python -m bench.recorded_index FOLDER` prints its port and serves FOLDER's recording until its standard input closes.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from bench.harness import module
from bench.peers import default_index
from envspec.io.http import Http, open_http
from envspec.io.store import Store, StoredPage
from envspec.models import DEFAULT_INDEX
from envspec.resolve.pypi.index.client import UNCOMPRESSED, IndexClient
from envspec.resolve.pypi.index.page import ListedFile, PageListing, parse_page
from envspec.resolve.pypi.index.routing import NotListed, PackageIndex

#: Added to each answer, and once more to the first of a connection.
ROUND_TRIP_S: Final = 0.02
#: The real index's headers of pages and of files. Older pages are requested again, with their ETag.
PAGE: Final = {"Content-Type": "application/vnd.pypi.simple.v1+json", "Cache-Control": "max-age={}, public"}
FILE: Final = {"Content-Type": "application/octet-stream", "Cache-Control": "max-age=365000000, immutable, public"}
#: Of how long a page counts as fresh: the real index's, in seconds, and none, as a day later.
FRESH_S: Final = 600
_COUNT: Final = "/fetched"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A running index. host: and port."""

    host: str

    @property
    def url(self) -> str:
        """Its simple pages, which clients may keep for ten minutes."""
        return f"http://{self.host}/{FRESH_S}/simple/"

    @property
    def stale_url(self) -> str:
        """The same pages, which clients have to ask for again: what they find a day later."""
        return f"http://{self.host}/0/simple/"

    def fetched(self) -> int:
        """How many answers were not in the recording so far."""
        with urllib.request.urlopen(f"http://{self.host}{_COUNT}", timeout=10) as answer:
            return int(answer.read())


@contextmanager
def running(folder: Path) -> Iterator[Recorded]:
    """An index with the recording in `folder`, for the length of the block."""
    with module("bench.recorded_index", str(folder)) as (port, _):
        yield Recorded(f"127.0.0.1:{port}")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self) -> bytes:
        fields = {"Content-Length": str(len(self.body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} -", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + self.body


async def _read(page: StoredPage) -> PageListing:
    return parse_page(page.body, page.content_type, page.url)


class _Index:
    """The recording. fetched: how many answers it lacked."""

    def __init__(self, folder: Path, http: Http) -> None:
        self.fetched = 0
        self.host = ""
        self._parts = folder / "parts"
        self._store = Store(folder)
        self._http = http
        self._client = IndexClient(self._store, lambda: datetime.now(timezone.utc), http)
        self._index = PackageIndex(DEFAULT_INDEX, default_index())
        self._files: dict[str, ListedFile] = {}
        self._pages: dict[str, tuple[str, bytes, bytes] | None] = {}

    async def answer(self, path: str, headers: Mapping[str, str]) -> tuple[_Answer, bool]:
        """The answer, and whether it was in the recording."""
        before = self.fetched
        parts = path.strip("/").split("/")
        if path == _COUNT:
            return _Answer(200, body=str(self.fetched).encode()), False
        if len(parts) == 3 and parts[1] == "simple":
            found = await self._page(parts[2], parts[0], headers)
        elif len(parts) == 3 and parts[0] == "files":
            found = await self._file(parts[1], parts[2], headers.get("range", ""))
        else:
            found = _Answer(404)
        return found, self.fetched == before

    def close(self) -> None:
        self._store.close()

    async def _page(self, name: str, fresh: str, headers: Mapping[str, str]) -> _Answer:
        if name not in self._pages:
            self._pages[name] = await self._loaded(name)
        page = self._pages[name]
        if page is None:
            return _Answer(404)
        etag, plain, packed = page
        fields = {**PAGE, "Cache-Control": PAGE["Cache-Control"].format(fresh), "ETag": etag, "Vary": "Accept-Encoding"}
        if headers.get("if-none-match") == etag:
            return _Answer(304, fields)
        if "gzip" in headers.get("accept-encoding", ""):
            return _Answer(200, {**fields, "Content-Encoding": "gzip"}, packed)
        return _Answer(200, fields, plain)

    async def _loaded(self, name: str) -> tuple[str, bytes, bytes] | None:
        """A page's ETag, and its body, also packed; None if the index does not have it."""
        if self._store.page(self._index.key, name) is None:
            self.fetched += 1
        try:
            # A recorded page is never fetched again.
            listing = await self._client.page(self._index, name, datetime(2000, 1, 1, tzinfo=timezone.utc), _read)
        except NotListed:
            return None
        entries = [self._entry(listing.file(number)) for number in range(len(listing.names))]
        versions = sorted({entry["filename"].split("-")[1] for entry in entries if "-" in entry["filename"]})
        document = {"files": entries, "meta": {"api-version": "1.4"}, "name": name, "versions": versions}
        plain = json.dumps(document, separators=(",", ":")).encode()
        return f'"{hashlib.sha256(plain).hexdigest()[:32]}"', plain, gzip.compress(plain, 6)

    def _entry(self, file: ListedFile) -> dict[str, Any]:
        """As the real index writes it. Metadata that is not recorded has no hash that could be checked."""
        sha256 = str(file.sha256)
        self._files[sha256] = file
        entry: dict[str, Any] = {
            "filename": file.filename,
            "hashes": {"sha256": sha256},
            "provenance": None,
            "requires-python": file.requires_python,
            "size": file.size_bytes,
            "upload-time": file.uploaded,
            "url": f"http://{self.host}/files/{sha256}/{quote(file.filename)}",
            "yanked": False if file.yanked is None else file.yanked or True,
        }
        if not file.filename.endswith(".whl"):
            return {"core-metadata": False, "data-dist-info-metadata": False, **entry}
        known = self._store.metadata(sha256)
        digest = {"sha256": hashlib.sha256(known.body).hexdigest()} if known else True
        # The second key is there for its length alone: all tools prefer the first.
        return {"core-metadata": digest, "data-dist-info-metadata": {"sha256": sha256}, **entry}

    async def _file(self, sha256: str, name: str, span: str) -> _Answer:
        file = self._files.get(sha256)
        if file is None:
            return _Answer(404)
        if name.endswith(".metadata"):
            if self._store.metadata(sha256) is None:
                self.fetched += 1
            return _Answer(200, FILE, (await self._client.metadata(self._index, file)).body)
        start, end = _interval(span, file.size_bytes or 0)
        body = await self._part(file, start, end)
        fields = {**FILE, "Content-Range": f"bytes {start}-{end - 1}/{file.size_bytes}"} if span else FILE
        return _Answer(206 if span else 200, fields, body)

    async def _part(self, file: ListedFile, start: int, end: int) -> bytes:
        folder = self._parts / str(file.sha256)
        for path in folder.glob("*"):
            first = int(path.name)
            if first <= start and end <= first + path.stat().st_size:
                return path.read_bytes()[start - first : end - first]
        self.fetched += 1
        headers = {**UNCOMPRESSED, "Range": f"bytes={start}-{end - 1}"}
        body = (await self._http.get(file.url, headers=headers, max_bytes=1 << 30)).checked().body
        folder.mkdir(parents=True, exist_ok=True)
        # Servers without ranges send all.
        first, body = (0, body) if len(body) == file.size_bytes else (start, body)
        (folder / str(first)).write_bytes(body)
        return body[start - first : end - first]


def _interval(span: str, size: int) -> tuple[int, int]:
    """Of a Range header, half-open; the whole file without one."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", span)
    if not found:
        return 0, size
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2] or size - 1) + 1)


class _Connection(asyncio.Protocol):
    def __init__(self, index: _Index) -> None:
        self._index = index
        self._received = b""
        self._delay_s = 2 * ROUND_TRIP_S
        self._running: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            # One request at a time: no client here sends the next before the answer.
            self._received = rest
            task = asyncio.ensure_future(self._serve(head.decode("latin-1")))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _serve(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        received = asyncio.get_running_loop().time()
        answer, is_recorded = await self._index.answer(unquote(target), fields)
        data = answer.encoded()
        if method == "HEAD":
            data = data[: data.index(b"\r\n\r\n") + 4]
        if is_recorded:
            await asyncio.sleep(received + self._delay_s - asyncio.get_running_loop().time())
        self._delay_s = ROUND_TRIP_S
        self._transport.write(data)


async def _main(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    async with open_http({}) as http:
        index = _Index(folder, http)
        server = await loop.create_server(lambda: _Connection(index), "127.0.0.1", 0, backlog=256)
        port = server.sockets[0].getsockname()[1]
        index.host = f"127.0.0.1:{port}"
        print(port, flush=True)
        with suppress(asyncio.CancelledError):
            await loop.run_in_executor(None, sys.stdin.read)
        server.close()
        index.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
