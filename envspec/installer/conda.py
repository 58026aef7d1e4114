"""Conda packages, and the owners of files."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.context import Context, Step
from envspec.errors import EnvspecError, NoSolution, UsageError
from envspec.fetch.conda_link import RESERVED_FOLDERS, DiskFull, LinkTarget, PrefixTooLong
from envspec.fetch.conda_link import link as link_packages
from envspec.installer.staging import DiskFull, StagingFolder, site_packages
from envspec.installer.types import InstallRequest, InstallStage
from envspec.io.archives import parents_of, path_problem
from envspec.io.cache import CONDA_PACKAGES

#: The longest path that conda's packages leave room for: their placeholder has 255 characters and an end.
LONGEST_PREFIX = 254


def check_prefix(prefix: Path) -> None:
    """Refuse a path that conda's packages can't be told.

    Raises:
        UsageError: it is too long.
    """
    if len(os.fsencode(prefix)) > LONGEST_PREFIX:
        raise UsageError(
            f"--prefix is {len(os.fsencode(prefix))} bytes long, and conda's packages have room for {LONGEST_PREFIX}",
            hint="name a folder with a shorter path",
        )


async def link(order: InstallRequest, context: Context, site: StagingFolder, kept: Mapping[str, Path]) -> None:
    """Put conda's packages into the site. kept: SHA-256 -> the checked archive.

    Raises:
        NoSpace, UsageError, LinkFault
    """

    def told(done: int, total: int) -> None:
        context.reporter.progress(Step(InstallStage.LINKING, done, total))

    into = LinkTarget(
        site.path, str(order.prefix), context.cache / CONDA_PACKAGES, order.platform, holds=site.descriptor
    )
    try:
        await link_packages(order.resolution.conda, kept, into, context.environ, told)
    except DiskFull as fault:
        raise DiskFull(fault.message, hint=fault.hint) from fault
    except PrefixTooLong as fault:
        raise UsageError(fault.message.replace("the folder's path", "--prefix"), hint=fault.hint) from fault


_PUBLISHED: Final = "its hash is the lock's, so it was published like this: take another version, and tell its owner"


class FileConflict(NoSolution):
    """Two packages of the lock put the same file into the environment."""


class FileChanged(NoSolution):
    """A file of conda's, or of the environment itself, is not any more what it was before wheels were installed."""


class PathEscapes(EnvspecError):
    """A wheel names files outside of the environment: whoever uninstalls it deletes them."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class FileState:
    """Something that stays while nobody writes a file anew or replaces it."""

    inode: int
    size: int
    mtime_ns: int


def files_before(site: Path) -> dict[str, str]:
    """Path below `site` -> whose it is, of all that is there before wheels are: conda's packages', or the Python's."""
    owners: dict[str, str] = {}
    for folder, names, files in os.walk(site):
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        inner = os.path.relpath(folder, site)
        paths = (name if inner == "." else f"{inner}/{name}" for name in (*files, *links))
        owners.update(dict.fromkeys(paths, "the environment's Python"))
    for path in sorted((site / "conda-meta").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        owners.update(dict.fromkeys(data["files"], f"conda's {data['name']} {data['version']}"))
    return owners


def file_states(site: Path, files: Mapping[str, str]) -> dict[str, FileState | None]:
    """What the files are like now; None for one that is missing."""
    return {name: _state(site / name) for name in files}


def _state(path: Path) -> FileState | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return FileState(found.st_ino, found.st_size, found.st_mtime_ns)


def check_ownership(site: Path, before: Mapping[str, str], were: Mapping[str, FileState | None]) -> None:
    """Refuse an environment in which a file is owned twice, or what was there before was touched.

    uv lists all that a wheel brings, be it in the wheel's own RECORD or not. Two wheels may both bring a file with the
    same content: several of NVIDIA's share an empty `nvidia/__init__.py`.

    before, were: `files_before` and their `file_states`.

    Raises:
        OwnedTwice: names the file and both owners. Touched: names the file and its owner. PathEscapes: a RECORD does.
    """
    wheels: dict[str, tuple[str, str]] = {}
    folders: set[str] = set()
    for name, owner, digest in _rows(site, before):
        if name in before:
            raise FileConflict(
                f"{name} belongs to {before[name]} and to the wheel {owner}",
                hint="take both from conda, or both from PyPI",
            )
        if why := path_problem(name):
            raise PathEscapes(f"{name!r}, which the wheel {owner} lists as its own, {why}", hint=_PUBLISHED)
        if name.split("/", 1)[0] in RESERVED_FOLDERS:
            raise FileConflict(f"{name} is of the wheel {owner}, and only conda and envspec write it", hint=_PUBLISHED)
        if (folder := posixpath.dirname(name)) not in folders:
            folders.add(folder)
            # A file or a link: `before` has no folders.
            if link := next((each for each in parents_of(name) if each in before), None):
                raise FileConflict(
                    f"{name} of the wheel {owner} is behind the link {link} of {before[link]}", hint=_PUBLISHED
                )
        other, known = wheels.setdefault(name, (owner, digest))
        if other != owner and (known != digest or not digest):
            raise FileConflict(
                f"{name} belongs to the wheel {other} and to the wheel {owner}, with different content",
                hint="one of them has to go, or another version of it to be taken: they can't be installed together",
            )
    for name, owner in before.items():
        if were[name] != _state(site / name):
            raise FileChanged(f"{name} of {owner} was changed while wheels were installed", hint=_PUBLISHED)


def _rows(site: Path, before: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(path below `site`, the wheel that it belongs to, its hash) of every file that came in a wheel."""
    found = []
    for folder in site_packages(site):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            # A package of conda's may bring a RECORD of its own; its files are conda's.
            if os.path.relpath(record.parent / "METADATA", site) in before:
                continue
            owner = record.parent.name.removesuffix(".dist-info").replace("-", " ")
            for row in csv.reader(io.StringIO(record.read_text(encoding="utf-8"))):
                if row:
                    name = os.path.relpath(os.path.normpath(folder / row[0]), site)
                    found.append((name, owner, row[1] if len(row) > 1 else ""))
    return found
