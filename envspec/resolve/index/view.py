"""What one target may see of the indexes: routed by name, cut at `as_of`, loadable, with metadata corrected.

The engines see nothing else, so nothing that this machine's pip or uv is told can reach a lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envspec.errors import EnvspecError, NetworkError
from envspec.model import DEFAULT_INDEX
from envspec.resolve.index import sdist
from envspec.resolve.index.page import BadPage, ListedFile, Listing
from envspec.resolve.index.stub import stub_wheel
from envspec.resolve.index.upstream import Index, IndexFault, NotListed, Upstream, unreadable

#: How many releases an engine is expected to try: torchvision's down to one that fits a torch of a year ago.
_WALKED: Final = 12

SDIST_SUFFIXES: Final = (".tar.gz", ".zip")


class Bodies(Enum):
    """What an engine gets that fetches a file: pip fetches each wheel that it chose, and resolves without."""

    WHOLE = "whole"
    STUB = "stub"


@dataclass(frozen=True, slots=True)
class Route:
    """Names that come from one index and from nowhere else. pattern: a normalised name, `*` stands for anything."""

    pattern: str
    index: Index


@dataclass(frozen=True, slots=True)
class Correction:
    """Requirements that a release's metadata lacks. applies: to which versions."""

    applies: Callable[[Version], bool]
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the spec and the facts say about one target's packages.

    cuts: names with an `as_of` of their own. direct: names that the spec gives as a wheel's URL, with that wheel.
    bounds: names of which only some versions may be seen. sdists: names that may be built from source.
    """

    as_of: datetime
    tags: tuple[Tag, ...]
    default: Index
    routes: tuple[Route, ...] = ()
    cuts: Mapping[str, datetime] = field(default_factory=dict)
    direct: Mapping[str, ListedFile] = field(default_factory=dict)
    bounds: Mapping[str, Callable[[Version], bool]] = field(default_factory=dict)
    corrections: Mapping[str, tuple[Correction, ...]] = field(default_factory=dict)
    sdists: frozenset[str] = frozenset()

    def index_of(self, name: str) -> Index:
        for route in self.routes:
            if fnmatchcase(name, route.pattern):
                return route.index
        return self.default

    def cut_of(self, name: str) -> datetime:
        return self.cuts.get(name, self.as_of)


class Undated(IndexFault):
    """An index without upload times cannot be held to `as_of`."""

    def __init__(self, index: Index, name: str) -> None:
        super().__init__(
            f"index {index.name} gives no upload times for {name}: `as_of` can't be kept there",
            hint="what stands for the default index must give them: name another in ENVSPEC_DEFAULT_INDEX, or unset it"
            if index.name == DEFAULT_INDEX
            else 'if its files never change, say so: undated = "accept" in its [[pip.index]]',
        )


class NotThere(IndexFault):
    """A name that is sent to one index alone, which does not have it."""

    def __init__(self, index: Index, name: str) -> None:
        why = "and its `packages` send that name there alone"
        hint = "publish it there, or narrow `packages` in its [[pip.index]]"
        if index.name.startswith("pytorch-"):
            why = "and this build of the torch family is there alone"
            hint = "does the mirror in ENVSPEC_PYTORCH_INDEX have that CUDA? else ask for another [cuda] version"
        super().__init__(f"index {index.name} ({index.shown_url}) has no {name}, {why}", hint=hint)


class TagRanks:
    """Which wheels a target loads, and how much it prefers each. The lower the rank, the better."""

    def __init__(self, tags: tuple[Tag, ...]) -> None:
        self._ranks = {(tag.interpreter, tag.abi, tag.platform): rank for rank, tag in reversed(list(enumerate(tags)))}
        # A page lists hundreds of releases with the same few sets of tags: each set is looked at once.
        self._known: dict[str, int | None] = {}

    def rank(self, filename: str) -> int | None:
        """None where the target can't load the wheel, or the file is none."""
        if not filename.endswith(".whl"):
            return None
        return self._rank_of(filename[len(filename.rsplit("-", 3)[0]) :])

    def sort_out(self, names: Sequence[str]) -> tuple[list[int], set[str]]:
        """The numbers of the wheels that the target loads, and the other files without their tags.

        Pages of one stack list 70,000 files: this is the one loop over all of them.
        """
        loadable: list[int] = []
        others: set[str] = set()
        known = self._known
        for number, name in enumerate(names):
            if not name.endswith(".whl"):
                others.add(name)
                continue
            stem = name.rsplit("-", 3)[0]
            tail = name[len(stem) :]
            rank = known[tail] if tail in known else self._rank_of(tail)
            if rank is None:
                others.add(stem)
            else:
                loadable.append(number)
        return loadable, others

    def _rank_of(self, tail: str) -> int | None:
        if tail not in self._known:
            self._known[tail] = self._best(tail)
        return self._known[tail]

    def _best(self, tail: str) -> int | None:
        parts = tail.removesuffix(".whl").split("-")[1:]
        if len(parts) != 3:
            return None
        interpreters, abis, platforms = (part.split(".") for part in parts)
        ranks = (self._ranks.get((i, a, p)) for i in interpreters for a in abis for p in platforms)
        return min((rank for rank in ranks if rank is not None), default=None)


def version_of(filename: str) -> Version | None:
    """The version in a wheel's or an sdist's file name; None where there is none that PEP 440 knows."""
    return _version(version_text(filename))


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
    can load no file, where it is newer than all that it can load.
    """

    files: Mapping[str, ListedFile]
    unloadable: str | None = None


class View:
    """One target's sight of the indexes.

    key: names the view in the memory on disk and in the engines' addresses; two views with one key show the same.
    faults: what went wrong; `failed` tells at once that there is one. missing: names that the default index lacks.
    """

    def __init__(self, upstream: Upstream, rules: Rules, key: str) -> None:
        self.rules = rules
        self.key = key
        self.faults: list[EnvspecError] = []
        self.failed = asyncio.Event()
        self.missing: set[str] = set()
        self._upstream = upstream
        self._ranks = TagRanks(rules.tags)
        self._selections: dict[str, Selection] = {}

    async def selection(self, name: str) -> Selection:
        """What the target may see of a project.

        Raises:
            NotListed: its index does not know the project.
            NetworkError: its index can't be used.
        """
        known = self._selections.get(name) or self._remembered(name)
        if known is None:
            known = await self._read(name)
            self._upstream.store.remember_selection(self.key, name, _dumped(known))
        self._selections[name] = known
        return known

    @property
    def shown(self) -> Set[str]:
        """The projects that were looked at."""
        return self._selections.keys()

    async def names(self, name: str) -> Sequence[str]:
        """The names of all files of a project, loadable or not; none of a wheel that the spec names by URL.

        Raises:
            As `selection`.
        """
        if name in self.rules.direct:
            return ()
        return (await self._upstream.listing(self.rules.index_of(name), name, self.rules.cut_of(name))).names

    async def foresee(self, name: str) -> None:
        """Ask for the metadata of a project's newest releases before an engine tries them, one after another.

        A guess: what fails here is told when it is asked for in earnest.
        """
        if name in self.rules.direct or self._remembered(name) is not None:
            return
        with suppress(NotListed, EnvspecError):
            index = self.rules.index_of(name)
            files = _newest(await self.selection(name), self._ranks, _WALKED)
            await asyncio.gather(*(self._upstream.metadata(index, file) for file in files))

    async def page(self, name: str, bodies: Bodies) -> bytes:
        """The project's page for the engines, as PEP 691 has it; of stubs, no hash is told."""
        files = (await self.selection(name)).files.values()
        return json.dumps(
            {"meta": {"api-version": "1.0"}, "name": name, "files": [_entry(name, file, bodies) for file in files]},
            separators=(",", ":"),
        ).encode()

    async def metadata(self, name: str, filename: str) -> bytes:
        """A wheel's METADATA with the requirements that it lacks. KeyError: the view has no such file."""
        file = (await self.selection(name)).files[filename]
        try:
            stored = await self._upstream.metadata(self.rules.index_of(name), file)
        except NetworkError as error:
            self._fail(error)
            raise
        return corrected(stored.body, self.rules.corrections.get(name, ()), filename)

    async def content(self, name: str, filename: str, bodies: Bodies = Bodies.WHOLE) -> bytes:
        """A file's bytes, or a stub with its metadata. KeyError: the view has no such file."""
        if bodies is Bodies.STUB and filename.endswith(".whl"):
            return stub_wheel(filename, await self.metadata(name, filename))
        file = (await self.selection(name)).files[filename]
        try:
            return await self._upstream.content(self.rules.index_of(name), file)
        except NetworkError as error:
            self._fail(error)
            raise

    async def sdist_requirements(self, name: str, filename: str) -> tuple[str, ...]:
        """What an sdist says that it needs; empty where only a build would tell."""
        return sdist.requirements(await self.content(name, filename), filename)

    async def size_bytes(self, name: str, filename: str) -> int | None:
        return await self._upstream.size_bytes(self.rules.index_of(name), (await self.selection(name)).files[filename])

    def rank(self, filename: str) -> int | None:
        return self._ranks.rank(filename)

    def _fail(self, error: EnvspecError) -> None:
        self.faults.append(error)
        self.failed.set()

    def _remembered(self, name: str) -> Selection | None:
        row = self._upstream.store.selection(self.key, name)
        return _loaded(row) if row is not None else None

    async def _read(self, name: str) -> Selection:
        rules = self.rules
        if name in rules.direct:
            file = rules.direct[name]
            return Selection({file.filename: file})
        index, cut = rules.index_of(name), rules.cut_of(name)
        try:
            listing = await self._upstream.listing(index, name, cut)
            return self._select(name, index, listing, cut)
        except BadPage as error:
            fault = unreadable(index, name, error)
            self._fail(fault)
            raise fault from error
        except NotListed:
            self.missing.add(name)
            if index is not rules.default:
                self._fail(NotThere(index, name))
            raise
        except NetworkError as error:
            self._fail(error)
            raise

    def _select(self, name: str, index: Index, listing: Listing, cut: datetime) -> Selection:
        numbers, others = self._ranks.sort_out(listing.names)
        if name in self.rules.sdists:
            numbers += [number for number, file in enumerate(listing.names) if file.endswith(SDIST_SUFFIXES)]
        loadable = [listing.row(number) for number in numbers]
        if index.dated and loadable and not any(file.uploaded for file in loadable):
            raise Undated(index, name)
        bound = self.rules.bounds.get(name)

        def seen(file: ListedFile) -> bool:
            if index.dated and not (file.uploaded and not_after(file.uploaded, cut)):
                return False
            version = version_of(file.filename) if bound else None
            return bound is None or (version is not None and bound(version))

        files = {file.filename: file for file in loadable if seen(file)}
        return Selection(files, _unloadable(listing, files, others, seen))


def _newest(selection: Selection, ranks: TagRanks, count: int) -> list[ListedFile]:
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
    listing: Listing, files: Mapping[str, ListedFile], others: set[str], seen: Callable[[ListedFile], bool]
) -> str | None:
    """The newest release seen that is newer than all `files`. others: the other files' names, perhaps without tags."""
    known = _versions({version_text(name) for name in files})
    newest = max(known, default=None)
    floor = newest.major if newest is not None and not newest.epoch else 0
    texts = {version_text(name) for name in others}
    # Most of hundreds of old versions need no parsing: their first number says that they are older.
    newer = _versions({text for text in texts if not (head := text.partition(".")[0]).isdigit() or int(head) >= floor})
    for version in sorted((version for version in newer - known if not version.is_prerelease), reverse=True):
        if newest is not None and version < newest:
            return None
        numbers = (number for number, name in enumerate(listing.names) if version_of(name) == version)
        if any(seen(listing.row(number)) for number in numbers):
            return str(version)
    return None


def _versions(texts: set[str]) -> set[Version]:
    return {version for text in texts if (version := _version(text)) is not None}


def _dumped(selection: Selection) -> dict[str, Any]:
    rows = [[getattr(file, field) for field in ListedFile.__slots__] for file in selection.files.values()]
    return {"files": rows, "unloadable": selection.unloadable}


def _loaded(row: Mapping[str, Any]) -> Selection:
    return Selection({values[0]: ListedFile(*values) for values in row["files"]}, row["unloadable"])


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


def corrected(metadata: bytes, corrections: tuple[Correction, ...], filename: str) -> bytes:
    """METADATA with the lacking requirements added to its head."""
    version = version_of(filename) if corrections else None
    lines = [
        f"Requires-Dist: {requirement}".encode()
        for correction in corrections
        if version is not None and correction.applies(version)
        for requirement in correction.requires
    ]
    if not lines:
        return metadata
    first, newline, rest = metadata.partition(b"\n")
    return b"\n".join([first, *lines]) + newline + rest


def _entry(name: str, file: ListedFile, bodies: Bodies) -> dict[str, object]:
    entry: dict[str, object] = {
        "filename": file.filename,
        "url": f"../../files/{name}/{file.filename}",
        "hashes": {"sha256": file.sha256} if file.sha256 and bodies is Bodies.WHOLE else {},
    }
    if file.filename.endswith(".whl"):
        entry["core-metadata"] = True
    if file.requires_python:
        entry["requires-python"] = file.requires_python
    if file.yanked is not None:
        entry["yanked"] = file.yanked or True
    return entry


def normalised(name: str) -> str:
    """PEP 503's form of a project's name."""
    return str(canonicalize_name(name))
