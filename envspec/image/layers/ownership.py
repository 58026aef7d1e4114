"""Finds paths that two packages would write differently."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from envspec.image.layers.gzip import Archives, read_data
from envspec.image.layers.types import Data, LayerSource
from envspec.io.archives import FileConflict, PathOwners, parents_of
from envspec.io.cache import JsonCache

#: Prefix of a symlink's digest.
LINK: Final = "-> "


def sha256_of(data: Data) -> str:
    digest = hashlib.sha256()
    with Archives() as archives:
        for chunk in read_data(data, "a file", archives):
            digest.update(chunk)
    return digest.hexdigest()


class OwnedPath(NamedTuple):
    """A path of the image, without folders. owner: for messages, such as `numpy 2.2.6`.

    digest: of the content or its archive; of a symlink, LINK and its target.
    """

    path: str
    owner: str
    digest: str


def owners_of(owned: Iterable[OwnedPath]) -> dict[str, str]:
    """Path -> its first owner.

    Equal content is no conflict: several of NVIDIA's wheels share an empty `nvidia/__init__.py`.

    Raises:
        FileConflict: two packages write one path, with different digests, or a file in the place of another's folder.
    """
    paths = PathOwners[str]()
    for each in owned:
        paths.add(*each)
    above: dict[str, str] = {}
    for path in paths.first:
        for folder in parents_of(path):
            if folder in above:
                break
            above[folder] = path
    for path in sorted(above.keys() & paths.first.keys()):
        raise FileConflict(path, paths.first[path][0], paths.first[above[path]][0])
    return paths.owners


class OwningSource(LayerSource, Protocol):
    """A source that lists its paths without compiling bytecode. Equal keys mean equal lists."""

    def owned(self) -> tuple[OwnedPath, ...]: ...


class OwnedPathCache:
    """The lists of OwningSources by key: finds conflicts without reading, or even fetching, all packages again."""

    def __init__(self, cache: Path) -> None:
        # 3: digests of wheels' files have their SHA-256.
        self._cache = JsonCache(cache / "image-owned" / "3")

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
        """As `owners_of`, of all sources; raises as `get` too."""
        return owners_of(itertools.chain.from_iterable(map(self.get, sources)))

    def _read(self, source: OwningSource) -> tuple[OwnedPath, ...] | None:
        return self._cache.read_as(source.key, tuple[OwnedPath, ...])
