"""The default index, recorded on first use and served on loopback in its own form: PEP 691 pages, PEP 658 metadata,
ETags, gzip, connections that stay open, and the time of a network's round trip before each answer.

What the recording lacks is fetched from the default index, without that time; `fetched` counts it. Unlike the real
index it speaks HTTP/1.1 and has its files on the same host. It runs as a process of its own, and uses none of envspec's
modules: one recording and one speed of the index for all versions of envspec.

`python -m bench.recorded_index FOLDER [CERTIFICATE KEY]` prints its port and serves FOLDER's recording until its
standard input closes, with TLS if there is a certificate.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion

from bench.harness import NotHere, default_index, module

#: Added to each answer, and to the first of a connection once more for TCP and once more for TLS.
ROUND_TRIP_S: Final = 0.02
_PAGE_TYPE: Final = "application/vnd.pypi.simple.v1+json"
#: The real index's headers of pages and of files. Older pages are requested again, with their ETag.
PAGE: Final = {"Content-Type": _PAGE_TYPE, "Cache-Control": "max-age={}, public"}
FILE: Final = {
    "Content-Type": "application/octet-stream",
    "Cache-Control": "max-age=365000000, immutable, public",
    "Accept-Ranges": "bytes",
}
#: Of how long a page counts as fresh: the real index's, in seconds, and none, as a day later.
FRESH_S: Final = 600
_COUNTS: Final = "/counts"


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the index started. fetched: answers that were not in the recording. sent: bytes."""

    fetched: int
    sent: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A running index. address: scheme, host and port. certificate: None without TLS."""

    address: str
    certificate: Path | None

    @property
    def url(self) -> str:
        """Its simple pages, which clients may keep for ten minutes."""
        return f"{self.address}/{FRESH_S}/simple/"

    @property
    def later_url(self) -> str:
        """The same pages, which clients have to request again: what they find a day later."""
        return f"{self.address}/0/simple/"

    def counts(self) -> Counts:
        trusted = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
        with urllib.request.urlopen(f"{self.address}{_COUNTS}", timeout=10, context=trusted) as answer:
            return Counts(**json.loads(answer.read()))


@contextmanager
def running(folder: Path, tls: Path | None) -> Iterator[Recorded]:
    """An index with the recording in `folder`, for the length of the block. tls: a folder for its certificate."""
    certificate, words = None, [str(folder)]
    if tls is not None:
        certificate, key = tls / "certificate.pem", tls / "key.pem"
        _make_certificate(certificate, key)
        words += [str(certificate), str(key)]
    with module("bench.recorded_index", *words) as (port, _):
        yield Recorded(f"{'https' if certificate else 'http'}://127.0.0.1:{port}", certificate)


def _make_certificate(certificate: Path, key: Path) -> None:
    if shutil.which("openssl") is None:
        raise NotHere("openssl, which makes the index's certificate, is not installed")
    certificate.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-addext", "subjectAltName=IP:127.0.0.1"]
    # Clients refuse an authority's certificate as a server's.
    command += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)


# --------------------------------------------------------------------------------------------------- the recording


class _NotRecorded(Exception):
    """The recording lacks an answer. fetch: puts it there."""

    def __init__(self, fetch: Callable[[], None]) -> None:
        super().__init__()
        self.fetch = fetch


class _Recording:
    """A folder of answers: pages/NAME.json.gz (empty: the index has no such project), metadata/SHA256,
    parts/SHA256/OFFSET.

    Methods raise `_NotRecorded`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def page(self, name: str) -> dict[str, Any] | None:
        path = self._folder / "pages" / f"{name}.json.gz"
        if not path.exists():
            raise _NotRecorded(lambda: _write(path, _fetched_page(name)))
        packed = path.read_bytes()
        page: dict[str, Any] | None = json.loads(gzip.decompress(packed)) if packed else None
        return page

    def metadata_sha256(self, sha256: str) -> str | None:
        """Of the metadata of the wheel with this SHA-256; None if it is not recorded."""
        path = self._folder / "metadata" / sha256
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None

    def metadata(self, file: Mapping[str, Any]) -> bytes:
        path: Path = self._folder / "metadata" / file["hashes"]["sha256"]
        if not path.exists():
            raise _NotRecorded(lambda: _write(path, _fetched_metadata(file)))
        return path.read_bytes()

    def part(self, file: Mapping[str, Any], start: int, end: int) -> bytes:
        folder: Path = self._folder / "parts" / file["hashes"]["sha256"]
        for path in folder.glob("[0-9]*"):
            first = int(path.name)
            if first <= start and end <= first + path.stat().st_size:
                with path.open("rb") as opened:
                    opened.seek(start - first)
                    return opened.read(end - start)
        raise _NotRecorded(lambda: _write(folder / str(start), _fetched_part(file["url"], start, end)))


def _write(path: Path, body: bytes) -> None:
    """At once: several processes may use a recording."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f".{path.name}.{os.getpid()}.{threading.get_ident()}"
    part.write_bytes(body)
    part.replace(path)


def _fetched_page(name: str) -> bytes:
    try:
        return gzip.compress(_body_of(f"{default_index()}{name}/", {"Accept": _PAGE_TYPE}), 6)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return b""
        raise


def _fetched_part(url: str, start: int, end: int) -> bytes:
    body = _body_of(url, {"Range": f"bytes={start}-{end - 1}"})
    # Servers without ranges send all.
    return body if len(body) == end - start else body[start:end]


def _fetched_metadata(file: Mapping[str, Any]) -> bytes:
    """From the index if it has it next to the wheel, else from the wheel."""
    if file.get("core-metadata"):
        return _body_of(f"{file['url']}.metadata", {})
    with zipfile.ZipFile(io.BufferedReader(_RemoteFile(file["url"], file["size"]), 1 << 16)) as wheel:
        names = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        return wheel.read(names[0])


def _body_of(url: str, headers: Mapping[str, str]) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=600) as answer:
        return bytes(answer.read())


class _RemoteFile(io.RawIOBase):
    """A file of the index, read by ranges."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}
        self._at = base[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        body = _fetched_part(self._url, self._at, end)
        buffer[: len(body)] = body
        self._at = end
        return len(body)


# -------------------------------------------------------------------------------------------------------- the server


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self) -> bytes:
        fields = {"Content-Length": str(len(self.body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} -", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + self.body


class _Index:
    """The recording as an index. address: its own. fetched, sent: see `Counts`."""

    def __init__(self, recording: _Recording) -> None:
        self.address = ""
        self.fetched = self.sent = 0
        self._recording = recording
        self._files: dict[str, dict[str, Any]] = {}
        self._pages: dict[str, tuple[str, bytes, bytes] | None] = {}

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> _Answer:
        parts = path.strip("/").split("/")
        if path == _COUNTS:
            return _Answer(200, body=json.dumps({"fetched": self.fetched, "sent": self.sent}).encode())
        if len(parts) == 3 and parts[1] == "simple":
            return self._page(parts[2], parts[0], headers)
        if len(parts) == 3 and parts[2] == "json":
            return self._project(parts[1])
        if len(parts) == 3 and parts[0] == "files" and parts[1] in self._files:
            return self._file(method, self._files[parts[1]], parts[2], headers.get("range", ""))
        return _Answer(404)

    def _page(self, name: str, fresh: str, headers: Mapping[str, str]) -> _Answer:
        if name not in self._pages:
            self._pages[name] = self._loaded(name)
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

    def _loaded(self, name: str) -> tuple[str, bytes, bytes] | None:
        """A page's ETag, and its body, also packed; None if the index does not have it."""
        page = self._recording.page(name)
        if page is None:
            return None
        entries = [self._entry(file) for file in page["files"]]
        versions = sorted({entry["filename"].split("-")[1] for entry in entries if "-" in entry["filename"]})
        document = {"files": entries, "meta": {"api-version": "1.4"}, "name": name, "versions": versions}
        plain = json.dumps(document, separators=(",", ":")).encode()
        return f'"{hashlib.sha256(plain).hexdigest()[:32]}"', plain, gzip.compress(plain, 6)

    def _project(self, name: str) -> _Answer:
        """The project as JSON, where pip-compile looks for it: the digests of its files, or it downloads them all."""
        releases: dict[str, list[dict[str, Any]]] = {}
        page = self._recording.page(name) or {"files": []}
        for file in page["files"]:
            sha256, is_wheel = file["hashes"]["sha256"], file["filename"].endswith(".whl")
            found = {
                "url": self._url_of(file),
                "digests": {"sha256": sha256},
                "packagetype": "bdist_wheel" if is_wheel else "sdist",
            }
            with suppress(InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
                parse = parse_wheel_filename if is_wheel else parse_sdist_filename
                releases.setdefault(str(parse(file["filename"])[1]), []).append(found)
        return _Answer(200, {"Content-Type": "application/json"}, json.dumps({"releases": releases}).encode())

    def _url_of(self, file: Mapping[str, Any]) -> str:
        return f"{self.address}/files/{file['hashes']['sha256']}/{quote(file['filename'])}"

    def _entry(self, file: dict[str, Any]) -> dict[str, Any]:
        """As the real index writes it. Metadata that is not recorded has no hash that could be checked."""
        sha256 = file["hashes"]["sha256"]
        self._files[sha256] = file
        entry: dict[str, Any] = {
            "filename": file["filename"],
            "hashes": {"sha256": sha256},
            "provenance": None,
            "requires-python": file.get("requires-python"),
            "size": file.get("size"),
            "upload-time": file.get("upload-time"),
            "url": self._url_of(file),
            "yanked": file.get("yanked", False),
        }
        if not file["filename"].endswith(".whl"):
            return {"core-metadata": False, "data-dist-info-metadata": False, **entry}
        known = self._recording.metadata_sha256(sha256)
        digest = {"sha256": known} if known else True
        # The second key is there for its length alone: all tools prefer the first.
        return {"core-metadata": digest, "data-dist-info-metadata": {"sha256": sha256}, **entry}

    def _file(self, method: str, file: dict[str, Any], name: str, span: str) -> _Answer:
        if name.endswith(".metadata"):
            return _Answer(200, FILE, self._recording.metadata(file))
        if method == "HEAD":
            return _Answer(200, {**FILE, "Content-Length": str(file["size"])})
        start, end = _interval(span, file["size"])
        body = self._recording.part(file, start, end)
        fields = {**FILE, "Content-Range": f"bytes {start}-{end - 1}/{file['size']}"} if span else FILE
        return _Answer(206 if span else 200, fields, body)


def _interval(span: str, size: int) -> tuple[int, int]:
    """Of a Range header, half-open; the whole file without one."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", span)
    if not found:
        return 0, size
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2] or size - 1) + 1)


class _Connection(asyncio.Protocol):
    def __init__(self, index: _Index, first_delay_s: float) -> None:
        self._index = index
        self._received = b""
        self._delay_s = first_delay_s
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
        loop = asyncio.get_running_loop()
        answered_at = loop.time() + self._delay_s
        self._delay_s = ROUND_TRIP_S
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while True:
            try:
                answer = self._index.answer(method, unquote(target), fields)
                break
            except _NotRecorded as lack:
                self._index.fetched += 1
                await loop.run_in_executor(None, lack.fetch)
        data = answer.encoded()
        if method == "HEAD":
            data = data[: data.index(b"\r\n\r\n") + 4]
        self._index.sent += len(data)
        await asyncio.sleep(answered_at - loop.time())
        self._transport.write(data)


async def _main(folder: Path, tls: list[str]) -> None:
    loop = asyncio.get_running_loop()
    index = _Index(_Recording(folder))
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
    first_delay_s = (3 if tls else 2) * ROUND_TRIP_S
    server = await loop.create_server(
        lambda: _Connection(index, first_delay_s), "127.0.0.1", 0, backlog=256, ssl=context
    )
    port = server.sockets[0].getsockname()[1]
    index.address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    print(port, flush=True)
    with suppress(asyncio.CancelledError):
        await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2:]))
