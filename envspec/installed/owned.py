"""Which file belongs to which package, and by which hash it is known."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from envspec.installed.bytecode import is_bytecode
from envspec.installed.conda_meta import CondaRecord
from envspec.installed.distributions import Distribution
from envspec.installed.hashing import STRONG, Wanted, from_record
from envspec.installed.place import Place
from envspec.installed.record import installed_place
from envspec.installed.values import Drift, Finding


@dataclass
class Owned:
    """Files of an environment by their paths from its folder on.

    names: whose a file is, the first where there are several. unhashed: listed, and known by nothing but the name.
    own_word: files with a hash that no digest in a lock covers.
    """

    names: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, dict[tuple[str, str], None]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    unhashed: dict[str, str] = field(default_factory=dict)
    own_word: int = 0

    def wanted(self) -> Iterator[Wanted]:
        for path, hashes in self.hashes.items():
            yield Wanted(path, tuple(hashes), self.sizes.get(path, 0))

    def take(self, path: str, owner: str, algorithm: str = "", digest: str = "", size_bytes: int = 0) -> None:
        self.names.setdefault(path, owner)
        # Bytecode is held against its source: installers compile over what a wheel brings, and images go without.
        if algorithm in STRONG and from_record(digest) and not is_bytecode(path):
            self.hashes.setdefault(path, {})[algorithm, digest] = None
            self.sizes[path] = max(size_bytes, self.sizes.get(path, 0))

    def findings(self) -> Iterator[Finding]:
        """Files of which nothing but the name is known, whoever lists them."""
        for path, owner in self.unhashed.items():
            if path not in self.hashes:
                yield Finding(owner, Drift.UNHASHED, path)


def owned(found: Iterable[Distribution], conda: Iterable[CondaRecord], place: Place) -> Owned:
    """What wheels and conda packages list. Files outside of the environment are nobody's."""
    files = Owned()
    for record in conda:
        for path in record.paths:
            files.take(path, record.name)
        for each in record.files:
            for algorithm, digest in each.hashes:
                files.take(each.path, record.name, algorithm, digest, each.size_bytes)
    condas = frozenset(files.names)
    for one in found:
        _take_rows(files, one, place, condas)
    return files


def is_condas(one: Distribution, place: Place, paths: Iterable[str] | frozenset[str]) -> bool:
    """Whether a distribution was put there by conda: then its list of files is conda's."""
    inside = f"{relative(str(one.site), place)}/{one.folder}"
    return inside in paths or f"{inside}/METADATA" in paths or f"{inside}/RECORD" in paths


def _take_rows(files: Owned, one: Distribution, place: Place, condas: frozenset[str]) -> None:
    if one.rows is None or is_condas(one, place, condas):
        return
    root, depth = f"{place.prefix}{os.sep}", depth_of(one, place)
    for row in one.rows:
        path = os.path.normpath(os.path.join(one.site, row.path))  # noqa: PTH118 (40,000 times)
        if not path.startswith(root):
            continue
        inside = path[len(root) :].replace(os.sep, "/")
        files.take(inside, one.name, row.algorithm, row.digest, row.size_bytes or 0)
        anchored = installed_place(row.path, depth) is not None
        if inside in files.hashes:
            files.own_word += not anchored
        elif (anchored or row.algorithm) and not is_bytecode(inside):
            files.unhashed[inside] = one.name


def depth_of(one: Distribution, place: Place) -> int:
    """How many folders a distribution's site-packages lies below the environment."""
    return len(one.site.relative_to(place.prefix).parts)


def relative(path: str, place: Place) -> str:
    """A path from the environment's folder on, `/` between its parts."""
    return os.path.relpath(path, place.prefix).replace(os.sep, "/")


def unowned(paths: Sequence[str], files: Owned, place: Place) -> Iterator[Finding]:
    """Files of a site-packages folder that nobody lists."""
    start = len(str(place.prefix)) + 1
    for path in paths:
        inside = path[start:].replace(os.sep, "/")
        if inside not in files.names:
            yield Finding("", Drift.UNOWNED, inside)
