"""Finds paths that two packages would write differently."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from envspec.errors import NoSolution
from envspec.image.layers.tar import size_of
from envspec.image.layers.types import Data, Entry, EntryKind, InMemory, LayerSource, OnDisk, ZipMember
from envspec.image.layers.wheel_zip import unpack_member
from envspec.io.archives import parents_of
from envspec.io.cache import JsonCache

#: Prefix of a symlink's digest.
LINK: Final = "-> "


class FileConflict(NoSolution):
    """Two packages of the lock write different files to one path."""

    def __init__(self, path: str, one: str, other: str) -> None:
        super().__init__(
            f"{path} belongs to {one} and to {other}, with different content",
            hint="remove one of them, or select another version: they can't be installed together",
        )


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
    first: dict[str, tuple[str, Entry]] = {}
    for package in packages:
        for entry in package.entries:
            if entry.kind is EntryKind.FOLDER:
                continue
            owner, existing = first.setdefault(entry.path, (package.owner, entry))
            if existing is not entry and not is_same_entry(existing, entry):
                raise FileConflict(entry.path, owner, package.owner)
    folders: set[str] = set()
    for path in first:
        for folder in parents_of(path):
            if folder in folders:
                break
            folders.add(folder)
    for path in sorted(folders.intersection(first)):
        below = next(other for other in first if other.startswith(f"{path}/"))
        raise FileConflict(path, first[path][0], first[below][0])
    return {path: owner for path, (owner, _) in first.items()}


def is_same_entry(one: Entry, other: Entry) -> bool:
    """Compares the bytes only if sizes and checksums are equal."""
    if replace(one, path="", data=None) != replace(other, path="", data=None):
        return False
    if one.data is None or other.data is None or size_of(one) != size_of(other):
        return one.data is other.data
    if isinstance(one.data, ZipMember) and isinstance(other.data, ZipMember) and one.data.crc32 != other.data.crc32:
        return False
    return _sha256(one.data) == _sha256(other.data)


def _sha256(data: Data) -> bytes:
    digest = hashlib.sha256()
    for chunk in _chunks(data):
        digest.update(chunk)
    return digest.digest()


def _chunks(data: Data) -> Iterator[bytes]:
    if isinstance(data, InMemory):
        yield data.content
    elif isinstance(data, OnDisk):
        with data.path.open("rb") as file:
            while chunk := file.read(1 << 20):
                yield chunk
    else:
        yield from unpack_member(data)


@dataclass(frozen=True, slots=True)
class OwnedPath:
    """A path of the image and its owner. digest: of the content; of a symlink, LINK and its target."""

    path: str
    owner: str
    digest: str


class OwningSource(LayerSource, Protocol):
    """A source that lists its paths without compiling bytecode. Equal keys mean equal lists."""

    def owned(self) -> tuple[OwnedPath, ...]: ...


class OwnedPathCache:
    """The lists of OwningSources by key. `sources.wheel.WheelPathCache` stores those of wheels."""

    def __init__(self, cache: Path) -> None:
        self._notes = JsonCache(cache / "image-owned")

    def has(self, source: OwningSource) -> bool:
        return self._read(source) is not None

    def get(self, source: OwningSource) -> tuple[OwnedPath, ...]:
        """The cached list, or `source.owned()`, which is then cached.

        Raises:
            As `OwningSource.owned`. CannotKeep: the cache can't be written.
        """
        found = self._read(source)
        if found is None:
            found = source.owned()
            self._notes.write(source.key, [astuple(each) for each in found])
        return found

    def _read(self, source: OwningSource) -> tuple[OwnedPath, ...] | None:
        with suppress(ValueError, TypeError):
            return tuple(OwnedPath(path, owner, digest) for path, owner, digest in self._notes.read(source.key))
        return None


def path_owners(lists: Iterable[Iterable[OwnedPath]]) -> dict[str, str]:
    """Path -> its first owner.

    Raises:
        FileConflict: two packages write different content to one path, or a file behind another's symlink.
    """
    first: dict[str, OwnedPath] = {}
    for each in lists:
        for owned in each:
            existing = first.setdefault(owned.path, owned)
            if existing.digest != owned.digest:
                raise FileConflict(owned.path, existing.owner, owned.owner)
    links = {path for path, owned in first.items() if owned.digest.startswith(LINK)}
    if links:
        for path, owned in first.items():
            if behind := next((folder for folder in parents_of(path) if folder in links), None):
                raise FileConflict(behind, first[behind].owner, owned.owner)
    return {path: owned.owner for path, owned in first.items()}
