"""No path has two owners."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Protocol

from envspec.image.layers.types import Data, Entry, InMemory, Kind, OnDisk, Source, ZipMember
from envspec.image.layers.wheel_zip import unpacked
from envspec.io.archives import FileConflict, PathOwners, parents_of
from envspec.io.cache import JsonCache


@dataclass(frozen=True, slots=True)
class Listing:
    """What one owner puts into the image. owner: as messages say it: `numpy 2.2.6`."""

    owner: str
    entries: tuple[Entry, ...]


def conflicts(listings: Iterable[Listing]) -> dict[str, str]:
    """Path -> its first owner, of all that is no folder.

    Several of NVIDIA's wheels share an empty `nvidia/__init__.py`: equal bytes are no conflict.

    Raises:
        FileConflict: names the path and both owners.
    """
    paths = PathOwners(are_same)
    for listing in listings:
        for entry in listing.entries:
            if entry.kind is not Kind.FOLDER:
                paths.add(entry.path, listing.owner, entry)
    below: dict[str, str] = {}
    for path in paths.first:
        for folder in parents_of(path):
            if below.setdefault(folder, path) != path:
                break
    # A file in the place of another owner's folder.
    for path in sorted(below.keys() & paths.first.keys()):
        raise FileConflict(path, paths.first[path][0], paths.first[below[path]][0])
    return paths.owners


def are_same(one: Entry, other: Entry) -> bool:
    """Whether two entries put the same there; their bytes are compared only where sizes and checksums are equal."""
    if (one.kind, one.mode, one.target, one.uid, one.gid) != (
        other.kind,
        other.mode,
        other.target,
        other.uid,
        other.gid,
    ):
        return False
    if one.data is None or other.data is None or _size(one.data) != _size(other.data):
        return one.data is other.data
    if isinstance(one.data, ZipMember) and isinstance(other.data, ZipMember) and one.data.crc32 != other.data.crc32:
        return False
    return _sha256(one.data) == _sha256(other.data)


def _size(data: Data) -> int:
    return len(data.content) if isinstance(data, InMemory) else data.size_bytes


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
        yield from unpacked(data)


#: What the digest of a link begins with.
LINK: Final = "-> "


@dataclass(frozen=True, slots=True)
class Owned:
    """A path of the image, and whose it is. digest: of its bytes, or LINK and where it leads; equal where they are."""

    path: str
    owner: str
    digest: str


class Owner(Source, Protocol):
    """A source that tells what is in it without bytecode being made. The same key always tells the same."""

    def owned(self) -> tuple[Owned, ...]: ...


class OwnedLists:
    """The lists of one cache, by the keys of their sources.

    Those of wheels are `wheel_lists`: paths alone, since a wheel's directory tells them and no hash.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = JsonCache(cache / "image-owned")

    def known(self, source: Owner) -> bool:
        """Whether the list is there."""
        return self._read(source) is not None

    def of(self, source: Owner) -> tuple[Owned, ...]:
        """What a source owns: as it was told before, else asked now.

        Raises:
            As `Owner.owned`. CacheError: the cache can't be written.
        """
        found = self._read(source)
        if found is None:
            found = source.owned()
            self._cache.write(source.key, [astuple(each) for each in found])
        return found

    def _read(self, source: Owner) -> tuple[Owned, ...] | None:
        return self._cache.read_as(source.key, lambda rows: tuple(Owned(*row) for row in rows))


def owners_of(lists: Iterable[Iterable[Owned]]) -> dict[str, str]:
    """Path -> its first owner.

    Raises:
        FileConflict: two packages have something different at one path.
    """
    paths = PathOwners[str]()
    for each in lists:
        for owned in each:
            paths.add(owned.path, owned.owner, owned.digest)
    if links := {path for path, (_, digest) in paths.first.items() if digest.startswith(LINK)}:
        paths.check_links(links)
    return paths.owners
