"""Hostile wheels through all that reads wheels: an image's layer, `envspec install`, the index reader, built wheels."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

import pytest

from envspec.build.reproducible import check_release, normalise
from envspec.context import Context
from envspec.errors import EnvspecError, NetworkError
from envspec.image.layers.ownership import owners_of
from envspec.image.layers.recipe import Recipe
from envspec.image.layers.store import write_layer
from envspec.image.sources.python import Venv
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelSource
from envspec.installer import python
from envspec.installer.request import InstallRequest
from envspec.installer.staging import StagingFolder
from envspec.installer.uv import UvError
from envspec.io.archives import FileConflict
from envspec.io.http_types import Timeouts
from envspec.models import Python
from envspec.operations.environment import put_wheels
from envspec.resolve.pypi.index.file_metadata import BadRemoteWheel, FilePart, read_metadata
from tests.operations.test_build_sdists import serving
from tests.security.hostile import Canary, Entry, Section, files_below, mark, outcome, shown, zip_of
from tests.security.hostile_wheels import FILENAME, INFO, WHEELS, entries_of
from tests.support.builders.environments import BASE, RUNNING, SERIES, make_lock, pin
from tests.support.builders.wheels import Artifact, module_name, wheel

_SITE: Final = f"lib/python{SERIES}/site-packages/"
_INFO: Final = {f"site/{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "INSTALLER")}
_USUAL: Final = {"site/thing/__init__.py", *_INFO}
#: What uv writes of its own.
_BY_UV: Final = {f"{_SITE}{INFO}/direct_url.json", f"{_SITE}{INFO}/REQUESTED", ".lock"}


def _short(found: dict[str, str]) -> str:
    by_path = {
        path.replace(_SITE, "site/", 1).replace(f"python{SERIES}", "python3.X"): what for path, what in found.items()
    }
    return "accepted: " + (shown(by_path, _USUAL) or "nothing else")


def in_image(data: bytes, canary: Canary) -> str:
    """A layer of the wheel, and what the tar holds."""
    path = canary.work / FILENAME
    path.write_bytes(data)
    wheel = LockedWheel("thing", "1.0", FILENAME, "0" * 64, path)
    folder = canary.work / "layer"
    folder.mkdir()
    try:
        source = WheelSource((wheel,), Scheme.of_venv(SERIES), None)
        owners_of((*Venv(Python(RUNNING, "system")).owned(), *source.owned()))
        head = write_layer(source, folder, canary.work)
        tar = b"".join(Recipe.open(head, folder, canary.work).tar())
    except EnvspecError as fault:
        return outcome(fault, canary)
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        for member in opened:
            if member.isdir():
                continue
            assert member.isreg()
            found[member.name.removeprefix("opt/env/")] = mark(member.mode)
    return _short(found)


#: Serves bytes under a file name: the URL.
Serve = Callable[[bytes, str], str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    folder = tmp_path_factory.mktemp("served")
    with serving(folder) as url:

        def serve(data: bytes, filename: str) -> str:
            place = Path(tempfile.mkdtemp(dir=folder))
            (place / filename).write_bytes(data)
            return f"{url}{place.name}/{filename}"

        yield serve


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without wheels."""
    folder = tmp_path_factory.mktemp("venv") / "env"
    folder.mkdir()
    lock = make_lock()
    order = InstallRequest(lock, "0" * 64, lock.resolutions[0], folder, BASE)

    async def made() -> None:
        context = _context(folder.parent)
        interpreter = await python.find_python(order, context)
        with _site(folder) as site:
            await python.make_venv(interpreter, order, context, site)

    asyncio.run(made())
    return folder


def _context(folder: Path) -> Context:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return Context(environ, folder, folder / "cache", jobs=8, timeouts=Timeouts(attempts=1))


@contextmanager
def _site(folder: Path) -> Iterator[StagingFolder]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield StagingFolder(folder, folder, descriptor)
    finally:
        os.close(descriptor)


def in_environment(data: bytes, canary: Canary, served: Serve, venv: Path) -> str:
    """`envspec install` of a lock that has this wheel alone, with its true hash, into a fresh environment."""
    artifact = Artifact("thing", "1.0", FILENAME, data, b"")
    folder = canary.work / "env"
    shutil.copytree(venv, folder, symlinks=True)
    lock = make_lock(wheels=[pin(artifact, url=served(data, FILENAME))])
    order = InstallRequest(lock, "0" * 64, lock.resolutions[0], folder, BASE)
    before = files_below(folder)
    try:
        with _site(folder) as site:
            asyncio.run(put_wheels(order, _context(canary.work), site))
    except UvError:
        return "refused by uv"
    except NetworkError as fault:
        assert fault.message == "thing: the received file is damaged"
        return "refused by uv"
    except EnvspecError as fault:
        return outcome(fault, canary)
    found = files_below(folder)
    return _short({path: what for path, what in found.items() if path not in before.keys() | _BY_UV})


def by_ranges(data: bytes, canary: Canary) -> str:
    """METADATA and RECORD as `envspec lock` reads them from an index."""
    del canary

    async def read(start: int | None, end: int) -> FilePart:
        first = max(0, len(data) - end) if start is None else start
        body = data[first:] if start is None else data[first:end]
        return FilePart(first, len(data), body)

    try:
        metadata, size, record = asyncio.run(read_metadata(read))
    except BadRemoteWheel as fault:
        return f"refused: {fault}".partition(": Error")[0]
    assert size == len(data)
    head = BytesHeaderParser().parsebytes(metadata)
    rows = "no RECORD" if record is None else f"RECORD of {len(record.content.splitlines())} lines"
    return f"accepted: METADATA of {head['Name']} {head['Version']}, {rows}"


def as_built(data: bytes, canary: Canary) -> str:
    """The wheel as the result of a build, in the one form that is kept."""
    made, into = canary.work / FILENAME, canary.work / "normal.whl"
    made.write_bytes(data)
    try:
        check_release(made, "thing", "1.0", "thing 1.0")
        normalise(made, into, "thing 1.0")
    except EnvspecError as fault:
        return outcome(fault, canary)
    kept = into.read_bytes()
    into.unlink()
    return in_image(kept, canary)


CONSUMERS: Final = ("image layer", "`envspec install`", "METADATA by ranges", "wheel of a build")
SECTION: Final = Section("Wheels", WHEELS, CONSUMERS)


@pytest.mark.skipif(sys.platform != "linux", reason="a case-insensitive disk has other outcomes")
@pytest.mark.parametrize("case", WHEELS)
def test_a_wheel_is_refused_or_stays_inside(case: str, served: Serve, venv: Path) -> None:
    found = []
    data = WHEELS[case]()
    with Canary() as canary:
        for consumer in (in_image, in_environment, by_ranges, as_built):
            more = (served, venv) if consumer is in_environment else ()
            found.append(consumer(data, canary, *more))
            assert canary.touched() == []
            assert {path.name for path in canary.work.iterdir()} <= {FILENAME, "layer", "env", "cache", "normal.whl"}
            canary.clear()
    SECTION.compare(case, found)


def test_the_document_has_these_cases_alone() -> None:
    assert SECTION.listed() == list(WHEELS)


def test_a_file_that_no_record_lists_takes_no_other_wheels_place(tmp_path: Path, served: Serve, venv: Path) -> None:
    """The wheel says of itself that it has `thing/__init__.py` alone, and brings a module of another wheel."""
    good = wheel("good", "1.0")
    name = f"{module_name('good')}/__init__.py"
    evil = Artifact("thing", "1.0", FILENAME, zip_of(entries_of(unlisted=[Entry(name, b"evil = 1\n")])), b"")
    shutil.copytree(venv, tmp_path / "env", symlinks=True)
    pins = [pin(evil, url=served(evil.data, FILENAME)), pin(good, url=served(good.data, good.filename))]
    lock = make_lock(wheels=pins)
    order = InstallRequest(lock, "0" * 64, lock.resolutions[0], tmp_path / "env", BASE)
    with _site(tmp_path / "env") as site, pytest.raises(FileConflict, match=re.escape(name)):
        asyncio.run(put_wheels(order, _context(tmp_path), site))
