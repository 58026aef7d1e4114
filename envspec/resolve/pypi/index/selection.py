"""The files of a project's page that a target can load, up to a cutoff. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cached_property, lru_cache
from itertools import product
from typing import Final

import msgspec
from packaging.tags import Tag
from packaging.version import Version

from envspec.facts.tables import pep440
from envspec.names import LONGEST, normalised
from envspec.resolve.pypi.index.page import SDIST_SUFFIXES, ListedFile, PageListing

#: How long after its upload an index may still add a file's upload time. The longest known is 16 days
#: (nvidia-cudnn-cu12 9.28.0.42, uploaded 2026-11-04, without a time on 2026-11-20); this is more than five times that.
#:
#: So a file without a time was either uploaded at most this long before the page was fetched, or before its index began
#: to give times, and will never have one. Either way it never counts for an `as_of` further back, and what is made from
#: the page is valid for ever. For a later `as_of` it may come to count, and then nothing is cached: an index most of
#: whose files never get times is slow for recent cutoffs only, until they age. The position among the versions does not
#: tell the two apart: of 13 real pages with late times, two had them on releases older than the newest dated one
#: (httpcore2 2.16.1 beside 2.16.2, grpcio-reflection 1.78.2 beside 1.85.1). Pre-releases and yanked files make no
#: difference: a requirement may name their version.
FILLED_IN_WITHIN: Final = timedelta(days=90)


class TagRanks:
    """Which wheels a target can load, and its preference: the lower the rank, the better."""

    def __init__(self, tags: tuple[Tag, ...]) -> None:
        self._ranks: dict[tuple[str, str, str], int] = {}
        for rank, tag in enumerate(tags):
            self._ranks.setdefault((tag.interpreter, tag.abi, tag.platform), rank)
        self._parts = list(map(set, zip(*self._ranks, strict=True))) or [set()] * 3
        # A page lists hundreds of releases with the same few sets of tags: each set is ranked once.
        self._cache: dict[str, int | None] = {}

    def rank(self, filename: str) -> int | None:
        """None if the target cannot load the wheel, or the file is none."""
        if not filename.endswith(".whl"):
            return None
        return self._rank_of(filename[len(filename.rsplit("-", 3)[0]) + 1 :])

    def loadable(self, listing: PageListing) -> tuple[int, ...]:
        """The numbers of the wheels that the target can load."""
        found: list[int] = []
        for tail, numbers in listing.groups.tails.items():
            if self._rank_of(tail) is not None:
                found += numbers
        for number in listing.groups.others:
            if self.rank(listing.names[number]) is not None:
                found.append(number)
        return tuple(sorted(found))

    def _rank_of(self, tail: str) -> int | None:
        if tail not in self._cache:
            self._cache[tail] = self._best(tail)
        return self._cache[tail]

    def _best(self, tail: str) -> int | None:
        # Behind a build number, if there is one.
        parts = tail.removesuffix(".whl").split("-")[-3:]
        if len(parts) != 3:
            return None
        # A name of 230 bytes has up to 50,000 combinations of its parts; few of them count.
        interpreters, abis, platforms = (
            loadable.intersection(part.split(".")) for loadable, part in zip(self._parts, parts, strict=True)
        )
        known = self._ranks.keys() & product(interpreters, abis, platforms)
        return min(map(self._ranks.__getitem__, known), default=None)


def version_of(filename: str) -> Version | None:
    """The version in a wheel's or an sdist's file name; None if it is not PEP 440's."""
    if len(filename) > LONGEST:
        return None
    return pep440(version_text(filename))


def of_version(files: Iterable[ListedFile], version: Version) -> list[ListedFile]:
    return [file for file in files if version_of(file.filename) == version]


def releases_of(files: Iterable[ListedFile]) -> dict[Version, list[ListedFile]]:
    """The files of each release, in their order; none of those whose version is not PEP 440's."""
    found: dict[Version, list[ListedFile]] = {}
    # Releases have up to 100 files: a version is read once.
    of_text: dict[str, list[ListedFile]] = {}
    for file in files:
        if len(file.filename) > LONGEST:
            continue
        text = version_text(file.filename)
        listed = of_text.get(text)
        if listed is None:
            version = pep440(text)
            listed = [] if version is None else found.setdefault(version, [])
            of_text[text] = listed
        listed.append(file)
    return found


def version_text(filename: str) -> str:
    """The version as a file name writes it, a wheel's with or without its tags; empty if it has none."""
    if not filename.endswith(SDIST_SUFFIXES):
        return filename.partition("-")[2].partition("-")[0]
    end = ".zip" if filename.endswith(".zip") else ".tar.gz"
    return filename.removesuffix(end).rpartition("-")[2]


class Selection(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """What one target sees of a project.

    files: by file name, in the page's order.
    unloadable: the newest release up to the cutoff without a file that the target can load, if it is newer than all
        that it can load.
    undated: the page gives no upload times for loadable files; then nothing is selected.
    pending: the releases, in order, with files that may still get an upload time within the cutoff.
    """

    files: dict[str, ListedFile]
    unloadable: str | None = None
    undated: bool = False
    pending: tuple[str, ...] = ()

    @classmethod
    def decode(cls, stored: bytes) -> Selection | None:
        """What `encode` gave; None for anything else."""
        try:
            return _decoder().decode(stored)
        except (msgspec.DecodeError, ValueError):
            return None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def is_final(self) -> bool:
        """Whether every later page gives the same selection; else it is valid for the run that fetched the page."""
        return not (self.undated or self.pending)

    @cached_property
    def releases(self) -> Mapping[Version, Sequence[ListedFile]]:
        """See `releases_of`; the newest first."""
        found = releases_of(self.files.values())
        return {version: found[version] for version in sorted(found, reverse=True)}


@lru_cache(maxsize=1)
def _decoder() -> msgspec.json.Decoder[Selection]:
    return msgspec.json.Decoder(Selection)


class Sdists(Enum):
    """Which sdists are candidates.

    WITHOUT_WHEEL: those of releases without a wheel for the target, so that no release is skipped silently for lack of
    a wheel.
    """

    WITHOUT_WHEEL = "without wheel"
    NONE = "none"


class SelectionPolicy(msgspec.Struct, frozen=True):
    """Which of the files that a target can load it accepts.

    cutoff: None if the index has no upload times.
    fetched: when the page was requested.
    fits: of an extension, whose releases have several wheels with labels, the versions with a label that fits.
    """

    cutoff: datetime | None
    fetched: datetime
    sdists: Sdists = Sdists.WITHOUT_WHEEL
    fits: Callable[[Version], bool] | None = None

    def accepts(self, file: ListedFile) -> bool:
        """Whether the file is old enough."""
        return self.cutoff is None or (file.uploaded is not None and not_after(file.uploaded, self.cutoff))

    def is_fitting(self, filename: str) -> bool:
        if self.fits is None or "+" not in filename:
            return True
        version = version_of(filename)
        return version is None or self.fits(version)

    def release(self, filename: str) -> str:
        """The version in a file's name, without the label by which an extension's wheels differ."""
        return self.without_label(version_text(filename))

    def without_label(self, version: str) -> str:
        """A version's text, without such a label."""
        if self.fits is None:
            return version
        return version.partition("+")[0]

    def may_accept_later(self, file: ListedFile) -> bool:
        """Whether the file has no upload time, and may still get one that is old enough."""
        return file.uploaded is None and self.cutoff is not None and self.fetched - self.cutoff <= FILLED_IN_WITHIN


def own_files(listing: PageListing, project: str) -> PageListing:
    """The files of one project alone: a folder that a web server shows under every name lists those of all.

    project: its normalised name.
    """
    # Nearly every page has one or two: its thousands of names need not be normalised one by one.
    others = [listing.names[number] for number in listing.groups.others]
    prefixes = listing.groups.projects | {name.split("-", 1)[0] for name in others}
    foreign = {prefix for prefix in prefixes if normalised(prefix) != project}
    if not foreign:
        return listing

    def is_own(name: str) -> bool:
        prefix = name.split("-", 1)[0]
        if name.endswith(".whl") or prefix not in foreign:
            return prefix not in foreign
        # Old sdists may have dashes in the project's name, and in the version too.
        return f"{normalised(name)}-".startswith(f"{project}-")

    if foreign.isdisjoint(listing.groups.projects) and all(map(is_own, others)):
        return listing
    return listing.only([number for number, name in enumerate(listing.names) if is_own(name)])


def select(listing: PageListing, project: str, policy: SelectionPolicy, wheels: Sequence[int]) -> Selection:
    """What a target sees of a project; raises BadPage if a file that counts cannot be read.

    project: normalised.
    wheels: the numbers of those that it can load.
    """
    sdists, others = _other_files(listing, wheels)
    if policy.fits is not None:
        wheels = [number for number in wheels if policy.is_fitting(listing.names[number])]
    files: dict[str, ListedFile] = {}
    refused: list[ListedFile] = []

    accepted: set[str] = set()

    def read(numbers: Iterable[int]) -> None:
        for number in numbers:
            file = listing.file(number)
            if policy.accepts(file):
                files[file.filename] = file
                accepted.add(version_text(file.filename))
            else:
                refused.append(file)

    read(wheels)
    if policy.sdists is not Sdists.NONE:
        read(_missing(sdists, listing, project, accepted))
    if policy.cutoff is not None and refused and not files and not any(file.uploaded for file in refused):
        return Selection({}, undated=True)
    later: set[str] = set()
    for file in refused:
        if policy.may_accept_later(file):
            later.add(version_text(file.filename))
    unloadable, pending = _unloadable(listing, accepted, others, policy, project)
    # A release with a label is named with it alone.
    pending -= versions_of(set(map(policy.without_label, later)))
    pending |= versions_of(later)
    return Selection(files, unloadable, pending=tuple(map(str, sorted(pending))))


def _other_files(listing: PageListing, wheels: Sequence[int]) -> tuple[list[int], set[str]]:
    """The numbers of the sdists, and the names of odd files that are not loaded, without tags."""
    loaded = frozenset(wheels)
    sdists: list[int] = []
    names: set[str] = set()
    for number in listing.groups.others:
        name = listing.names[number]
        if name.endswith(SDIST_SUFFIXES):
            sdists.append(number)
        if name.endswith(".whl"):
            name = name.rsplit("-", 3)[0]
        if number not in loaded:
            names.add(name)
    return sdists, names


def _missing(sdists: Iterable[int], listing: PageListing, project: str, covered: set[str]) -> list[int]:
    """The sdists of releases of `project` that have no wheel. covered: the versions that have one, as texts."""
    covering = versions_of(covered)
    found: list[int] = []
    for number in sdists:
        name = listing.names[number]
        text = version_text(name)
        # Most releases have a wheel, whose file name has the same version in the same form.
        if text not in covered:
            version = pep440(text)
            if version is not None and version not in covering and _is_of(name, project):
                found.append(number)
    return found


def _is_of(filename: str, project: str) -> bool:
    """Whether a file has a project's name, if it is an sdist."""
    # `lib-1.0-1.tar.gz` is no release 1 of `lib-1.0`.
    return not filename.endswith(SDIST_SUFFIXES) or normalised(filename.rpartition("-")[0]) == project


def _unloadable(
    listing: PageListing, accepted: set[str], others: set[str], policy: SelectionPolicy, project: str
) -> tuple[str | None, set[Version]]:
    """The newest accepted release that is newer than all that the target can load; and still newer ones that may be
    accepted later.

    accepted: the versions that it can load, as they are written.
    others: names of other files than wheels, without tags.
    """
    texts = {*listing.groups.versions, *map(version_text, others)}
    selected = versions_of(set(map(policy.without_label, accepted)))
    candidates = _newest(set(map(policy.without_label, texts)), selected)
    if not candidates:
        return None, set()
    numbers = _numbers_of(candidates, listing, policy, project)
    pending: set[Version] = set()
    for version in sorted(candidates, reverse=True):
        for number in numbers[version]:
            file = listing.file(number)
            if policy.accepts(file):
                return str(version), pending - {version}
            if policy.may_accept_later(file):
                pending.add(version)
    return None, pending


def _numbers_of(
    versions: set[Version], listing: PageListing, policy: SelectionPolicy, project: str
) -> dict[Version, list[int]]:
    """The files of these releases of `project`, in the page's order. All at once: a page may have 100,000 releases."""
    found: dict[Version, list[int]] = {version: [] for version in versions}
    for text, numbers in listing.groups.versions.items():
        version = _version(policy.without_label(text))
        if version in found:
            found[version] += numbers
    for number in listing.groups.others:
        name = listing.names[number]
        version = _version(policy.release(name))
        if version in found and _is_of(name, project):
            found[version].append(number)
    for version, numbers in found.items():
        found[version] = sorted(number for number in numbers if len(listing.names[number]) <= LONGEST)
    return found


def _newest(texts: set[str], selected: set[Version]) -> set[Version]:
    """The final versions that are newer than all of `selected`."""
    newest = max(selected, default=None)
    floor = 0
    if newest is not None and not newest.epoch:
        floor = newest.major

    def may_be_newer(text: str) -> bool:
        # Most of hundreds of old versions need no parsing: their first number shows that they are older.
        first = text.partition(".")[0]
        return not first.isdigit() or int(first) >= floor

    found: set[Version] = set()
    for version in versions_of(set(filter(may_be_newer, texts))) - selected:
        if not version.is_prerelease and (newest is None or version >= newest):
            found.add(version)
    return found


def versions_of(texts: set[str]) -> set[Version]:
    # Of `1.0` and `1.0.0`, which are equal, the first one is kept: the lock may name it.
    return set(filter(None, map(_version, sorted(texts))))


def _version(text: str) -> Version | None:
    return pep440(text) if len(text) <= LONGEST else None


def not_after(uploaded: str, cutoff: datetime) -> bool:
    # Nearly all upload times have this form, and a page may have thousands: compare texts where they differ.
    if uploaded.endswith("Z") and len(uploaded) >= 20:
        bound = _text_of(cutoff)
        if uploaded[:19] != bound:
            return uploaded[:19] < bound
    return upload_time(uploaded) <= cutoff


@lru_cache(maxsize=256)
def _text_of(cutoff: datetime) -> str:
    return cutoff.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def upload_time(uploaded: str) -> datetime:
    """An index's upload time, in UTC unless it has another time zone."""
    # Python 3.10 reads neither "Z", nor offsets without a colon, nor fractions of other than 3 or 6 digits.
    rest = uploaded[19:].rstrip("zZ")
    sign = max(rest.find("+"), rest.find("-"))
    fraction, offset = rest, "+0000"
    if sign >= 0:
        fraction, offset = rest[:sign], rest[sign:]
    text = f"{uploaded[:19]}.{(fraction[1:] + '000000')[:6]}{offset[:3]}:{offset[-2:]}"
    return datetime.fromisoformat(text).astimezone(timezone.utc)
