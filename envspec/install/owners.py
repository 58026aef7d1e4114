"""Whose each file is. A file of conda's is never a wheel's, and two wheels share none that they would differ in."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envspec.errors import NoSolution
from envspec.install.relocate import site_packages


class OwnedTwice(NoSolution):
    """Two packages of the lock put the same file into the environment."""


class Touched(NoSolution):
    """A file of conda's is not any more what conda's package holds."""


@dataclass(frozen=True, slots=True)
class State:
    """Something that stays while nobody writes a file anew or replaces it."""

    inode: int
    size: int
    mtime_ns: int


def conda_files(site: Path) -> dict[str, str]:
    """Path below `site` -> the conda package that it belongs to, as `name version`."""
    owners: dict[str, str] = {}
    for path in sorted((site / "conda-meta").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        owners.update(dict.fromkeys(data["files"], f"{data['name']} {data['version']}"))
    return owners


def states(site: Path, files: Mapping[str, str]) -> dict[str, State | None]:
    """What the files are like now; None for one that is missing."""
    return {name: _state(site / name) for name in files}


def _state(path: Path) -> State | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return State(found.st_ino, found.st_size, found.st_mtime_ns)


def check(site: Path, conda: Mapping[str, str], before: Mapping[str, State | None]) -> None:
    """Refuse an environment in which a file is owned twice, or a file of conda's was touched.

    Two wheels may both bring a file with the same content: several of NVIDIA's share an empty `nvidia/__init__.py`.

    Raises:
        OwnedTwice: names the file and both owners. Touched: names the file and its owner.
    """
    wheels: dict[str, tuple[str, str]] = {}
    for name, owner, digest in _rows(site, conda):
        if name in conda:
            raise OwnedTwice(
                f"{name} belongs to conda's {conda[name]} and to the wheel {owner}",
                hint="take both from conda, or both from PyPI",
            )
        other, known = wheels.setdefault(name, (owner, digest))
        if other != owner and (known != digest or not digest):
            raise OwnedTwice(
                f"{name} belongs to the wheel {other} and to the wheel {owner}, with different content",
                hint="one of them has to go, or another version of it to be taken: they can't be installed together",
            )
    for name, owner in conda.items():
        if before[name] != _state(site / name):
            raise Touched(
                f"{name} of conda's {owner} was changed while wheels were installed",
                hint="a wheel writes where it has no right to: report this with the lock",
            )


def _rows(site: Path, conda: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(path below `site`, the wheel that it belongs to, its hash) of every file that came in a wheel."""
    found = []
    for folder in site_packages(site):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            # A package of conda's may bring a RECORD of its own; its files are conda's.
            if os.path.relpath(record.parent / "METADATA", site) in conda:
                continue
            owner = record.parent.name.removesuffix(".dist-info").replace("-", " ")
            for row in csv.reader(io.StringIO(record.read_text(encoding="utf-8"))):
                if row:
                    name = os.path.relpath(os.path.normpath(folder / row[0]), site)
                    found.append((name, owner, row[1] if len(row) > 1 else ""))
    return found
