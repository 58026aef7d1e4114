"""A package index on loopback with the wheels of some folders, as the real one answers: JSON pages, metadata beside
the wheels, files that may be kept for ever. It runs as a process of its own.

`python -m bench.wheel_index FOLDER...` prints its port and serves `*/*.whl` of the folders until its standard input
closes; the folder of a wheel is named after its SHA-256, as in envspec's cache of archives.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from bench.harness import module

_PAGE: Final = "application/vnd.pypi.simple.v1+json"
#: What the real index says of pages and of files.
_PAGE_AGE: Final = "max-age=600, public"
_FILE_AGE: Final = "max-age=365000000, immutable, public"
#: Older than any lock's date.
_UPLOADED: Final = "2020-01-01T00:00:00Z"


@contextmanager
def running(folders: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """An index of the wheels of these folders, for the length of the block: its simple pages' URL, and its pid."""
    with module("bench.wheel_index", *map(str, folders)) as (port, pid):
        yield f"http://127.0.0.1:{port}/simple/", pid


def wheels_in(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """Project's normalized name -> its wheels."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.whl")):
            found.setdefault(normalized(path.name.split("-")[0]), []).append(path)
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def page(name: str, wheels: Iterable[Path]) -> bytes:
    """A project's page as PEP 691 has it, each wheel with its hash, its size and that its metadata can be had alone."""
    files = [
        {
            "filename": path.name,
            "url": f"/files/{path.parent.name}/{quote(path.name)}",
            "hashes": {"sha256": path.parent.name},
            "size": path.stat().st_size,
            "upload-time": _UPLOADED,
            "core-metadata": True,
        }
        for path in wheels
    ]
    return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": files}).encode()


@cache
def metadata(wheel: Path) -> bytes:
    """A wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (row for row in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", row))
        return archive.read(name)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    projects: Mapping[str, list[Path]]
    files: Mapping[str, Path]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if found := re.fullmatch(r"/simple/([^/]+)/", path):
            wheels = self.projects.get(normalized(found[1]))
            if wheels:
                self._send(page(found[1], wheels), _PAGE, _PAGE_AGE)
                return
        elif path.startswith("/files/"):
            name = path.removeprefix("/files/")
            wheel = self.files.get(name.removesuffix(".metadata"))
            if wheel is not None and name.endswith(".metadata"):
                self._send(metadata(wheel), "text/plain", _FILE_AGE)
                return
            if wheel is not None:
                self._send_file(wheel)
                return
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, kind: str, age: str) -> None:
        self._head(len(body), kind, age)
        if self.command == "GET":
            self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        with path.open("rb") as content:
            self._head(path.stat().st_size, "application/octet-stream", _FILE_AGE)
            if self.command == "GET":
                self.wfile.flush()
                self.connection.sendfile(content)

    def _head(self, size_bytes: int, kind: str, age: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size_bytes))
        self.send_header("Cache-Control", age)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is none of ours; anything else is told."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def main(folders: Iterable[Path]) -> None:
    _Handler.projects = wheels_in(folders)
    _Handler.files = {f"{path.parent.name}/{path.name}": path for rows in _Handler.projects.values() for path in rows}
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
