"""Conda packages as layers.

A layer holds all files of its own packages, whatever else the environment has: it follows from them alone. Bytecode
that packages bring goes, since it fits by the time of its source, and no layer keeps times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from envspec.fetch.conda_link import BadCondaPackage
from envspec.image.layers.ownership import LINK, Owned
from envspec.image.layers.partition import cut
from envspec.image.layers.types import PREFIX, Entry, Folders, InMemory, Kind, OnDisk
from envspec.image.sources.bytecode import Module, Pyc, compiled
from envspec.io.archives import FileConflict, parents_of, path_problem
from envspec.models import CondaPackage


async def check_paths(packages: Sequence[CondaPackage], archives: Mapping[str, Path]) -> None:
    """Refuse packages of which a file would be written outside the prefix, or through a link of another one.

    A layer that holds a file behind a link of another layer would put a folder into the link's place.

    Raises:
        BadPackage: names the package and the path.
    """
    owners: dict[str, CondaPackage] = {}
    links: dict[str, CondaPackage] = {}
    for package in packages:
        for path, kind in await _paths(package, archives[package.sha256]):
            if why := why_not_below(path):
                raise BadCondaPackage(f"{package.filename}: {path!r} is in it, which {why}")
            owners[path] = package
            if kind == "softlink":
                links[path] = package
    for path, package in owners.items():
        if behind := next((folder for folder in parents_of(path) if folder in links), None):
            of = links[behind].name
            raise BadCondaPackage(f"{package.filename}: {path} of it is behind the link {behind} of {of}")


def why_not_below(path: str) -> str | None:
    """Why a path of a package must not be written below its prefix; None if it may."""
    return path_problem(path) or (None if posixpath.normpath(path) == path else "is not a path in its plain form")


async def _paths(package: CondaPackage, archive: Path) -> list[tuple[str, str]]:
    from rattler.package_streaming import PackageArchive

    try:
        data = await (await PackageArchive.from_path(archive)).read_file("info/paths.json")
        # Archives from before 2017 have none; what they hold is looked at once it is linked.
        return [(str(row["_path"]), str(row["path_type"])) for row in json.loads(data)["paths"]] if data else []
    except (OSError, ValueError, LookupError, TypeError) as fault:
        raise BadCondaPackage(f"{package.filename}: it can't be read ({' '.join(str(fault).split())})") from fault


_FORM: Final = "conda 1"
_META: Final = "conda-meta"
_LIBRARY: Final = re.compile(r"lib/python3\.\d+t?/(?!test/)")
#: What conda-meta tells of a package and of its files. Source: conda's `PrefixRecord` and `PathDataV1`.
_META_FIELDS: Final = (
    *("arch", "build", "build_number", "constrains", "depends", "features", "fn", "license", "license_family", "md5"),
    *("name", "noarch", "platform", "python_site_packages_path", "requested_specs", "sha256", "size", "subdir"),
    *("timestamp", "track_features", "url", "version"),
)
_ROW_FIELDS: Final = (
    *("file_mode", "no_link", "path_type", "prefix_placeholder", "sha256", "sha256_in_prefix", "size_in_bytes"),
)
#: Fields that say why a package is here, not what it is.
_REASONS: Final = ("provides", "askers", "newest")


@dataclass(frozen=True, slots=True)
class CondaSource:
    """A layer of packages. folder: where rattler has linked them, or will have.

    series: of the environment's Python, which noarch packages follow; None without one. has_history: whether
    `conda-meta/history` is in it, by which conda knows an environment.
    """

    packages: tuple[CondaPackage, ...]
    folder: Path = field(compare=False)
    series: str | None
    pyc: Pyc | None
    has_history: bool = False

    @property
    def key(self) -> str:
        """SHA-256 over the packages' rows, prefix and Python; no path of this machine."""
        rows = [fields_of(package) for package in self.packages]
        told = [_FORM, PREFIX, rows, self.series, self.pyc.key if self.pyc else None, self.has_history]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def title(self) -> str:
        """See `Source.title`."""
        names = [f"{package.name} {package.version}" for package in self.packages]
        return f"conda: {names[0]}" if len(names) == 1 else f"{len(names)} conda packages: {', '.join(names)}"

    def owned(self) -> tuple[Owned, ...]:
        """Every path but bytecode and what conda writes about packages.

        Raises:
            BadPackage, FileConflict, OSError
        """
        return tuple(file.owned for _, file in sorted(self._files().items()))

    def entries(self) -> Iterator[Entry]:
        """Files by path, each module followed by its bytecode; then what conda-meta tells of each package.

        Raises:
            BadPackage: it would write outside its prefix, or through a link. FileConflict: two packages have one path.
            UnfitMachine, WorkerFault: no bytecode. OSError: what rattler linked can't be read.
        """
        files = self._files()
        folders = Folders()
        modules = [path for path, file in sorted(files.items()) if file.is_module]
        made: dict[str, str] = {}
        with contextlib.closing(self._bytecode(modules, files)) as bytecode:
            for path, file in sorted(files.items()):
                yield from folders.above(f"{PREFIX}/{path}")
                yield file.entry
                if file.is_module and self.pyc is not None and (data := next(bytecode)):
                    place = self.pyc.path_of(path)
                    made[place] = path
                    yield from folders.above(f"{PREFIX}/{place}")
                    yield Entry(f"{PREFIX}/{place}", 0o644, data=InMemory(data))
        yield from folders.to(f"{PREFIX}/{_META}")
        if self.has_history:
            yield Entry(f"{PREFIX}/{_META}/history", 0o644, data=InMemory(b""))
        for package in self.packages:
            text = _told(package, self._meta(package), made)
            yield Entry(f"{PREFIX}/{_META}/{stem_of(package)}.json", 0o644, data=InMemory(text))

    def _files(self) -> Mapping[str, _File]:
        """Path below the prefix -> the file that is there, bytecode left out."""
        files: dict[str, _File] = {}
        for package in self.packages:
            for row in self._meta(package)["paths_data"]["paths"]:
                path = row.get("original_path") or row["_path"]
                if _is_bytecode(path):
                    continue
                file = _file_of(package, path, self.folder / row["_path"], _digest_of(row))
                there = files.setdefault(path, file)
                if there.owned.digest != file.owned.digest:
                    raise FileConflict(f"{PREFIX}/{path}", there.owned.owner, file.owned.owner)
        links = {path for path, file in files.items() if file.entry.kind is Kind.SYMLINK}
        for path, file in files.items():
            if not links.isdisjoint(parents_of(path)):
                raise BadCondaPackage(f"{file.package.filename}: {path} is behind a link of conda's")
        return files

    def _meta(self, package: CondaPackage) -> Any:
        return json.loads((self.folder / _META / f"{stem_of(package)}.json").read_text(encoding="utf-8"))

    def _bytecode(self, paths: Sequence[str], files: Mapping[str, _File]) -> Generator[bytes, None, None]:
        if self.pyc is None:
            return
        modules = (
            Module(f"{PREFIX}/{path}", files[path].real.stat().st_size, files[path].real.read_bytes) for path in paths
        )
        with contextlib.closing(compiled(self.pyc, modules)) as coming:
            yield from coming


@dataclass(frozen=True, slots=True)
class _File:
    package: CondaPackage
    entry: Entry
    owned: Owned
    real: Path
    is_module: bool


def conda_sources(
    packages: Sequence[CondaPackage], folder: Path, series: str | None, pyc: Pyc | None, most: int
) -> tuple[CondaSource, ...]:
    """The layers of an environment's packages: big ones alone, small ones in buckets; at most `most`."""
    named = {package.name: package for package in packages}
    groups = cut([(package.name, package.size_bytes) for package in packages], most)
    return tuple(
        CondaSource(tuple(named[name] for name in sorted(names)), folder, series, pyc, has_history=number == 0)
        for number, names in enumerate(groups)
    )


def fields_of(package: CondaPackage) -> dict[str, object]:
    """A row without why it is here: what its files and conda-meta follow from."""
    return {name: value for name, value in asdict(package).items() if name not in _REASONS}


def stem_of(package: CondaPackage) -> str:
    """How conda names what belongs to a package."""
    return f"{package.name}-{package.version}-{package.build}"


def _file_of(package: CondaPackage, path: str, real: Path, digest: str | None) -> _File:
    if why := why_not_below(path):
        raise BadCondaPackage(f"{package.filename}: {path!r} is in it, which {why}")
    place, owner = f"{PREFIX}/{path}", f"conda's {package.name} {package.version}"
    if real.is_symlink():
        target = str(real.readlink())
        entry = Entry(place, 0o777, Kind.SYMLINK, target=target)
        return _File(package, entry, Owned(place, owner, f"{LINK}{target}"), real, is_module=False)
    status = real.stat()
    entry = Entry(place, 0o755 if status.st_mode & 0o100 else 0o644, data=OnDisk(real, status.st_size))
    is_module = path.endswith(".py") and bool(_LIBRARY.match(path))
    return _File(package, entry, Owned(place, owner, digest or _sha256(real)), real, is_module)


def _digest_of(row: Mapping[str, str]) -> str | None:
    """The hash of a file with the prefix in it, as rattler noted it when it wrote the file."""
    return row.get("sha256_in_prefix") or (None if "prefix_placeholder" in row else row.get("sha256"))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _is_bytecode(path: str) -> bool:
    return path.endswith(".pyc") and posixpath.basename(posixpath.dirname(path)) == "__pycache__"


def _told(package: CondaPackage, meta: dict[str, Any], made: Mapping[str, str]) -> bytes:
    """conda-meta's file of a package, with nothing in it of where it was linked, nor of which rattler wrote it."""
    rows: list[dict[str, Any]] = []
    for row in meta["paths_data"]["paths"]:
        path = row.get("original_path") or row["_path"]
        if not _is_bytecode(path):
            rows.append({"_path": path, **{name: row[name] for name in _ROW_FIELDS if name in row}})
    own = {row["_path"] for row in rows}
    rows += [{"_path": place, "path_type": "pyc_file"} for place, module in made.items() if module in own]
    rows.sort(key=lambda row: str(row["_path"]))
    told: dict[str, Any] = {
        **{name: meta[name] for name in _META_FIELDS if name in meta},
        "channel": package.url.rsplit("/", 2)[0],
        "files": [row["_path"] for row in rows],
        "paths_data": {"paths": rows, "paths_version": meta["paths_data"].get("paths_version", 1)},
    }
    return (json.dumps(told, indent=2, sort_keys=True) + "\n").encode()
