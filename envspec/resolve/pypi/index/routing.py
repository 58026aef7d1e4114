"""The rules for one target's packages: the index of each name, the newest upload time, corrections of metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct, field
from packaging.tags import Tag
from packaging.version import Version

from envspec.credentials import has_secret_query, without_credentials
from envspec.errors import NetworkError
from envspec.facts.extensions import Extensions
from envspec.models import DEFAULT_INDEX, DIRECT_URL, BuiltWheel, NamedIndex, Unbuilt, WheelFile
from envspec.origins import PYTORCH, PYTORCH_FILES, Bounds
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.metadata import Overrides
from envspec.resolve.types import ProvidedPackage, Release


class NotListed(Exception):
    """The index does not have the project (404)."""


class PackageIndexError(NetworkError, code="bad-index"):
    """An index sent something unusable."""


class PackageIndex(Struct, frozen=True):
    """A package index. url: its simple pages, with a closing slash; may contain credentials, which are never written.

    dated: whether its files have upload times, which `as_of` needs.
    stands_for: the URL of the index that this one mirrors; locks name files there.
    files: further origins that its pages and files may be on.
    is_page: whether its url, as it is, is the only page, for all names.
    """

    name: str
    url: str
    dated: bool = True
    stands_for: str | None = None
    files: tuple[str, ...] = ()
    is_page: bool = False

    @property
    def key(self) -> str:
        """Identifies the index in the cache."""
        return hashlib.sha256(" ".join((self.url, *self.files)).encode()).hexdigest()[:16]

    def within(self, sha256: str | None = None) -> Bounds | None:
        """The servers that may answer for this index; None: any. sha256: of the whole answer, if it is checked.

        A mirror of the default index may redirect anywhere: the default index serves every name without an index of its
        own. So may the server of a file that the spec names by its URL. A mirror of PyTorch's may keep its files
        elsewhere than its pages.
        """
        if self.name in (DEFAULT_INDEX, DIRECT_URL) or (self.stands_for and sha256):
            return None
        more = self.files
        if self.name.startswith(PYTORCH):
            more = PYTORCH_FILES
            allow = "set ENVSPEC_PYTORCH_INDEX to the address that it redirects to, if {} may replace PyTorch's index"
        else:
            allow = f'add `files = ["{{}}"]` to the [[pip.index]] of {self.name}, if its packages may come from there'
        return Bounds(f"index {self.name}", (self.url, *more), allow, hashed=bool(sha256))

    def mirror_hint(self, environ: Mapping[str, str]) -> str:
        """What may help if the index can't be reached: the variable that names a mirror; empty for a spec's indexes."""
        if self.name == DEFAULT_INDEX:
            variable, example = "ENVSPEC_DEFAULT_INDEX", "https://mirror.example/simple/"
        elif self.name == "pytorch" or self.name.startswith(PYTORCH):
            variable, example = "ENVSPEC_PYTORCH_INDEX", "https://mirror.example/whl/{variant}/"
        else:
            return ""
        if environ.get(variable):
            return f"check {variable}, which names this address (`envspec config` shows where it is set)"
        return f"if there is a mirror in this network, set {variable}, such as {example}"

    def public(self, url: str) -> str:
        """A file's URL as a lock may contain it."""
        shown = without_credentials(url)
        if has_secret_query(shown):
            # Signed for one request: useless later, and a credential until then.
            shown = shown.partition("?")[0]
        if self.stands_for is None:
            return shown
        # A mirror may keep its files elsewhere than beside its pages; the original has them below its URL.
        if shown.startswith(self.shown_url):
            return self.stands_for + shown.removeprefix(self.shown_url)
        return self.stands_for + shown.rpartition("/")[2]

    @property
    def shown_url(self) -> str:
        """The URL without credentials."""
        return without_credentials(self.url)


class Route(Struct, frozen=True):
    """Names that come from one index alone. pattern: a normalised name, `*` matches anything."""

    pattern: str
    index: PackageIndex


def routes_of(indexes: Iterable[NamedIndex]) -> tuple[Route, ...]:
    """The routes to the spec's own indexes: exact names before patterns, each in the spec's order."""
    routes: list[Route] = []
    for index in indexes:
        is_page = index.format == "links"
        url = index.url.rstrip("/") + ("" if is_page else "/")
        own = PackageIndex(index.name, url, dated=not index.undated, files=index.files, is_page=is_page)
        for pattern in index.packages:
            routes.append(Route(pattern, own))
    return tuple(sorted(routes, key=lambda route: "*" in route.pattern))


#: In a requirement of a correction: the version of the release whose metadata lacks it, without its label.
OWN_VERSION: Final = "{version}"


class Correction(Struct, frozen=True):
    """Requirements that are missing in a release's metadata.

    applies: to which versions.
    requires: may contain OWN_VERSION.
    reason: for messages.
    """

    applies: Callable[[Version], bool]
    requires: tuple[str, ...]
    reason: str


class BuiltSource(Struct, frozen=True):
    """What the spec names to be built. file: as the lock records it. built: its wheel.

    unbuilt: of an sdist that could not be built, with the version that it states; there is no wheel then.
    """

    file: WheelFile
    built: BuiltWheel | None
    unbuilt: Unbuilt | None = None
    version: str = ""


class Rules(Struct, frozen=True):
    """What the spec and the facts set for one target's packages.

    cutoffs: names with an `as_of` of their own.
    direct: names that the spec gives as a wheel's URL, with that wheel, and names of sources, with the wheels built
        from them.
    sdists: which ones are candidates.
    provided: names that conda installs, and those that are there before; they come from no index.
    overrides: versions of names, in place of those that packages require.
    built: the METADATA of wheels that were built of releases that are sdists alone; it counts instead of what the sdist
        states.
    extensions: which wheels of CUDA extensions fit the target's torch.
    unfit: of members of the torch family, the releases that surely require another torch than the spec and its build
        allow. A resolver would find that out one by one.
    environment: for markers.
    """

    as_of: datetime
    tags: tuple[Tag, ...]
    default: PackageIndex
    routes: tuple[Route, ...] = ()
    cutoffs: Mapping[str, datetime] = field(default_factory=dict)
    direct: Mapping[str, ListedFile] = field(default_factory=dict)
    corrections: Mapping[str, tuple[Correction, ...]] = field(default_factory=dict)
    sdists: Sdists = Sdists.WITHOUT_WHEEL
    provided: Mapping[str, ProvidedPackage] = field(default_factory=dict)
    sources: Mapping[str, BuiltSource] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=dict)
    built: Mapping[Release, bytes] = field(default_factory=dict)
    extensions: Extensions = field(default_factory=Extensions)
    unfit: Mapping[str, Callable[[Version], bool]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def index_of(self, name: str) -> PackageIndex:
        for route in self.routes:
            if fnmatchcase(name, route.pattern):
                return route.index
        return self.default

    def is_of_default(self, name: str) -> bool:
        return self.index_of(name) is self.default

    def cutoff_of(self, name: str) -> datetime:
        return self.cutoffs.get(name, self.as_of)
