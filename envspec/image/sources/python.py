"""Standalone Python and virtual environment as layers.

The archive's own bytecode is omitted: it is checked against its source's time, and layers have no times.

Source: `venv` of the standard library, Python 3.10 to 3.13 on Linux; `activate` and its like are omitted, since an
image's PATH begins with the environment's programs.
"""

from __future__ import annotations

import csv
import hashlib
import json
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.image.layers.ownership import OwnedPath
from envspec.image.layers.types import PREFIX, Entry, EntryKind, InMemory, with_folders
from envspec.image.sources.bytecode import (
    TOP,
    BadPython,
    PycCompiler,
    SourceModule,
    mode_of,
    open_archive,
    python_members,
    read_content,
    with_bytecode,
)
from envspec.models import OnTopOf, Python
from envspec.names import normalised

_FORM: Final = "standalone 2"
#: Distributions in the archives; a locked one of the same name replaces them.
BUNDLED: Final = frozenset({"pip", "setuptools", "wheel"})


@dataclass(frozen=True, slots=True)
class StandalonePython:
    """archive: may be fetched later. locked: names in the lock, normalised. pyc: None for no bytecode."""

    archive: Path = field(compare=False)
    sha256: str
    version: str
    locked: frozenset[str]
    pyc: PycCompiler | None

    @property
    def key(self) -> str:
        """Of the locked names only those that may be in the archive."""
        parts = [_FORM, PREFIX, self.sha256, sorted(self.locked & BUNDLED), self.pyc.key if self.pyc else None]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def title(self) -> str:
        return f"Python {self.version}"

    def owned(self) -> tuple[OwnedPath, ...]:
        """Every file and link but bytecode and site-packages' README.txt, which is in many wheels too.

        Raises:
            As `entries`.
        """
        with open_archive(self.archive) as tar:
            found = self._survey(tar)
        readme = f"lib/python{self._series}/site-packages/README.txt"
        paths = sorted(path for path in (*found.paths, *found.links) if path != readme)
        return tuple(OwnedPath(f"{PREFIX}/{path}", self.title, self.sha256) for path in paths)

    def entries(self) -> Iterator[Entry]:
        """The archive's files in its order, each module followed by its bytecode.

        Raises:
            BadPython: an unexpected or unsafe archive. UnfitMachine, CompilerFailed: no bytecode. OSError: it can't be
            read.
        """
        return with_folders(self._entries())

    def _entries(self) -> Iterator[Entry]:
        with open_archive(self.archive) as tar:
            found = self._survey(tar)
        modules = (
            # A default binds `data` now: it has changed when the module is read.
            SourceModule(f"{PREFIX}/{path}", len(data), lambda data=data: data)  # type: ignore[misc]
            for path, data in found.modules.items()
        )
        with open_archive(self.archive) as tar:
            members = python_members(self.archive, tar)
            entries = (self._entry(path, info, tar, found.modules) for path, info in members if path in found.paths)
            yield from with_bytecode(self.pyc, entries, modules, {}, {})
        for name, target in found.links.items():
            yield Entry(f"{PREFIX}/{name}", 0o777, EntryKind.SYMLINK, target=target)
        # The program has all of it and does not load it, but wheels need it by its name (torchcodec before 0.16).
        # /usr/lib is a default folder of the loader; an image runs no ldconfig, and LD_LIBRARY_PATH is the user's.
        library = f"lib/libpython{self._series}.so.1.0"
        if library in found.paths:
            name = f"usr/{library}"
            yield Entry(name, 0o777, EntryKind.SYMLINK, target=f"/{PREFIX}/{library}")

    @property
    def _series(self) -> str:
        return ".".join(self.version.split(".")[:2])

    def _survey(self, tar: tarfile.TarFile) -> _Survey:
        """Read all modules into memory, 25 MB: bytecode is compiled ahead of the archive's order."""
        paths: list[str] = []
        hard: dict[str, str] = {}
        modules: dict[str, bytes] = {}
        records: dict[str, bytes] = {}
        library = f"lib/python{self._series}/"
        for path, info in python_members(self.archive, tar):
            paths.append(path)
            if info.islnk():
                hard[path] = info.linkname[len(TOP) + 1 :]
            if info.isfile() and _is_compiled(path, library):
                modules[path] = read_content(tar, info)
            elif path.endswith(".dist-info/RECORD"):
                records[path] = read_content(tar, info)
        program = f"bin/python{self._series}"
        if program not in paths:
            raise BadPython(self.archive.name, f"it has no {TOP}/{program}: it is not Python {self._series}")
        replaced = self._replaced(records)
        kept = frozenset(path for path in set(paths) - replaced if not path.endswith((".pyc", ".pyo")))
        dangling = [path for path in sorted(kept & hard.keys()) if hard[path] not in kept]
        if dangling:
            raise BadPython(self.archive.name, f"{TOP}/{dangling[0]} is a link to a file that is omitted")
        compiled = {path: data for path, data in modules.items() if path in kept}
        links = {}
        for name in ("bin/python3", "bin/python"):
            if name not in kept:
                links[name] = f"python{self._series}"
        return _Survey(kept, compiled, links)

    def _replaced(self, records: Mapping[str, bytes]) -> set[str]:
        """The files of distributions that a locked one replaces."""
        replaced = set()
        for path, data in records.items():
            folder = posixpath.dirname(path)
            name = normalised(posixpath.basename(folder).partition("-")[0])
            if name not in self.locked:
                continue
            if name not in BUNDLED:
                raise BadPython(self.archive.name, f"it contains {name}, which is in the lock too")
            library = posixpath.dirname(folder)
            rows = csv.reader(data.decode("utf-8").splitlines())
            replaced |= {posixpath.normpath(posixpath.join(library, row[0])) for row in rows if row}
        return replaced

    def _entry(self, name: str, info: tarfile.TarInfo, tar: tarfile.TarFile, modules: Mapping[str, bytes]) -> Entry:
        path = f"{PREFIX}/{name}"
        if info.issym():
            return Entry(path, 0o777, EntryKind.SYMLINK, target=info.linkname)
        if info.islnk():
            return Entry(path, 0o644, EntryKind.HARDLINK, target=f"{PREFIX}{info.linkname[len(TOP) :]}")
        data = modules.get(name)
        if data is None:
            data = read_content(tar, info)
        return Entry(path, mode_of(info), data=InMemory(data))


class _Survey(Struct, frozen=True):
    """paths: in the layer. modules: those to compile, in the archive's order. links: to add."""

    paths: frozenset[str]
    modules: Mapping[str, bytes]
    links: Mapping[str, str]


_VENV_FORM: Final = "venv 1"


class Venv(Struct, frozen=True):
    """home: the folder of the interpreter in the image, absolute. below: what has the packages beside its own."""

    python: Python
    home: str = "/usr/bin"
    below: OnTopOf | None = None

    @property
    def key(self) -> str:
        below = [self.below.site, self.below.nested] if self.below else []
        parts = [_VENV_FORM, PREFIX, self.python.version, self.home, *below]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def title(self) -> str:
        return f"environment of {self.home}/python{self.python.series}"

    def owned(self) -> tuple[OwnedPath, ...]:
        paths = [entry.path for entry in self.entries() if entry.kind is not EntryKind.FOLDER]
        return tuple(OwnedPath(path, self.title, self.key) for path in paths)

    def entries(self) -> Iterator[Entry]:
        return with_folders(self._entries())

    def _entries(self) -> Iterator[Entry]:
        series = self.python.series
        yield Entry(f"{PREFIX}/bin/python", 0o777, EntryKind.SYMLINK, target=f"{self.home}/python{series}")
        for name in ("python3", f"python{series}"):
            yield Entry(f"{PREFIX}/bin/{name}", 0o777, EntryKind.SYMLINK, target="python")
        yield Entry(f"{PREFIX}/include/site/python{series}", 0o755, EntryKind.FOLDER)
        site = f"{PREFIX}/lib/python{series}/site-packages"
        yield Entry(site, 0o755, EntryKind.FOLDER)
        if self.below:
            for path, line in self.below.path_files(f"/{site}").items():
                yield Entry(path.lstrip("/"), 0o644, data=InMemory(f"{line}\n".encode()))
        yield Entry(f"{PREFIX}/lib64", 0o777, EntryKind.SYMLINK, target="lib")
        yield Entry(f"{PREFIX}/pyvenv.cfg", 0o644, data=InMemory(self._config().encode()))

    def _config(self) -> str:
        return (
            f"home = {self.home}\n"
            f"include-system-site-packages = {'true' if self.below and self.below.site else 'false'}\n"
            f"version = {self.python.version}\n"
            f"executable = {self.home}/python{self.python.series}\n"
        )


def home_of(python: Python, environ: Mapping[str, str]) -> str:
    """The folder of the interpreter in the image. environ: the base image's variables.

    `/usr/bin` on Debian and Ubuntu; `/usr/local/bin` in Docker's `python` images, which set PYTHON_VERSION.
    """
    return "/usr/local/bin" if python.source == "base" and "PYTHON_VERSION" in environ else "/usr/bin"


def _is_compiled(path: str, library: str) -> bool:
    """Whether a module below `library` gets bytecode.

    Some files of the interpreter's tests are invalid on purpose, and nothing imports them.
    """
    return path.startswith(library) and path.endswith(".py") and not path.startswith(f"{library}test/")
