"""A package of conda's as rattler has unpacked it, looked at right before rattler links it: what would be put where.

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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from envspec.effects.archives import above, most_bytes, why_refused

#: What conda and envspec write about an environment; a package that brings it would lie about the environment.
RESERVED: Final = ("conda-meta", ".envspec")
_ENTRY_POINT: Final = re.compile(r"([^/\\=\s]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)", re.ASCII)


class Environment:
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
        if (size := _size_of(unpacked)) > most_bytes(packed_bytes):
            return f"{packed_bytes} bytes that unpack to {size}, which is a bomb"
        try:
            paths, programs = list(_paths(unpacked)), list(_entry_points(unpacked))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as fault:
            return f"its metadata can't be read ({' '.join(str(fault).split())})"
        made, placed = [], list[str]()
        for program in programs:
            match = _ENTRY_POINT.fullmatch(program)
            if not match or why_refused(match[1]):
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
            for folder in above(path):
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
    if why := why_refused(path):
        return why
    if posixpath.normpath(path) != path:
        return "is not a path in its plain form"
    return "only conda and envspec write" if path.split("/", 1)[0] in RESERVED else None


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
