"""What the spec and the facts say about one target's packages: where each name comes from, and up to when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase

from packaging.tags import Tag
from packaging.version import Version

from envspec.models import BuiltWheel, NamedIndex, WheelFile
from envspec.resolve.pypi.index.client import Index
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.types import Provider


@dataclass(frozen=True, slots=True)
class Route:
    """Names that come from one index and from nowhere else. pattern: a normalised name, `*` stands for anything."""

    pattern: str
    index: Index


def routes_of(indexes: Iterable[NamedIndex]) -> tuple[Route, ...]:
    """The routes to the spec's own indexes: whole names before patterns, each in the spec's order."""
    rows = [
        Route(pattern, Index(index.name, index.url.rstrip("/") + "/", dated=not index.undated, files=index.files))
        for index in indexes
        for pattern in index.packages
    ]
    return tuple(sorted(rows, key=lambda route: "*" in route.pattern))


@dataclass(frozen=True, slots=True)
class Correction:
    """Requirements that a release's metadata lacks. applies: to which versions."""

    applies: Callable[[Version], bool]
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What the spec names to be built. file: the lock's row of it. built: its wheel."""

    file: WheelFile
    built: BuiltWheel


@dataclass(frozen=True, slots=True)
class Rules:
    """What the spec and the facts say about one target's packages.

    cuts: names with an `as_of` of their own. direct: names that the spec gives as a wheel's URL, with that wheel, and
    those of sources, with the wheels that were built of them.
    sdists: names that may be built from source. others: which sdists of all other names are candidates.
    provided: names that conda installs; no index gives them.
    """

    as_of: datetime
    tags: tuple[Tag, ...]
    default: Index
    routes: tuple[Route, ...] = ()
    cuts: Mapping[str, datetime] = field(default_factory=dict)
    direct: Mapping[str, ListedFile] = field(default_factory=dict)
    corrections: Mapping[str, tuple[Correction, ...]] = field(default_factory=dict)
    sdists: frozenset[str] = frozenset()
    others: Sdists = Sdists.WITHOUT_WHEEL
    provided: Mapping[str, Provider] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)

    def index_of(self, name: str) -> Index:
        for route in self.routes:
            if fnmatchcase(name, route.pattern):
                return route.index
        return self.default

    def sdists_of(self, name: str) -> Sdists:
        return Sdists.ALL if name in self.sdists else self.others

    def cut_of(self, name: str) -> datetime:
        return self.cuts.get(name, self.as_of)
