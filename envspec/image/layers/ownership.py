"""Finds paths that two packages would write differently."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from envspec.image.layers.gzip import Archives, read_data
from envspec.image.layers.types import Data, Entry, EntryKind, LayerSource, ZipMember
from envspec.io.archives import FileConflict, PathOwners
from envspec.io.cache import JsonCache

#: Prefix of a symlink's digest.
LINK: Final = "-> "


@dataclass(frozen=True, slots=True)
class OwnedEntries:
    """What one package writes. owner: for messages, such as `numpy 2.2.6`."""

    owner: str
    entries: tuple[Entry, ...]


def entry_owners(packages: Iterable[OwnedEntries]) -> dict[str, str]:
    """Path -> its first owner, without folders.

    Equal content is no conflict: several of NVIDIA's wheels share an empty `nvidia/__init__.py`.

    Raises:
        FileConflict: names the path and both owners.
    """
    paths = PathOwners(is_same_entry)
    for package in packages:
        for entry in package.entries:
            if entry.kind is not EntryKind.FOLDER:
                paths.add(entry.path, package.owner, entry)
    _check_folders(paths)
    return paths.owners


def _check_folders(paths: PathOwners[Any]) -> None:
    """Refuse a file in the place of another owner's folder."""
    below: dict[str, str] = {}
    for path in paths.first:
        folder = path.rpartition("/")[0]
        while folder and folder not in below:
            below[folder] = path
            folder = folder.rpartition("/")[0]
    for path in sorted(below.keys() & paths.first.keys()):
        raise FileConflict(path, paths.first[path][0], paths.first[below[path]][0])


def is_same_entry(one: Entry, other: Entry) -> bool:
    """Compares the bytes only if sizes and checksums are equal."""
    if replace(one, path="", data=None) != replace(other, path="", data=None):
        return False
    if one.data is None or other.data is None or one.size_bytes != other.size_bytes:
        return one.data is other.data
    if isinstance(one.data, ZipMember) and isinstance(other.data, ZipMember) and one.data.crc32 != other.data.crc32:
        return False
    return sha256_of(one.data) == sha256_of(other.data)


def sha256_of(data: Data) -> str:
    digest = hashlib.sha256()
    with Archives() as archives:
        for chunk in read_data(data, "a file", archives):
            digest.update(chunk)
    return digest.hexdigest()


class OwnedPath(NamedTuple):
    """A path of the image and its owner. digest: of the content or its archive; of a symlink, LINK and its target."""

    path: str
    owner: str
    digest: str


class OwningSource(LayerSource, Protocol):
    """A source that lists its paths without compiling bytecode. Equal keys mean equal lists."""

    def owned(self) -> tuple[OwnedPath, ...]: ...


class OwnedPathCache:
    """The lists of OwningSources by key: finds conflicts without reading, or even fetching, all packages again."""

    def __init__(self, cache: Path) -> None:
        self._cache = JsonCache(cache / "image-owned")

    def has(self, source: OwningSource) -> bool:
        return self._read(source) is not None

    def get(self, source: OwningSource) -> tuple[OwnedPath, ...]:
        """The cached list, or `source.owned()`, which is then cached.

        Raises:
            As `OwningSource.owned`. CacheError: the cache can't be written.
        """
        found = self._read(source)
        if found is None:
            found = source.owned()
            self._cache.write(source.key, found)
        return found

    def owners(self, sources: Iterable[OwningSource]) -> dict[str, str]:
        """Path -> its first owner.

        Raises:
            FileConflict: two packages write one path, with different digests, or a file behind another's file or link.
            As `get`.
        """
        paths = PathOwners[str]()
        for source in sources:
            for each in self.get(source):
                paths.add(each.path, each.owner, each.digest)
        _check_folders(paths)
        return paths.owners

    def _read(self, source: OwningSource) -> tuple[OwnedPath, ...] | None:
        return self._cache.read_as(source.key, lambda rows: tuple(map(OwnedPath._make, rows)))
