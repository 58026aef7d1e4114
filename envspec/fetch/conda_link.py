"""Conda packages into a prefix.

rattler joins the paths of `info/paths.json` to folders as they stand, and follows the links of what it unpacked: a path
that leads out would have it write, replace or copy files of this machine. The archive itself is not asked: several
members of it could be read as `info/paths.json`, and only what lies there unpacked is what rattler reads.

Sources: conda-build's documentation of `info/`; rattler 0.28, measured.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from envspec.errors import EnvspecError, UsageError
from envspec.io.archives import max_unpacked_bytes, parents_of, path_problem
from envspec.io.process import ParentLink, StopBy, run_streaming
from envspec.models import CondaPackage, Platform


class LinkError(EnvspecError):
    """rattler could not put a package into the folder."""


class BadCondaPackage(EnvspecError):
    """A package of conda's that must not be put into an environment, or that no layer can be made of."""

    exit_code = 5

    def __init__(self, told: str) -> None:
        super().__init__(
            told, hint="its hash is the lock's, so it was published like this: take another build, and tell its channel"
        )


class DiskFull(EnvspecError):
    """The disk is full."""

    exit_code = 6


class PrefixTooLong(UsageError):
    """The environment's path is longer than the room that a package has for it."""


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """Where packages are put.

    folder: where they come to lie. prefix: the folder that their files name, wherever they lie. cache: rattler's, of
    unpacked packages; files are hard links into it where the disk allows. there: names of packages that are taken for
    installed, and not put there. holds: a descriptor that the process inherits, and with it the lock on the folder.
    """

    folder: Path
    prefix: str
    cache: Path
    platform: Platform
    there: frozenset[str] = frozenset()
    holds: int | None = None


async def link(
    packages: Sequence[CondaPackage],
    archives: Mapping[str, Path],
    into: LinkTarget,
    environ: Mapping[str, str],
    told: Callable[[int, int], None],
) -> None:
    """Put packages into a folder. archives: SHA-256 -> the checked archive, not needed of those in `into.there`.

    told: how many of how many are in their place.

    When the caller is cancelled nothing writes into the folder any more.

    Raises:
        BadPackage: it would write outside of the folder, through a link, or over what conda and envspec write.
        NoRoom, PrefixTooLong, LinkError
    """
    told(0, len(packages) - len(into.there))
    words = {
        "site": str(into.folder),
        "prefix": into.prefix,
        "cache": str(into.cache),
        "platform": into.platform.value,
        "there": sorted(into.there),
        "rows": [
            {
                "package": _fields(package),
                # rattler opens it for those alone that it puts there.
                "archive": package.url if package.name in into.there else archives[package.sha256].as_uri(),
                "packed_bytes": 0 if package.name in into.there else archives[package.sha256].stat().st_size,
            }
            for package in packages
        ],
    }

    def hear(line: str) -> None:
        step = json.loads(line)
        if "linked" in step:
            told(step["linked"], step["total"])

    ended = await run_streaming(
        [sys.executable, "-m", "envspec.fetch.conda_link_worker"],
        # The same modules as here, wherever they came from.
        environ={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=into.folder,
        parent=ParentLink(into.holds, StopBy.STDIN, json.dumps(words).encode() + b"\n"),
        told=hear,
    )
    for line in ended.lines:
        if refused := json.loads(line).get("refused"):
            raise BadCondaPackage(refused)
    last = json.loads(ended.lines[-1]) if ended.lines else {}
    if ended.status != 0 or not last.get("done"):
        raise _fault(last.get("error") or ended.stderr.strip() or f"rattler ended with status {ended.status}")


def _fields(package: CondaPackage) -> dict[str, object]:
    fields = asdict(package)
    for name in ("provides", "required_by", "rejected"):
        del fields[name]
    return fields


def _fault(text: str) -> EnvspecError:
    """rattler's chain of causes as one message."""
    panic = re.search(r"panicked at [^\n]*\n(.+?)(?:\nnote: |\Z)", text, re.DOTALL)
    lines = (panic[1] if panic else text).splitlines()
    told = ": ".join(dict.fromkeys(line.removeprefix("Caused by: ").strip() for line in lines if line))
    if "os error 28" in told or "os error 122" in told:
        return DiskFull(f"no space left while conda's packages were linked: {told}", hint="make room and try again")
    if "longer than the placeholder" in told:
        return PrefixTooLong(
            f"the folder's path is too long for a package: {told}", hint="name a folder with a shorter path"
        )
    return LinkError(f"conda's packages could not be linked: {told}", hint="run again with --debug and report it")


#: What conda and envspec write about an environment; a package that brings it would lie about the environment.
RESERVED_FOLDERS: Final = ("conda-meta", ".envspec")
_ENTRY_POINT: Final = re.compile(r"([^/\\=\s]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)", re.ASCII)


class LinkedFiles:
    """What the packages that are linked so far put into one environment.

    site_packages: of its Python, below the environment; None without one.
    """

    def __init__(self, site_packages: str | None) -> None:
        self._site_packages = site_packages
        self._folders: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._files: set[str] = set()
        self._programs: set[str] = set()

    def fault_of(self, name: str, unpacked: Path, packed_bytes: int) -> str | None:
        """Why a package must not be linked, in words that follow its file name; None if it may.

        unpacked: its folder in rattler's cache. packed_bytes: of its archive.
        """
        # First: its metadata may be what is large.
        if (size := _size_of(unpacked)) > max_unpacked_bytes(packed_bytes):
            return f"{packed_bytes} bytes that unpack to {size}, which is a bomb"
        try:
            paths, programs = list(_paths(unpacked)), list(_entry_points(unpacked))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as fault:
            return f"its metadata can't be read ({' '.join(str(fault).split())})"
        made, placed = [], list[str]()
        for program in programs:
            match = _ENTRY_POINT.fullmatch(program)
            if not match or path_problem(match[1]):
                return f"its entry point {program!r} is not of the form `name = module:function`"
            made.append(f"bin/{match[1]}")
        inside, root = {""}, os.path.realpath(unpacked)
        for path in paths:
            if why := _why_not_below(path):
                return f"{path!r} is in it, which {why}"
            folder = posixpath.dirname(path)
            if folder not in inside and not Path(os.path.realpath(unpacked / folder)).is_relative_to(root):
                return f"{path!r} is behind a link of it that leads out"
            inside.add(folder)
            placed.append(self._place(path))
        links = [path for path in paths if (unpacked / path).is_symlink()]
        return self._twice(made, placed) or self._put(name, [*made, *placed], links)

    def _place(self, path: str) -> str:
        """Where rattler puts a path: noarch packages for Python have two folders that are moved."""
        top, _, rest = path.partition("/")
        if top == "site-packages" and self._site_packages:
            return f"{self._site_packages}/{rest}"
        return f"bin/{rest}" if top == "python-scripts" else path

    def _twice(self, made: Iterable[str], placed: Iterable[str]) -> str | None:
        """An entry point is in no list of files: rattler would write over what another package has there."""
        self._files.update(path for path in placed if path.startswith("bin/"))
        self._programs.update(made)
        both = sorted(self._programs & self._files)
        return f"{both[0]} is an entry point of a package and a file of a package" if both else None

    def _put(self, name: str, placed: Iterable[str], links: Iterable[str]) -> str | None:
        for path in placed:
            for folder in parents_of(path):
                if self._folders.setdefault(folder, path) != path:
                    break
                if folder in self._links:
                    return f"{path} of it is behind the link {folder} of {self._links[folder]}"
        for link in links:
            if link in self._folders:
                return f"{self._folders[link]} is behind the link {link} of it"
            self._links[link] = name
        return None


def _size_of(folder: Path) -> int:
    """Of all that is in it, listed or not; a file with holes counts whole, as in a layer."""
    return sum(
        os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 (50,000 times)
        for place, _, files in os.walk(folder)
        for name in files
    )


def _why_not_below(path: str) -> str | None:
    if why := path_problem(path):
        return why
    if posixpath.normpath(path) != path:
        return "is not a path in its plain form"
    return "only conda and envspec write" if path.split("/", 1)[0] in RESERVED_FOLDERS else None


def _paths(unpacked: Path) -> Iterator[str]:
    """What rattler links: the rows of paths.json; in packages from before 2017 the lines of `info/files`."""
    listed = unpacked / "info" / "paths.json"
    if listed.exists():
        yield from (str(row["_path"]) for row in _json(listed)["paths"])
    else:
        lines = (unpacked / "info" / "files").read_text(encoding="utf-8").splitlines()
        yield from (line for line in lines if line)


def _entry_points(unpacked: Path) -> Iterator[str]:
    link = unpacked / "info" / "link.json"
    if link.exists():
        yield from map(str, _json(link).get("noarch", {}).get("entry_points", ()))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
