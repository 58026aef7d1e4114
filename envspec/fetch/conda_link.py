"""Conda packages into a prefix.

rattler joins the paths in `info/paths.json` to folders unchecked, and follows the links in unpacked packages: a path
that leads out would make it write, replace or copy files of this machine. The unpacked package is checked, not the
archive: several members of an archive could be read as `info/paths.json`.

Sources: conda-build's documentation of `info/`; rattler 0.28, measured.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from envspec.errors import EnvspecError, UsageError
from envspec.io.archives import max_unpacked_bytes, parents_of, path_problem
from envspec.io.files import FULL, DiskFull, system_faults
from envspec.io.process import ParentLink, StopBy, run_streaming
from envspec.models import CondaPackage, Platform


class LinkError(EnvspecError, code="install-failed"):
    """rattler could not link a package."""


class BadCondaPackage(EnvspecError, exit_code=5, code="bad-conda-package"):
    """A conda package that must not be linked into an environment or put into a layer."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            problem,
            hint="use another build and report this one to its channel: its hash is the locked one, so it was "
            "published like this",
        )


class PrefixTooLong(UsageError, code="prefix-too-long"):
    """The environment's path is longer than a package's placeholder."""


class LinkTarget(Struct, frozen=True):
    """A folder to link packages into.

    prefix: the path that the packages' files contain. cache: rattler's folder of unpacked packages; files are hard
    links into it if the disk allows. installed: names of packages that count as installed and are not linked.
    inherited_fd: a descriptor that the process inherits, and with it the lock on the folder.
    """

    folder: Path
    prefix: str
    cache: Path
    platform: Platform
    installed: frozenset[str] = frozenset()
    inherited_fd: int | None = None


async def link(
    packages: Sequence[CondaPackage],
    archives: Mapping[str, Path],
    target: LinkTarget,
    environ: Mapping[str, str],
    on_progress: Callable[[int, int], None],
) -> None:
    """Link packages into a folder. archives: SHA-256 -> the checked archive, not needed of `target.installed`.

    on_progress: packages linked, packages in all. After a cancellation nothing writes into the folder.

    Raises:
        BadCondaPackage: it would write outside of the folder, through a link, or over files of conda and envspec.
        DiskFull, PrefixTooLong, LinkError
    """
    on_progress(0, len(packages) - len(target.installed))
    entries = []
    for package in packages:
        # rattler opens only the archives of packages that it links.
        archive, packed_bytes = package.url, 0
        if package.name not in target.installed:
            path = archives[package.sha256]
            archive, packed_bytes = path.as_uri(), path.stat().st_size
        entries.append({"package": to_builtins(package), "archive": archive, "packed_bytes": packed_bytes})
    request = {
        "site": str(target.folder),
        "prefix": target.prefix,
        "cache": str(target.cache),
        "platform": target.platform.value,
        "installed": sorted(target.installed),
        "packages": entries,
    }

    def on_line(line: str) -> None:
        event = json.loads(line)
        if "linked" in event:
            on_progress(event["linked"], event["total"])

    finished = await run_streaming(
        [sys.executable, "-m", "envspec.fetch.conda_link_worker"],
        # The same modules as in this process, wherever they came from.
        environ={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=target.folder,
        parent=ParentLink(target.inherited_fd, StopBy.STDIN, json.dumps(request).encode() + b"\n"),
        on_line=on_line,
    )
    events = [json.loads(line) for line in finished.lines]
    if refused := next((event["refused"] for event in events if "refused" in event), None):
        raise BadCondaPackage(refused)
    last = events[-1] if events else {}
    if finished.status != 0 or not last.get("done"):
        raise _link_error(
            last.get("error") or finished.stderr.strip() or f"rattler exited with status {finished.status}"
        )


#: Errors of the system that no package causes.
_OF_SYSTEM: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
)


def _link_error(text: str) -> EnvspecError:
    """rattler's chain of causes as one error."""
    if panic := re.search(r"panicked at [^\n]*\n(.+?)(?:\nnote: |\Z)", text, re.DOTALL):
        text = panic[1]
    lines = filter(None, text.splitlines())
    causes = ": ".join(dict.fromkeys(line.removeprefix("Caused by: ").strip() for line in lines))
    numbers = {each.number for each in system_faults(causes)}
    if numbers & FULL:
        return DiskFull(f"no space left while conda packages were linked: {causes}", hint="free space and try again")
    if "longer than the placeholder" in causes:
        return PrefixTooLong(f"the folder's path is too long for a package: {causes}", hint="use a shorter path")
    # Its hash is the locked one: if the system did not refuse a file, the package itself can't be used.
    package = re.match(r"failed to (?:fetch|link) (\S+\.(?:conda|tar\.bz2)): (.+)", causes)
    if package and not numbers & _OF_SYSTEM:
        return BadCondaPackage(f"{package[1]}: rattler can't unpack or link it: {package[2]}")
    return LinkError(f"conda packages could not be linked: {causes}", hint="run again with --debug and report it")


#: Records of conda and envspec about an environment; a package must not contain any.
RESERVED_FOLDERS: Final = ("conda-meta", ".envspec")
_ENTRY_POINT: Final = re.compile(r"([^/\\=\s]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)", re.ASCII)


class LinkedFiles:
    """The paths of the packages linked so far into one environment. site_packages: relative, None without Python."""

    def __init__(self, site_packages: str | None) -> None:
        self._site_packages = site_packages
        self._folders: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._files: set[str] = set()
        self._programs: set[str] = set()

    def problem_of(self, name: str, unpacked: Path, packed_bytes: int) -> str | None:
        """Why a package must not be linked, as text after its file name; None if it may.

        unpacked: its folder in rattler's cache. packed_bytes: of its archive.
        """
        # First: its metadata itself may be too large.
        if (size := _size_of(unpacked)) > max_unpacked_bytes(packed_bytes):
            return f"{packed_bytes} bytes that unpack to {size}, which is a bomb"
        try:
            paths, programs = list(_paths(unpacked)), list(_entry_points(unpacked))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            return f"its metadata can't be read ({' '.join(str(error).split())})"
        made, placed = [], list[str]()
        for program in programs:
            match = _ENTRY_POINT.fullmatch(program)
            if not match or path_problem(match[1]):
                return f"its entry point {program!r} is not of the form `name = module:function`"
            made.append(f"bin/{match[1]}")
        inside, root = {""}, os.path.realpath(unpacked)
        for path in paths:
            if why := _problem_with(path):
                return f"it contains {path!r}, which {why}"
            folder = posixpath.dirname(path)
            if folder not in inside and not Path(os.path.realpath(unpacked / folder)).is_relative_to(root):
                return f"it contains {path!r} behind a link that leads out"
            inside.add(folder)
            placed.append(self._place(path))
        links = [path for path in paths if (unpacked / path).is_symlink()]
        return self._check_programs(made, placed) or self._put(name, [*made, *placed], links)

    def _place(self, path: str) -> str:
        """Where rattler links a path: two folders of noarch Python packages are moved."""
        top, _, rest = path.partition("/")
        if top == "site-packages" and self._site_packages:
            return f"{self._site_packages}/{rest}"
        return f"bin/{rest}" if top == "python-scripts" else path

    def _check_programs(self, made: Iterable[str], placed: Iterable[str]) -> str | None:
        """Entry points are in no list of files: rattler would overwrite another package's file."""
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
                    return f"it contains {path} behind the link {folder} of {self._links[folder]}"
        for link in links:
            if link in self._folders:
                return f"{self._folders[link]} is behind its link {link}"
            self._links[link] = name
        return None


def _size_of(folder: Path) -> int:
    """Of all files, listed or not; a sparse file counts whole, as in a layer."""
    size_bytes = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            size_bytes += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 (50,000 times)
    return size_bytes


def _problem_with(path: str) -> str | None:
    if why := path_problem(path):
        return why
    if posixpath.normpath(path) != path:
        return "is not a normalised path"
    return "only conda and envspec write" if path.split("/", 1)[0] in RESERVED_FOLDERS else None


def _paths(unpacked: Path) -> Iterator[str]:
    """The paths that rattler links: in paths.json, or in packages from before 2017 the lines of `info/files`."""
    listed = unpacked / "info" / "paths.json"
    if listed.exists():
        yield from (str(entry["_path"]) for entry in _json(listed)["paths"])
    else:
        lines = (unpacked / "info" / "files").read_text(encoding="utf-8").splitlines()
        yield from (line for line in lines if line)


def _entry_points(unpacked: Path) -> Iterator[str]:
    link = unpacked / "info" / "link.json"
    if link.exists():
        yield from map(str, _json(link).get("noarch", {}).get("entry_points", ()))


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
