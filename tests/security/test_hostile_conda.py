"""Hostile conda archives through rattler, as `envspec install` and images link them, and as a layer of an image."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Final

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.errors import EnvspecError
from envspec.fetch.conda_link import BadCondaPackage, LinkError, LinkTarget, PrefixTooLong, link
from envspec.image.layers.types import PREFIX, EntryKind
from envspec.image.sources.conda import CondaSource
from envspec.models import CondaPackage
from tests.security.hostile import Canary, Section, files_below, mark, outcome, shown
from tests.security.hostile_conda import CONDA, PYTHON, STEM, filename_of
from tests.support.builders import conda_packages
from tests.support.builders.environments import SERIES, conda_row

pytestmark = pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")

_PYTHON: Final = next(
    each for each in conda_packages.forge() if each.name == "python" and each.subdir == this_platform().value
)
_META: Final = {f"conda-meta/{STEM}.json", "conda-meta/history", "CACHEDIR.TAG"}
_CONSUMERS: Final = ("linked (`envspec install`, images)", "layer of an image")
SECTION: Final = Section("conda archives", CONDA, _CONSUMERS)


#: What rattler refuses without the name of the package, or for the length of the folder's path.
NOT_ITS_FAULT: Final = ("index.json of another package", "a short prefix in a program")


def _row(case: str, data: bytes) -> CondaPackage:
    return CondaPackage(
        name="thing",
        version="1.0",
        build="0",
        build_number=0,
        channel="forge",
        subdir="noarch",
        filename=filename_of(case),
        url=f"https://forge.example/noarch/{filename_of(case)}",
        sha256=hashlib.sha256(data).hexdigest(),
        md5=hashlib.md5(data).hexdigest(),
        size_bytes=len(data),
        timestamp_ms=None,
        noarch="python" if case in PYTHON else "generic",
    )


def _linked(case: str, data: bytes, canary: Canary) -> str:
    """The package in an environment, beside a Python where it is for one."""
    row, site = _row(case, data), canary.work / "site"
    archives = {row.sha256: canary.work / row.filename, _PYTHON.sha256: canary.work / _PYTHON.filename}
    archives[row.sha256].write_bytes(data)
    rows = [row]
    if case in PYTHON:
        archives[_PYTHON.sha256].write_bytes(_PYTHON.data)
        rows.append(conda_row(_PYTHON, "https://forge.example"))
    site.mkdir()
    into = LinkTarget(site, f"/{PREFIX}", canary.work / "cache", this_platform())
    try:
        asyncio.run(link(rows, archives, into, {"PATH": os.environ["PATH"]}, lambda _done, _total: None))
    except (LinkError, PrefixTooLong):
        assert case in NOT_ITS_FAULT
        return "refused by rattler"
    except EnvspecError as fault:
        if "rattler can't unpack or link it" in fault.message:
            assert isinstance(fault, BadCondaPackage) and row.filename in fault.message
            return "refused by rattler"
        return outcome(fault, canary)
    of_python = {*_PYTHON.files, f"conda-meta/{_PYTHON.stem}.json"} if case in PYTHON else set()
    found = {path: what for path, what in files_below(site).items() if path not in _META | of_python}
    return _told(found, canary)


def _layer(case: str, data: bytes, canary: Canary) -> str:
    """What the layer of an image has of what was linked."""
    row = _row(case, data)
    source = CondaSource((row,), canary.work / "site", SERIES, None)
    try:
        entries = [entry for entry in source.entries() if entry.kind is not EntryKind.FOLDER]
    except EnvspecError as fault:
        return outcome(fault, canary)
    found = {entry.path.removeprefix(f"{PREFIX}/"): mark(entry.mode, entry.target) for entry in entries}
    return _told({path: what for path, what in found.items() if path not in _META}, canary)


def _told(found: dict[str, str], canary: Canary) -> str:
    plain = {path.replace(SERIES, "3.X"): what.replace(str(canary.root), "") for path, what in found.items()}
    return "accepted: " + (shown(plain, {"share/thing.txt"}) or "nothing else")


@pytest.mark.parametrize("case", CONDA)
def test_an_archive_is_refused_or_stays_inside(case: str) -> None:
    data = CONDA[case]()
    with Canary() as canary:
        found = [_linked(case, data, canary)]
        found.append(_layer(case, data, canary) if found[0].startswith("accepted") else "not reached")
        assert canary.touched() == []
        assert {path.name for path in canary.work.iterdir()} <= {filename_of(case), _PYTHON.filename, "cache", "site"}
        assert "precious" not in "".join(_texts(canary.work / "site"))
    SECTION.compare(case, found)


def _texts(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path.read_bytes().decode("latin-1") for path in paths if path.stat().st_size < 1 << 20]


def test_the_document_has_these_cases_alone() -> None:
    assert SECTION.listed() == list(CONDA)
