"""What a target takes of a project's page: the files that it can load, up to a moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import lru_cache
from typing import Final

from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envspec.names import LONGEST
from envspec.resolve.pypi.index.page import SDIST_SUFFIXES, ListedFile, Listing

#: How long after its upload an index may still fill in a file's upload time. The longest seen is 16 days
#: (nvidia-cudnn-cu12 9.28.0.42, uploaded 2026-11-04, without a time on 2026-11-20); this is more than five times that.
#:
#: So a file without a time is one of two: it came in this long before the page was asked for, or it is from before its
#: index began to tell times and will never have one. Either way it never counts for an `as_of` that lies further back,
#: and what is made of the page is good for ever. For a later `as_of` it may come to count, and then nothing is kept.
#: An index most of whose files will never have times is thus slow for young moments only, and no longer once they age.
#: Its place among the versions does not tell the two apart: of 13 real pages with late times, two had them on releases
#: older than the newest dated one (httpcore2 2.16.1 beside 2.16.2, grpcio-reflection 1.78.2 beside 1.85.1). Whether a
#: file is of a pre-release or yanked makes no difference either: it can be what is asked for by its version.
FILLED_IN_WITHIN: Final = timedelta(days=90)


class TagRanks:
    """Which wheels a target loads, and how much it prefers each. The lower the rank, the better."""

    def __init__(self, tags: tuple[Tag, ...]) -> None:
        self._ranks = {(tag.interpreter, tag.abi, tag.platform): rank for rank, tag in reversed(list(enumerate(tags)))}
        self._parts = [set(parts) for parts in zip(*self._ranks, strict=True)] or [set()] * 3
        # A page lists hundreds of releases with the same few sets of tags: each set is looked at once.
        self._known: dict[str, int | None] = {}

    def rank(self, filename: str) -> int | None:
        """None where the target can't load the wheel, or the file is none."""
        if not filename.endswith(".whl"):
            return None
        return self._rank_of(filename[len(filename.rsplit("-", 3)[0]) :])

    def sort_out(self, names: Sequence[str]) -> tuple[list[int], list[int], set[str]]:
        """The numbers of the wheels that the target loads, those of the sdists, and all other files without their tags.

        Pages of one stack list 70,000 files: this is the one loop over all of them.
        """
        loadable: list[int] = []
        sdists: list[int] = []
        others: set[str] = set()
        known = self._known
        for number, name in enumerate(names):
            if not name.endswith(".whl"):
                if name.endswith(SDIST_SUFFIXES):
                    sdists.append(number)
                others.add(name)
                continue
            stem = name.rsplit("-", 3)[0]
            tail = name[len(stem) :]
            rank = known[tail] if tail in known else self._rank_of(tail)
            if rank is None:
                others.add(stem)
            else:
                loadable.append(number)
        return loadable, sdists, others

    def _rank_of(self, tail: str) -> int | None:
        if tail not in self._known:
            self._known[tail] = self._best(tail)
        return self._known[tail]

    def _best(self, tail: str) -> int | None:
        parts = tail.removesuffix(".whl").split("-")[1:]
        if len(parts) != 3:
            return None
        # Of a name of 230 bytes, all combinations of its parts would be 50,000: of those that count, there are few.
        interpreters, abis, platforms = (
            known.intersection(part.split(".")) for known, part in zip(self._parts, parts, strict=True)
        )
        ranks = (self._ranks.get((i, a, p)) for i in interpreters for a in abis for p in platforms)
        return min((rank for rank in ranks if rank is not None), default=None)


def version_of(filename: str) -> Version | None:
    """The version in a wheel's or an sdist's file name; None where there is none that PEP 440 knows."""
    return _version(version_text(filename)) if len(filename) <= LONGEST else None


def version_text(filename: str) -> str:
    """The version as a file name writes it, a wheel's with or without its tags; empty where there is none."""
    for end in SDIST_SUFFIXES:
        if filename.endswith(end):
            return filename[: -len(end)].rpartition("-")[2]
    return filename.split("-", 2)[1] if "-" in filename else ""


@lru_cache(maxsize=65536)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


@dataclass(frozen=True, slots=True)
class Selection:
    """What one target may see of a project.

    files: by file name, in the page's order. unloadable: the newest release that `as_of` allows and of which the target
    can load no file, where it is newer than all that it can load. undated: the page gives no upload times for what the
    target can load; then nothing is selected. late: the releases, in order, with files that may yet get an upload time
    which `as_of` allows.
    """

    files: Mapping[str, ListedFile]
    unloadable: str | None = None
    undated: bool = False
    late: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether the same is selected of every later page; else it is good for the run that asked for the page."""
        return not (self.undated or self.late)


class Sdists(Enum):
    """Which sdists are candidates.

    ALL: the project may be built. WITHOUT_WHEEL: those of releases without a wheel for the target, so that no release
    is passed over for want of a wheel without anybody noticing.
    """

    ALL = "all"
    WITHOUT_WHEEL = "without wheel"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Taste:
    """What a target takes of a page.

    cut: nothing that was uploaded later; None where the index has no upload times. asked: when the page was asked for.
    """

    ranks: TagRanks
    cut: datetime | None
    asked: datetime
    sdists: Sdists = Sdists.WITHOUT_WHEEL

    def sees(self, file: ListedFile) -> bool:
        """Whether the file is old enough."""
        return self.cut is None or (file.uploaded is not None and not_after(file.uploaded, self.cut))

    def awaits(self, file: ListedFile) -> bool:
        """Whether the file has no upload time, and may yet get one that is old enough."""
        return file.uploaded is None and self.cut is not None and self.asked - self.cut <= FILLED_IN_WITHIN


def own(listing: Listing, project: str) -> Listing:
    """The files of one project alone: a folder that a web server shows under every name lists those of all.

    project: its normalised name.
    """
    # Nearly every page has one or two: its thousands of names need not be looked at one by one.
    foreign = {prefix for prefix in {name.split("-", 1)[0] for name in listing.names} if not _is(prefix, project)}
    if not foreign:
        return listing
    numbers = [number for number, name in enumerate(listing.names) if not _is_foreign(name, project, foreign)]
    return Listing(tuple([listing.names[number] for number in numbers]), lambda number: listing.row(numbers[number]))


def _is(name: str, project: str) -> bool:
    return canonicalize_name(name) == project


def _is_foreign(name: str, project: str, foreign: set[str]) -> bool:
    if name.endswith(".whl"):
        return name.split("-", 1)[0] in foreign
    # In the names of old sdists dashes may stand in the project's name, and in the version too.
    return not f"{canonicalize_name(name)}-".startswith(f"{project}-")


def select(listing: Listing, project: str, taste: Taste) -> Selection:
    """What a target may see of a project.

    project: its normalised name.

    Raises:
        BadPage: a row that counts can't be read.
    """
    wheels, sdists, others = taste.ranks.sort_out(listing.names)
    loadable = [listing.row(number) for number in wheels]
    if taste.sdists is not Sdists.NONE:
        covered = {version_text(file.filename) for file in loadable if taste.sees(file)}
        covering = _versions(covered) if taste.sdists is Sdists.WITHOUT_WHEEL else set()
        loadable += [
            listing.row(number) for number in sdists if _is_missing(listing.names[number], project, covered, covering)
        ]
    if taste.cut is not None and loadable and not any(file.uploaded for file in loadable):
        return Selection({}, undated=True)
    files = {file.filename: file for file in loadable if taste.sees(file)}
    unloadable, late = _unloadable(listing, files, others, taste)
    late |= _versions({version_text(file.filename) for file in loadable if taste.awaits(file)})
    return Selection(files, unloadable, late=tuple(str(version) for version in sorted(late)))


def _is_missing(filename: str, project: str, covered: set[str], covering: set[Version]) -> bool:
    """Whether an sdist is of a release of `project` that is not in `covering`. covered: their versions as texts."""
    text = version_text(filename)
    # Most releases have a wheel, whose file name has the same version in the same form.
    if covering and text in covered:
        return False
    version = _version(text)
    name = filename[: filename.rfind("-")] if "-" in filename else ""
    # `lib-1.0-1.tar.gz` is no release 1 of `lib-1.0`.
    return version is not None and version not in covering and canonicalize_name(name) == project


def newest_wheels(selection: Selection, ranks: TagRanks, count: int) -> list[ListedFile]:
    """The preferred wheel of each of the newest final releases."""
    best: dict[Version, tuple[int, ListedFile]] = {}
    for name, file in selection.files.items():
        version, rank = version_of(name), ranks.rank(name)
        if version is None or rank is None or version.is_prerelease or file.yanked is not None:
            continue
        if version not in best or rank < best[version][0]:
            best[version] = (rank, file)
    return [best[version][1] for version in sorted(best, reverse=True)[:count]]


def _unloadable(
    listing: Listing, files: Mapping[str, ListedFile], others: set[str], taste: Taste
) -> tuple[str | None, set[Version]]:
    """The newest release, old enough, that is newer than all `files`; and those newer still that may yet be it.

    others: the rest's names, some without tags.
    """
    known = _versions({version_text(name) for name in files})
    newest = max(known, default=None)
    floor = newest.major if newest is not None and not newest.epoch else 0
    texts = {version_text(name) for name in others}
    # Most of hundreds of old versions need no parsing: their first number says that they are older.
    newer = _versions({text for text in texts if not (head := text.partition(".")[0]).isdigit() or int(head) >= floor})
    late: set[Version] = set()
    candidates = {
        version for version in newer - known if not version.is_prerelease and (newest is None or version >= newest)
    }
    numbers: dict[Version, list[int]] = {version: [] for version in candidates}
    for number, name in enumerate(listing.names if candidates else ()):
        if (found := version_of(name)) in numbers:
            numbers[found].append(number)
    for version in sorted(candidates, reverse=True):
        for number in numbers[version]:
            file = listing.row(number)
            if taste.sees(file):
                return str(version), late - {version}
            if taste.awaits(file):
                late.add(version)
    return None, late


def _versions(texts: set[str]) -> set[Version]:
    return {version for text in texts if len(text) <= LONGEST and (version := _version(text)) is not None}


def not_after(uploaded: str, cut: datetime) -> bool:
    """Whether an upload time is not later than `cut`."""
    # Nearly all are written like this, and a page may have thousands: compare the text where it decides.
    if uploaded.endswith("Z") and len(uploaded) >= 20:
        bound = _text_of(cut)
        if uploaded[:19] != bound:
            return uploaded[:19] < bound
    return moment(uploaded) <= cut


@lru_cache(maxsize=256)
def _text_of(cut: datetime) -> str:
    return cut.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def moment(uploaded: str) -> datetime:
    """An index's upload time as a moment in UTC, the time zone where it gives none."""
    # Python 3.10 reads neither "Z", nor offsets without a colon, nor fractions of other than 3 or 6 digits.
    rest = uploaded[19:].rstrip("zZ")
    sign = max(rest.find("+"), rest.find("-"))
    fraction, offset = (rest[:sign], rest[sign:]) if sign >= 0 else (rest, "+0000")
    text = f"{uploaded[:19]}.{(fraction[1:] + '000000')[:6]}{offset[:3]}:{offset[-2:]}"
    return datetime.fromisoformat(text).astimezone(timezone.utc)
