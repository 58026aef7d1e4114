"""Conda packages, and the owners of files."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envspec.context import Context, Step
from envspec.errors import EnvspecError, NoSolution
from envspec.fetch.conda_link import RESERVED_FOLDERS, LinkTarget, PrefixTooLong
from envspec.fetch.conda_link import link as link_packages
from envspec.installer.request import InstallRequest, InstallStage
from envspec.installer.staging import StagingFolder, site_packages
from envspec.io.archives import PathOwners, link_above, path_problem
from envspec.io.cache import CONDA_PACKAGES
from envspec.verifier.record import path_below

#: The longest path that conda packages have room for: their placeholder has 255 characters with its end.
LONGEST_PREFIX = 254
_PUBLISHED: Final = (
    "use another version and report this one to its owner: its hash is the locked one, so it was published like this"
)


def check_prefix(prefix: Path) -> None:
    """Raises PrefixTooLong if the path is too long for conda packages."""
    if len(os.fsencode(prefix)) > LONGEST_PREFIX:
        raise PrefixTooLong(
            f"--prefix is {len(os.fsencode(prefix))} bytes long, and conda packages have room for {LONGEST_PREFIX}",
            hint="use a shorter path",
        )


async def link(request: InstallRequest, context: Context, site: StagingFolder, archives: Mapping[str, Path]) -> None:
    """Link the conda packages into the site. archives: SHA-256 -> the checked archive.

    Raises:
        DiskFull, PrefixTooLong, LinkError
    """
    target = LinkTarget(
        site.path, str(request.prefix), context.cache / CONDA_PACKAGES, request.platform, inherited_fd=site.descriptor
    )
    try:
        await link_packages(
            request.resolution.conda,
            archives,
            target,
            context.environ,
            lambda done, total: context.reporter.progress(Step(InstallStage.LINKING, done, total)),
        )
    except PrefixTooLong as error:
        error.restate(error.message.replace("the folder's path", "--prefix"), error.hint)
        raise


class PathEscapes(EnvspecError, exit_code=5, code="bad-wheel"):
    """A wheel lists files outside of the environment, which an uninstallation would delete."""


#: Changes if a file is written or replaced: inode, size, mtime_ns. None: missing.
FileState = tuple[int, int, int] | None


def files_before(site: Path) -> dict[str, str]:
    """Path below `site` -> owner, of all files before wheels are installed: of conda packages, or of the Python."""
    owners: dict[str, str] = {}
    for folder, names, files in os.walk(site):
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        inner = os.path.relpath(folder, site)
        if inner == ".":
            inner = ""
        paths = (posixpath.join(inner, name) for name in (*files, *links))
        owners.update(dict.fromkeys(paths, "the environment's Python"))
    for path in sorted((site / "conda-meta").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        owners.update(dict.fromkeys(data["files"], f"conda's {data['name']} {data['version']}"))
    return owners


def file_states(site: Path, files: Mapping[str, str]) -> dict[str, FileState]:
    """The current state of each file."""
    return {name: _state(site / name) for name in files}


def _state(path: Path) -> FileState:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_ownership(
    site: Path, before: Mapping[str, str], states: Mapping[str, FileState], owners: Mapping[str, str]
) -> None:
    """Refuse an environment in which a file has two owners, or a file from before the wheels changed.

    uv lists all files of a wheel, including those that the wheel's own RECORD does not list. Two wheels may have the
    same file with equal content: several of NVIDIA's share an empty `nvidia/__init__.py`.

    before, states: `files_before` and their `file_states`. owners: `models.owners_of`, whose files were put there.

    Raises:
        FileConflict, NoSolution: names the file and both owners, or a file that was changed. PathEscapes.
    """
    # Equal hashes are no conflict, nor is a path that one RECORD lists twice.
    wheels = PathOwners[tuple[str, str]](lambda one, other: one[0] == other[0] or one[1] == other[1] != "")
    folders: set[str] = set()
    shared = _shared(site, owners)
    for name, owner, digest in _recorded(site, before):
        if name in before:
            raise NoSolution(
                f"{name} belongs to {before[name]} and to the wheel {owner}",
                hint="install both from conda, or both from PyPI",
            )
        if problem := path_problem(name):
            raise PathEscapes(f"{name!r}, which the wheel {owner} lists as its own, {problem}", hint=_PUBLISHED)
        if name.split("/", 1)[0] in RESERVED_FOLDERS:
            raise NoSolution(f"the wheel {owner} contains {name}, which only conda and envspec write", hint=_PUBLISHED)
        if (folder := posixpath.dirname(name)) not in folders:
            folders.add(folder)
            # `before` has files and links, no folders.
            if (link := link_above(name, before)) is not None:
                raise NoSolution(
                    f"{name} of the wheel {owner} is behind the link {link} of {before[link]}", hint=_PUBLISHED
                )
        if name not in shared:
            wheels.add(name, f"the wheel {owner}", (owner, digest))
    for name, owner in before.items():
        if states[name] != _state(site / name):
            raise NoSolution(f"{name} of {owner} was changed while wheels were installed", hint=_PUBLISHED)


def _shared(site: Path, owners: Mapping[str, str]) -> set[str]:
    """The files that several packages have, by their paths below `site`."""
    shared: set[str] = set()
    for folder in site_packages(site):
        inside = os.path.relpath(folder, site)
        shared.update(path_below(path, inside) for path in owners)
    return shared


def _recorded(site: Path, before: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(path below `site`, wheel, hash) of every file of a wheel."""
    for folder in site_packages(site):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            # A conda package may have a RECORD of its own; its files are conda's.
            if os.path.relpath(record.parent / "METADATA", site) in before:
                continue
            owner = record.parent.name.removesuffix(".dist-info").replace("-", " ")
            for row in csv.reader(io.StringIO(record.read_text(encoding="utf-8"))):
                if row:
                    name = os.path.relpath(os.path.normpath(folder / row[0]), site)
                    yield name, owner, row[1] if len(row) > 1 else ""
