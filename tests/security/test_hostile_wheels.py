"""Hostile wheels through all that reads wheels: an image's layer, `envspec install`, the index reader, built wheels."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from envspec.build.wheel_bytes import check_release, normalise
from envspec.errors import EnvspecError
from envspec.image.layer import Compression
from envspec.image.making import make
from envspec.image.recipe import Recipe
from envspec.image.wheel import LockedWheel, Scheme, WheelSource
from envspec.install.environment import install
from envspec.install.order import Order, World
from envspec.resolve.index.remote_wheel import BadWheel, Part, read_with_record
from tests.security.hostile import Canary, check_document, files_below, mark, shown, table
from tests.security.hostile_wheels import FILENAME, INFO, WHEELS
from tests.support.environments import BASE, SERIES, make_lock, pin
from tests.support.wheels import Artifact

_SITE: Final = f"lib/python{SERIES}/site-packages/"
_INFO: Final = {f"site/{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "INSTALLER")}
_USUAL: Final = {"site/thing/__init__.py", *_INFO}


def _short(found: dict[str, str]) -> str:
    by_path = {path.replace(_SITE, "site/", 1): what for path, what in found.items()}
    return "accepted: " + (shown(by_path, _USUAL) or "nothing else")


def _refused(fault: EnvspecError) -> str:
    return f"refused: {fault.message}"


def in_image(data: bytes, canary: Canary) -> str:
    """A layer of the wheel, and what the tar holds."""
    path = canary.work / FILENAME
    path.write_bytes(data)
    wheel = LockedWheel("thing", "1.0", FILENAME, "0" * 64, path)
    folder = canary.work / "layer"
    folder.mkdir()
    try:
        head = make(WheelSource((wheel,), Scheme.of(SERIES), None), folder, canary.work, Compression.GZIP, None)
        tar = b"".join(Recipe.opened(head, folder, canary.work).tar())
    except EnvspecError as fault:
        return _refused(fault)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        for member in opened:
            if member.isdir():
                continue
            assert member.isreg()
            found[member.name.removeprefix("opt/env/")] = mark(member.mode)
    return _short(found)


class Served:
    """A server on loopback that has each wheel at an address of its own."""

    def __init__(self) -> None:
        self._bodies: dict[str, bytes] = {}
        bodies = self._bodies

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = bodies.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body or b"")

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> str:
        path = f"/{len(self._bodies)}/{FILENAME}"
        self._bodies[path] = data
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


@functools.cache
def _of_a_venv() -> frozenset[str]:
    """What is in an environment without wheels; filled by the first install."""
    return frozenset()


def in_environment(data: bytes, canary: Canary, served: Served) -> str:
    """`envspec install` of a lock that has this wheel alone, with its true hash."""
    artifact = Artifact("thing", "1.0", FILENAME, data, b"")
    prefix = canary.work / "env"
    lock = make_lock(wheels=[pin(artifact, url=served.put(data))])
    order = Order(lock, "0" * 64, lock.resolutions[0], prefix, BASE)

    async def nothing_built(_: Order) -> dict[str, Path]:
        return {}

    environ = {"PATH": os.environ["PATH"], "HOME": str(canary.root / "home"), "TMPDIR": str(canary.work)}
    world = World(environ, canary.work / "cache", lambda _: None, lambda _: None, nothing_built)
    try:
        install(order, world)
    except EnvspecError as fault:
        assert not prefix.exists()
        return _refused(fault)
    found = files_below(prefix)
    for path in VENV:
        # One that a wheel wrote over shows itself by its content.
        if path in found and (prefix / path).is_symlink():
            del found[path]
    for path in ("bin/activate", "bin/python", "pyvenv.cfg"):
        text = (prefix / path).read_bytes() if (prefix / path).exists() else b"gone"
        if b"escaped" in text or b"evil" in text or b"gone" == text or b"thing" in text:
            found[path] = " (overwritten)"
    usual = {path for path in found if path in VENV and not found[path].endswith("(overwritten)")}
    return _short({path: what for path, what in found.items() if path not in usual and not path.endswith("/REQUESTED")})


VENV: Final = frozenset(
    [
        *(f"bin/activate{ending}" for ending in ("", ".bat", ".csh", ".fish", ".nu", ".ps1", "_this.py")),
        *("bin/deactivate.bat", "bin/pydoc.bat", "bin/python", "bin/python3", f"bin/python{SERIES}"),
        *("lib64", "pyvenv.cfg", "CACHEDIR.TAG", ".gitignore", ".lock", ".envspec/installed.json"),
        *(f"{_SITE}_virtualenv.py", f"{_SITE}_virtualenv.pth"),
    ]
)


def by_ranges(data: bytes, canary: Canary) -> str:
    """METADATA and RECORD as `envspec lock` reads them from an index."""
    del canary

    async def read(start: int | None, end: int) -> Part:
        first = max(0, len(data) - end) if start is None else start
        body = data[first:] if start is None else data[first:end]
        return Part(first, len(data), body)

    try:
        metadata, size, record = asyncio.run(read_with_record(read))
    except BadWheel as fault:
        return f"refused: {fault}"
    assert size == len(data)
    head = BytesHeaderParser().parsebytes(metadata)
    rows = "no RECORD" if record is None else f"RECORD of {len(record.splitlines())} lines"
    return f"accepted: METADATA of {head['Name']} {head['Version']}, {rows}"


def as_built(data: bytes, canary: Canary) -> str:
    """The wheel as the result of a build, in the one form that is kept."""
    made, into = canary.work / FILENAME, canary.work / "normal.whl"
    made.write_bytes(data)
    try:
        check_release(made, "thing", "1.0", "thing 1.0")
        normalise(made, into, "thing 1.0")
    except EnvspecError as fault:
        return _refused(fault)
    kept = into.read_bytes()
    into.unlink()
    return in_image(kept, canary)
