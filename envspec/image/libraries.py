"""What the libraries of wheels contain and need, and what of it is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from envspec.image.elf import DynamicScan, NotKept, Read, dynamic_of
from envspec.image.gpu_code import FatbinScan, union
from envspec.image.layers.gzip import Archives, read_data
from envspec.image.layers.types import Entry, ZipMember
from envspec.models import GpuCodeFound, Library, Package, WheelContent

if TYPE_CHECKING:
    from envspec.facts import Facts
    from envspec.image.sources.wheel import LockedWheel

#: Names of possible libraries and programs.
MAY_BE_ELF: Final = re.compile(r"\.so(\.[\w.]+)?$|^[^.]+$")
#: What Python imports: `_C.cpython-311-x86_64-linux-gnu.so`, `cv2.abi3.so`, `rdBase.so`. Plugins, and libraries that a
#: package opens only where they fit (torchcodec's for four majors of FFmpeg), may need what is not there.
_MODULE: Final = re.compile(r"(?!lib).*\.so|.*\.(cpython-[^.]+|abi3)\.so")
#: Of the driver, which a container gets from the machine.
_OF_DRIVER: Final = re.compile(r"lib(cuda|nvidia-.+|nvcuvid|nvoptix)\.so\.1")
#: CUDA's, which the wheels that bring them are loaded for, and the loader, and the Python that runs.
_OTHERS: Final = re.compile(r"lib(cu[a-z]+|nv[a-zA-Z]+|nccl)\.so[.\d]*|ld-linux.*\.so\.\d|libpython3.*")


class MissingLibraries(Struct, frozen=True):
    """What the modules of one package need. modules: names of files. apt: packages with them, as far as rows say so."""

    package: Package
    modules: tuple[str, ...]
    libraries: tuple[str, ...]
    apt: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package.name} {self.package.version}: {self.modules[0]} needs {', '.join(self.libraries)}"


def missing_libraries(
    contents: Mapping[Package, Sequence[Library]], os: str, has: Callable[[str], bool], facts: Facts
) -> Iterator[MissingLibraries]:
    """What Python modules need, directly or by libraries of their package, if no wheel and not the system has it.

    contents: of every package with libraries.
    os: the system's release.
    has: whether the system has a library.
    """
    brought: set[str] = set()
    for libraries in contents.values():
        brought.update(_by_name(libraries))
    system = facts.libraries_of(os)
    packages = system.packages if system else {}
    for package, libraries in contents.items():
        need = facts.library_need(package.name, package.version)
        provided = brought.union(need.optional if need else ())
        missing: dict[str, str] = {}
        for name, module in _needed_by_modules(libraries):
            if name not in provided and not _is_of_the_machine(name) and not has(name):
                missing.setdefault(name, module)
        if missing:
            apt = tuple(dict.fromkeys(packages[name] for name in missing if name in packages))
            yield MissingLibraries(package, tuple(dict.fromkeys(missing.values())), tuple(missing), apt)


def _by_name(libraries: Iterable[Library]) -> dict[str, list[Library]]:
    found: dict[str, list[Library]] = {}
    for library in libraries:
        for name in {library.name, library.soname}:
            found.setdefault(name, []).append(library)
    return found


def _needed_by_modules(libraries: Sequence[Library]) -> Iterator[tuple[str, str]]:
    """(library, module) for what each Python module needs and no module before it."""
    own = _by_name(libraries)
    reached = set[Library]()
    for module in libraries:
        if not _MODULE.fullmatch(module.name):
            continue
        needed, left = set[str](), [module]
        while left:
            library = left.pop()
            if library in reached:
                continue
            reached.add(library)
            needed.update(library.needed)
            for name in library.needed:
                left += own.get(name, ())
        for name in sorted(needed):
            yield name, module.name


def _is_of_the_machine(name: str) -> bool:
    return bool(_OF_DRIVER.fullmatch(name) or _OTHERS.fullmatch(name))


def read_libraries(files: Iterable[Path]) -> Iterator[Library]:
    """The libraries among installed files; of each only what is needed is read."""
    for path in files:
        if not MAY_BE_ELF.search(path.name) or not path.is_file():
            continue
        with path.open("rb", buffering=0) as file:

            def read(start: int, end: int, file: FileIO = file) -> bytes:
                file.seek(start)
                return file.read(end - start)

            found = dynamic_of(read)
        if found is not None:
            yield Library(path.name, found.soname, found.needed, found.runpath)


class LibraryObserver:
    """Finds the libraries in one layer of wheels; see `envspec.image.layers.store.EntryObserver`."""

    def __init__(self, wheels: Iterable[LockedWheel]) -> None:
        self._wheels = {wheel.path: wheel.sha256 for wheel in wheels}
        self._scans: dict[str, list[LibraryScan]] = {}

    def __call__(self, entry: Entry, /) -> LibraryScan | None:
        name = entry.path.rpartition("/")[2]
        if not isinstance(entry.data, ZipMember) or not MAY_BE_ELF.search(name):
            return None
        scan = LibraryScan(name, entry.data)
        self._scans.setdefault(self._wheels[entry.data.archive], []).append(scan)
        return scan

    def found(self) -> tuple[tuple[str, WheelContent], ...]:
        """(SHA-256, content) of the wheels that have libraries or programs."""
        found = []
        for sha256, scans in sorted(self._scans.items()):
            libraries = sorted(scan.library for scan in scans if scan.library)
            content = WheelContent(union(scan.code for scan in scans), tuple(libraries))
            if content != WheelContent():
                found.append((sha256, content))
        return tuple(found)


class LibraryScan:
    """Receives one file's bytes, in order. library: None until `close`, and if the file needs no other."""

    def __init__(self, name: str, member: ZipMember) -> None:
        self._name = name
        self._member = member
        self._fatbin: FatbinScan | None = FatbinScan()
        self._dynamic = DynamicScan()
        self.code = GpuCodeFound()
        self.library: Library | None = None

    def write(self, data: bytes, /) -> None:
        if self._fatbin is None:
            return
        self._fatbin.write(data)
        if self._fatbin.is_library is False:
            self._fatbin = None
        else:
            self._dynamic.add(data)

    def close(self) -> None:
        if self._fatbin is None:
            return
        self._fatbin.close()
        self.code = self._fatbin.found
        try:
            found = dynamic_of(self._dynamic.read)
        except NotKept as missing:
            found = dynamic_of(self._with(missing))
        if found is not None:
            self.library = Library(self._name, found.soname, found.needed, found.runpath)
        # A scan keeps up to 2 MB, and a layer may have a thousand libraries.
        self._fatbin, self._dynamic = None, DynamicScan()

    def _with(self, missing: NotKept) -> Read:
        """Reads the file once more, up to what is missing."""
        kept, seen = bytearray(), 0
        with Archives() as archives:
            for data in read_data(self._member, self._name, archives):
                kept += data[max(0, missing.start - seen) : max(0, missing.end - seen)]
                seen += len(data)
                if seen >= missing.end:
                    break

        def read(start: int, end: int) -> bytes:
            if (start, end) == (missing.start, missing.end):
                return bytes(kept)
            return self._dynamic.read(start, end)

        return read
