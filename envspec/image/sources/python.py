"""Standalone Python and virtual environment as layers.

What the archive itself brings of bytecode goes: it fits by the time of its source, and no layer keeps times.

Source: `venv` of the standard library, as Python 3.10 to 3.13 make it on Linux; `activate` and its like are left out,
since an image's PATH begins with the environment's programs.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import posixpath
import tarfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from envspec.image.layers.ownership import Owned
from envspec.image.layers.types import PREFIX, Entry, Folders, InMemory, Kind
from envspec.image.sources.bytecode import TOP, BadPython, Member, Module, Pyc, compiled, content, members, reading
from envspec.models import Python
from envspec.names import normalised

_FORM: Final = "standalone 1"
#: The distributions that such archives bring; a locked one of the same name takes their place.
BUNDLED: Final = frozenset({"pip", "setuptools", "wheel"})


@dataclass(frozen=True, slots=True)
class StandalonePython:
    """archive: where it is, or will be. locked: names of the lock, in PEP 503's form. pyc: None for no bytecode."""

    archive: Path = field(compare=False)
    sha256: str
    version: str
    locked: frozenset[str]
    pyc: Pyc | None

    @property
    def key(self) -> str:
        """See `Source.key`. Of the locked names those alone that may be in the archive."""
        told = [_FORM, PREFIX, self.sha256, sorted(self._replaced), self.pyc.key if self.pyc else None]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def title(self) -> str:
        """See `Source.title`."""
        return f"Python {self.version}"

    def owned(self) -> tuple[Owned, ...]:
        """Every file and link of the layer but bytecode, and the note in site-packages that many wheels bring too.

        Raises:
            As `entries`.
        """
        with reading(self.archive) as tar:
            found = self._survey(tar)
        note = f"lib/python{self._series}/site-packages/README.txt"
        paths = sorted(path for path in (*found.kept, *found.named) if path != note)
        return tuple(Owned(f"{PREFIX}/{path}", self.title, self.sha256) for path in paths)

    def entries(self) -> Iterator[Entry]:
        """The archive's files in its order, each module followed by its bytecode.

        Raises:
            BadPython: the archive is not what it should be, or would lead out of its folder. UnfitMachine, WorkerFault:
            no bytecode. OSError: it can't be read.
        """
        with reading(self.archive) as tar:
            found = self._survey(tar)
        folders = Folders()
        with contextlib.closing(self._bytecode(found)) as bytecode, reading(self.archive) as tar:
            for member in members(self.archive, tar):
                if member.path not in found.kept:
                    continue
                path = f"{PREFIX}/{member.path}"
                yield from folders.above(path)
                yield self._entry(path, member, tar, found.modules)
                if member.path in found.modules and self.pyc is not None and (data := next(bytecode)):
                    place = self.pyc.path_of(path)
                    yield from folders.above(place)
                    yield Entry(place, 0o644, data=InMemory(data))
        for name, target in found.named.items():
            yield Entry(f"{PREFIX}/{name}", 0o777, Kind.SYMLINK, target=target)

    @property
    def _series(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def _replaced(self) -> frozenset[str]:
        return self.locked & BUNDLED

    def _survey(self, tar: tarfile.TarFile) -> _Found:
        """What is to be kept; modules in memory, 25 MB of them, since bytecode is made ahead of the archive's order."""
        library = f"lib/python{self._series}"
        paths: list[str] = []
        hard: dict[str, str] = {}
        modules: dict[str, bytes] = {}
        records: dict[str, bytes] = {}
        for member in members(self.archive, tar):
            paths.append(member.path)
            if member.info.islnk():
                hard[member.path] = member.info.linkname[len(TOP) + 1 :]
            if member.info.isfile() and member.path.startswith(f"{library}/") and member.path.endswith(".py"):
                modules[member.path] = content(tar, member)
            elif member.path.endswith(".dist-info/RECORD"):
                records[member.path] = content(tar, member)
        program = f"bin/python{self._series}"
        if program not in paths:
            raise BadPython(self.archive.name, f"it has no {TOP}/{program}: it is no Python {self._series}")
        gone = self._gone(records)
        kept = frozenset(path for path in paths if path not in gone and not path.endswith((".pyc", ".pyo")))
        if torn := sorted(path for path, target in hard.items() if path in kept and target not in kept):
            raise BadPython(self.archive.name, f"{TOP}/{torn[0]} is a link to a file that is left out")
        names = {f"bin/{name}": f"python{self._series}" for name in ("python3", "python")}
        return _Found(
            kept,
            # The interpreter's own tests hold files that are no Python on purpose, and nothing imports them.
            {path: data for path, data in modules.items() if path in kept and not path.startswith(f"{library}/test/")},
            {name: target for name, target in names.items() if name not in kept},
        )

    def _gone(self, records: Mapping[str, bytes]) -> frozenset[str]:
        """The files of distributions whose place a locked one takes."""
        gone = set()
        for path, data in records.items():
            folder = posixpath.dirname(path)
            name = normalised(posixpath.basename(folder).partition("-")[0])
            if name not in self.locked:
                continue
            if name not in BUNDLED:
                raise BadPython(self.archive.name, f"it brings {name}, which the lock has too")
            library = posixpath.dirname(folder)
            rows = csv.reader(data.decode("utf-8").splitlines())
            gone |= {posixpath.normpath(posixpath.join(library, row[0])) for row in rows if row}
        return frozenset(gone)

    def _bytecode(self, found: _Found) -> Generator[bytes, None, None]:
        if self.pyc is None:
            return
        modules = (
            # Bound now: the name in the loop is another when the module is read.
            Module(f"{PREFIX}/{path}", len(data), lambda data=data: data)  # type: ignore[misc]
            for path, data in found.modules.items()
        )
        with contextlib.closing(compiled(self.pyc, modules)) as coming:
            yield from coming

    def _entry(self, path: str, member: Member, tar: tarfile.TarFile, modules: Mapping[str, bytes]) -> Entry:
        if member.info.issym():
            return Entry(path, 0o777, Kind.SYMLINK, target=member.info.linkname)
        if member.info.islnk():
            return Entry(path, 0o644, Kind.HARDLINK, target=f"{PREFIX}{member.info.linkname[len(TOP) :]}")
        mode = 0o755 if member.is_program else 0o644
        data = modules.get(member.path)
        return Entry(path, mode, data=InMemory(content(tar, member) if data is None else data))


@dataclass(frozen=True, slots=True)
class _Found:
    """kept: paths of the layer. modules: those that get bytecode, in the archive's order. named: links to add."""

    kept: frozenset[str]
    modules: Mapping[str, bytes]
    named: Mapping[str, str]


_VENV_FORM: Final = "venv 1"


@dataclass(frozen=True, slots=True)
class Venv:
    """python: the one that it is of. home: the folder of its programs in the image, absolute."""

    python: Python
    home: str = "/usr/bin"

    @property
    def key(self) -> str:
        """See `Source.key`."""
        told = [_VENV_FORM, PREFIX, self.python.version, self.home]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def title(self) -> str:
        """See `Source.title`."""
        return f"environment of {self.home}/python{self.python.series}"

    def owned(self) -> tuple[Owned, ...]:
        """Its files and links."""
        paths = [entry.path for entry in self.entries() if entry.kind is not Kind.FOLDER]
        return tuple(Owned(path, self.title, self.key) for path in paths)

    def entries(self) -> Iterator[Entry]:
        """See `Source.entries`."""
        series = self.python.series
        folders = Folders()
        yield from folders.to(f"{PREFIX}/bin")
        yield Entry(f"{PREFIX}/bin/python", 0o777, Kind.SYMLINK, target=f"{self.home}/python{series}")
        for name in ("python3", f"python{series}"):
            yield Entry(f"{PREFIX}/bin/{name}", 0o777, Kind.SYMLINK, target="python")
        yield from folders.to(f"{PREFIX}/include/site/python{series}")
        yield from folders.to(f"{PREFIX}/lib/python{series}/site-packages")
        yield Entry(f"{PREFIX}/lib64", 0o777, Kind.SYMLINK, target="lib")
        yield Entry(f"{PREFIX}/pyvenv.cfg", 0o644, data=InMemory(self._config().encode()))

    def _config(self) -> str:
        return (
            f"home = {self.home}\n"
            "include-system-site-packages = false\n"
            f"version = {self.python.version}\n"
            f"executable = {self.home}/python{self.python.series}\n"
        )


def home_of(python: Python, environ: Mapping[str, str]) -> str:
    """The folder of the interpreter in the image. environ: the base image's own variables.

    Debian and Ubuntu have theirs in `/usr/bin`; Docker's `python` images, which say their version in PYTHON_VERSION,
    in `/usr/local/bin`.
    """
    return "/usr/local/bin" if python.source == "base" and "PYTHON_VERSION" in environ else "/usr/bin"
