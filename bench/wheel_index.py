"""A package index on loopback with the wheels of some folders, as the real one answers: JSON pages, metadata beside
the wheels, files that may be cached for ever. It runs as a process of its own.

`python -m bench.wheel_index FOLDER...` prints its port and serves `*/*.whl` of the folders until its standard input
closes; the folder of a wheel is named after its SHA-256, as in envspec's cache of archives.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from bench.harness import module
from tests.support.servers.faults import Answer
from tests.support.servers.threaded import Exchange, Threaded

#: The real index's headers of pages and of files.
_PAGE: Final = {"Content-Type": "application/vnd.pypi.simple.v1+json", "Cache-Control": "max-age=600, public"}
_FILE: Final = {"Content-Type": "application/octet-stream", "Cache-Control": "max-age=365000000, immutable, public"}
#: Older than any lock's date.
_UPLOADED: Final = "2020-01-01T00:00:00Z"


@contextmanager
def running(folders: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """An index of the wheels of these folders, for the length of the block: its simple pages' URL, and its pid."""
    with module("bench.wheel_index", *map(str, folders)) as (port, pid):
        yield f"http://127.0.0.1:{port}/simple/", pid


class WheelIndex(Threaded):
    def __init__(self, folders: Iterable[Path]) -> None:
        super().__init__()
        self.projects: dict[str, list[Path]] = {}
        for path in sorted(path for folder in folders for path in folder.glob("*/*.whl")):
            self.projects.setdefault(canonicalize_name(path.name.split("-")[0]), []).append(path)
        wheels = [path for paths in self.projects.values() for path in paths]
        self.files = {f"{path.parent.name}/{path.name}": path for path in wheels}

    def handle(self, request: Exchange) -> None:
        path = unquote(request.path.partition("?")[0])
        if found := re.fullmatch(r"/simple/([^/]+)/", path):
            wheels = self.projects.get(canonicalize_name(found[1]), [])
            request.answer(Answer(200, _page(found[1], wheels), _PAGE) if wheels else Answer(404))
            return
        name = path.removeprefix("/files/")
        wheel = self.files.get(name.removesuffix(".metadata"))
        if wheel is None:
            request.answer(Answer(404))
        elif name.endswith(".metadata"):
            request.answer(Answer(200, _metadata(wheel), _FILE))
        else:
            request.send_response(200)
            for key, value in {**_FILE, "Content-Length": str(wheel.stat().st_size)}.items():
                request.send_header(key, value)
            request.end_headers()
            if request.command == "GET":
                with wheel.open("rb") as content:
                    request.wfile.flush()
                    request.connection.sendfile(content)


def _page(name: str, wheels: Iterable[Path]) -> bytes:
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
def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (row for row in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", row))
        return archive.read(name)


if __name__ == "__main__":
    with WheelIndex(map(Path, sys.argv[1:])) as _index:
        print(_index.port, flush=True)
        sys.stdin.read()
