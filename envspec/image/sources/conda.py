"""Conda packages as layers.

A layer contains all files of its own packages and follows from them alone. The packages' own bytecode is omitted: it is
checked against its source's time, and layers have no times.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from envspec.image.layers.ownership import LINK, OwnedPath, sha256_of
from envspec.image.layers.partition import partition
from envspec.image.layers.types import PREFIX, Entry, EntryKind, InMemory, OnDisk, with_folders
from envspec.image.sources.bytecode import PycCompiler, SourceModule, with_bytecode
from envspec.io.archives import FileConflict
from envspec.models import CONDA_REASONS, CondaPackage
from envspec.verifier.hashing import is_bytecode

_FORM: Final = "conda 1"
_META: Final = "conda-meta"
_LIBRARY: Final = re.compile(r"lib/python3\.\d+t?/(?!test/)")
#: Fields of conda-meta, of a package and of its files. Source: conda's `PrefixRecord` and `PathDataV1`.
_META_FIELDS: Final = (
    *("arch", "build", "build_number", "constrains", "depends", "features", "fn", "license", "license_family", "md5"),
    *("name", "noarch", "platform", "python_site_packages_path", "requested_specs", "sha256", "size", "subdir"),
    *("timestamp", "track_features", "url", "version"),
)
_FILE_FIELDS: Final = (
    *("file_mode", "no_link", "path_type", "prefix_placeholder", "sha256", "sha256_in_prefix", "size_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class CondaSource:
    """A layer of packages. folder: prefix into which rattler links them.

    series: of the environment's Python, for noarch packages; None without one. has_history: whether the layer contains
    `conda-meta/history`, by which conda recognises an environment.
    """

    packages: tuple[CondaPackage, ...]
    folder: Path = field(compare=False)
    series: str | None
    pyc: PycCompiler | None
    has_history: bool = False

    @property
    def key(self) -> str:
        """Of the packages' records, the prefix and Python, without any path of this machine."""
        records = []
        for package in self.packages:
            fields = to_builtins(package).items()
            records.append({name: value for name, value in fields if name not in CONDA_REASONS})
        parts = [_FORM, PREFIX, records, self.series, self.pyc.key if self.pyc else None, self.has_history]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def title(self) -> str:
        names = [f"{package.name} {package.version}" for package in self.packages]
        return f"conda: {names[0]}" if len(names) == 1 else f"{len(names)} conda packages: {', '.join(names)}"

    def owned(self) -> tuple[OwnedPath, ...]:
        """Every path but bytecode and conda-meta. Raises FileConflict, OSError."""
        return tuple(file.owned for file in self._files().values())

    def entries(self) -> Iterator[Entry]:
        """Files by path, each module followed by its bytecode; then each package's conda-meta.

        Raises:
            FileConflict: two packages write one path. UnfitMachine, CompilerFailed: no bytecode. OSError: rattler's
            files can't be read.
        """
        return with_folders(self._entries())

    def _entries(self) -> Iterator[Entry]:
        files = self._files().values()
        modules = (
            SourceModule(file.entry.path, file.entry.size_bytes, file.real.read_bytes)
            for file in files
            if file.is_module
        )
        compiled: dict[str, str] = {}
        yield from with_bytecode(self.pyc, (file.entry for file in files), modules, compiled, {})
        yield Entry(f"{PREFIX}/{_META}", 0o755, EntryKind.FOLDER)
        if self.has_history:
            yield Entry(f"{PREFIX}/{_META}/history", 0o644, data=InMemory(b""))
        for package in self.packages:
            text = _conda_meta(package, self._meta(package), compiled)
            yield Entry(f"{PREFIX}/{_META}/{package.file_stem}.json", 0o644, data=InMemory(text))

    def _files(self) -> Mapping[str, _File]:
        """Path below the prefix -> its file, sorted, without bytecode."""
        files: dict[str, _File] = {}
        for package in self.packages:
            for listed in self._meta(package)["paths_data"]["paths"]:
                path = listed.get("original_path") or listed["_path"]
                if is_bytecode(path):
                    continue
                digest = listed.get("sha256_in_prefix")
                if "prefix_placeholder" not in listed:
                    digest = digest or listed.get("sha256")
                file = _file_of(package, path, self.folder / listed["_path"], digest)
                existing = files.setdefault(path, file)
                if existing.owned.digest != file.owned.digest:
                    raise FileConflict(f"{PREFIX}/{path}", existing.owned.owner, file.owned.owner)
        return dict(sorted(files.items()))

    def _meta(self, package: CondaPackage) -> Any:
        return json.loads((self.folder / _META / f"{package.file_stem}.json").read_text(encoding="utf-8"))


class _File(Struct, frozen=True):
    entry: Entry
    owned: OwnedPath
    real: Path
    is_module: bool


def conda_sources(
    packages: Sequence[CondaPackage], folder: Path, series: str | None, pyc: PycCompiler | None, most: int
) -> tuple[CondaSource, ...]:
    """The packages in at most `most` layers, see `partition`."""
    by_name = {package.name: package for package in packages}
    groups = partition([(package.name, package.size_bytes) for package in packages], most)
    sources = []
    for number, names in enumerate(groups):
        of_layer = tuple(by_name[name] for name in sorted(names))
        sources.append(CondaSource(of_layer, folder, series, pyc, has_history=number == 0))
    return tuple(sources)


def _file_of(package: CondaPackage, path: str, real: Path, digest: str | None) -> _File:
    image_path, owner = f"{PREFIX}/{path}", f"conda's {package.name} {package.version}"
    if real.is_symlink():
        target = str(real.readlink())
        entry = Entry(image_path, 0o777, EntryKind.SYMLINK, target=target)
        return _File(entry, OwnedPath(image_path, owner, f"{LINK}{target}"), real, is_module=False)
    status = real.stat()
    data = OnDisk(real, status.st_size)
    entry = Entry(image_path, 0o755 if status.st_mode & 0o100 else 0o644, data=data)
    is_module = path.endswith(".py") and bool(_LIBRARY.match(path))
    return _File(entry, OwnedPath(image_path, owner, digest or sha256_of(data)), real, is_module)


def _conda_meta(package: CondaPackage, meta: dict[str, Any], compiled: Mapping[str, str]) -> bytes:
    """conda-meta's file of a package, without rattler's version and without any path of this machine."""
    paths: list[dict[str, Any]] = []
    bytecode: set[str] = set()
    for listed in meta["paths_data"]["paths"]:
        path = listed.get("original_path") or listed["_path"]
        if is_bytecode(path):
            continue
        paths.append({"_path": path, **{name: listed[name] for name in _FILE_FIELDS if name in listed}})
        if f"{PREFIX}/{path}" in compiled:
            bytecode.add(compiled[f"{PREFIX}/{path}"])
    paths += [{"_path": path.removeprefix(f"{PREFIX}/"), "path_type": "pyc_file"} for path in bytecode]
    paths.sort(key=lambda each: str(each["_path"]))
    document: dict[str, Any] = {
        **{name: meta[name] for name in _META_FIELDS if name in meta},
        "channel": package.url.rsplit("/", 2)[0],
        "files": [each["_path"] for each in paths],
        "paths_data": {"paths": paths, "paths_version": meta["paths_data"].get("paths_version", 1)},
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
