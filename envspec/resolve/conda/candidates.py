"""Newer candidates, and what excludes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, cast

from envspec.models import Rejected
from envspec.resolve.conda.channels import is_in_time
from envspec.resolve.conda.cuda_builds import constrained_name, cuda_constraint, is_cuda_build
from envspec.resolve.conda.records import name_of
from envspec.resolve.types import CondaRequest
from envspec.spec.conda import ARCHSPEC

if TYPE_CHECKING:
    from rattler import MatchSpec, PackageRecord, RepoDataRecord, Version


_CAPS: Final = frozenset({"cuda-version", "cudatoolkit"})
#: Where the version of a virtual package comes from.
_HAS: Final[Mapping[str, str]] = {
    "__cuda": "[cuda] gives",
    "__glibc": "the base has",
    "__osx": "the oldest macOS that is meant is",
}


def moment_text(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def asked_by(request: CondaRequest, requirement: str) -> str:
    """A requirement with the key of the spec that it comes from."""
    return f"{requirement} ({key_of(request, requirement)})"


def key_of(request: CondaRequest, requirement: str) -> str:
    """The key of the spec that a requirement comes from."""
    python = next((text for text in request.requirements if name_of(text) == "python"), None)
    if requirement == python:
        return "env.python"
    own = f".platform.{request.platform.value}" if requirement in request.of_platform else ""
    return f"conda{own}.dependencies"


def limit_words(request: CondaRequest, constraint: str) -> str:
    """What a constraint is in the spec's words."""
    name = constrained_name(constraint)
    if name is not None:
        return f"[cuda], with which {name} has to be a CUDA build"
    if request.cuda is not None and name_of(constraint) in _CAPS:
        return f'[cuda] version = "{request.cuda}"'
    return constraint


def machine_rows(request: CondaRequest) -> dict[str, PackageRecord]:
    """The virtual packages as rows that match specs can be held against."""
    from rattler import PackageRecord
    from rattler.package.build_string import BuildString

    return {
        virtual.name: PackageRecord(virtual.name, virtual.version, BuildString(virtual.build), 0, "noarch")
        for virtual in request.virtual_packages
    }


@dataclass(slots=True)
class Terms:
    """What a request demands, as rows can be held against it.

    rows: all rows of some names; of others nothing is said. machine: see `machine_rows`.
    """

    request: CondaRequest
    rows: Mapping[str, Sequence[RepoDataRecord]]
    machine: Mapping[str, PackageRecord]
    _specs: dict[str, MatchSpec] = field(default_factory=dict)

    def fits(self, spec: str, row: PackageRecord) -> bool:
        from rattler import MatchSpec

        if spec not in self._specs:
            self._specs[spec] = MatchSpec(spec)
        return self._specs[spec].matches(row)

    def in_time(self, row: RepoDataRecord) -> bool:
        return is_in_time(row, self.request.cut_of(row.name.normalized), undated=self.request.undated)

    def limits(self, name: str) -> Iterator[tuple[str, str]]:
        """What the request itself demands of a name: match spec, and the words for it."""
        yield from ((text, asked_by(self.request, text)) for text in self.request.requirements if name_of(text) == name)
        yield from (
            (text, limit_words(self.request, text)) for text in self.request.constraints if name_of(text) == name
        )

    def obstacle(self, row: RepoDataRecord) -> str | None:
        """Why a row can't be had whatever else is chosen, as a sentence about it; None if it can."""
        if not self.in_time(row):
            return self.too_late([row])
        for text, words in self.limits(row.name.normalized):
            if not self.fits(text, row):
                return f"is excluded by {words}"
        return next((f"needs {words}" for words in map(self.unmet, row.depends) if words), None)

    def unmet(self, requirement: str) -> str | None:
        """Why nothing meets a requirement: `python >=3.12,<3.13, and ...`; None where something may."""
        name = name_of(requirement)
        if name.startswith("__"):
            return self._not_on_the_machine(name, requirement)
        if name not in self.rows:
            return None
        fitting = [row for row in self.rows[name] if self.fits(requirement, row)]
        if not fitting:
            return f"{requirement}, which no channel has"
        timely = [row for row in fitting if self.in_time(row)]
        if not timely:
            return f"{requirement}, which {self.too_late(fitting)}"
        limits = list(self.limits(name))
        if any(all(self.fits(text, row) for text, _ in limits) for row in timely):
            return None
        for text, words in limits:
            if not any(self.fits(text, row) for row in timely):
                is_cap = name in _CAPS and text in self.request.constraints
                return f"{requirement}, {'above' if is_cap else 'which is excluded by'} {words}"
        return f"{requirement}, which does not go with {' and '.join(words for _, words in limits)}"

    def too_late(self, rows: Sequence[RepoDataRecord]) -> str:
        """Of rows of one name none of which is in time: what keeps them out."""
        cut = moment_text(self.request.cut_of(rows[0].name.normalized))
        moments = [moment for row in rows if (moment := row.indexed_timestamp or row.timestamp)]
        if not moments:
            return "does not say when it was built"
        return f"was built on {moment_text(min(moments))} at the earliest, after as_of {cut}"

    def _not_on_the_machine(self, name: str, requirement: str) -> str | None:
        present = self.machine.get(name)
        if present is None:
            return f"{name}, which {'only a spec with [cuda] has' if name == '__cuda' else 'this platform has not'}"
        if self.fits(requirement, present):
            return None
        # Of __archspec the version is always 1: the build says it.
        has = present.build if name == ARCHSPEC else present.version
        return f"{requirement}, and {_HAS.get(name, 'the machine has')} {has}"


def cuda_rows(rows: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """CUDA's builds, the newest first."""
    return newest_first(row for row in rows if is_cuda_build(str(row.build)))


def newest_first(rows: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """By version, build number and build string: the same order on every machine."""
    return sorted(rows, key=lambda row: (row.version, row.build_number, str(row.build)), reverse=True)


@dataclass(slots=True)
class Chosen:
    """What was chosen for a request, with what the machine has, as it can be asked about candidates.

    rows: by name, virtual packages too.
    """

    request: CondaRequest
    rows: Mapping[str, PackageRecord]
    _specs: dict[str, MatchSpec] = field(default_factory=dict)
    _asking: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, row in sorted(self.rows.items()):
            for text in row.depends:
                self._asking.setdefault(name_of(text), []).append((text, f"{name} {row.version} needs {text}"))
            for text in row.constrains:
                self._asking.setdefault(name_of(text), []).append((text, f"{name} {row.version} allows only {text}"))

    def is_cuda(self, name: str) -> bool:
        """Whether the chosen row is a CUDA build, and meant to be one."""
        return self.request.cuda is not None and is_cuda_build(str(self.rows[name].build))

    def against(self, candidate: RepoDataRecord) -> Iterator[str]:
        """What excludes a row that was not chosen, the spec's own words first."""
        name = candidate.name.normalized
        asked = [(text, f"the spec asks for {text}") for text in self.request.requirements if name_of(text) == name]
        implied = [cuda_constraint(name)] if self.is_cuda(name) else []
        constraints = dict.fromkeys([*self.request.constraints, *implied])
        limits = ((text, limit_words(self.request, text)) for text in constraints if name_of(text) == name)
        bounds = [(text, f"excluded by {words}") for text, words in limits]
        # what the package's own older version says of it would go with that version
        others = [pair for pair in self._asking.get(name, ()) if not pair[1].startswith(f"{name} ")]
        unmet = [(text, words) for text in candidate.depends for words in self._unmet(text)]
        # What the machine or the spec itself excludes goes first: of packages that are pinned to each other, as pytorch
        # and libtorch are, each is held back by the other, which explains neither.
        fixed = [words for text, words in unmet if self._is_fixed(name_of(text))]
        yield from (words for text, words in (*asked, *bounds) if not self._fits(text, candidate))
        yield from fixed
        yield from (words for text, words in others if not self._fits(text, candidate))
        yield from (words for _, words in unmet if words not in fixed)
        for text in candidate.constrains:
            present = self.rows.get(name_of(text))
            if present is not None and not self._fits(text, present):
                yield f"it allows only {text}, and {present.name.normalized} is {present.version}"

    def _is_fixed(self, name: str) -> bool:
        texts = (*self.request.requirements, *self.request.constraints)
        return name.startswith("__") or any(name_of(text) == name for text in texts)

    def _unmet(self, text: str) -> Iterator[str]:
        name = name_of(text)
        present = self.rows.get(name)
        if present is None:
            if name.startswith("__"):
                yield f"it needs {text}, which this environment's machine has not"
        elif not self._fits(text, present):
            is_machine = name.startswith("__")
            yield f"it needs {text}, and {'the machine has' if is_machine else 'here is'} {name} {present.version}"

    def _fits(self, text: str, row: PackageRecord) -> bool:
        from rattler import MatchSpec

        if text not in self._specs:
            self._specs[text] = MatchSpec(text)
        return self._specs[text].matches(row)


def newest_refused(chosen: Chosen, name: str, rows: Iterable[RepoDataRecord]) -> Rejected | None:
    """The newest version of `name` by its moment that is newer than the chosen one, and why it is not in.

    rows: all of the name. None where the chosen version is the newest.
    """
    request, version = chosen.request, chosen.rows[name].version
    later = _newer(rows, version)
    newer: list[RepoDataRecord] = []
    if chosen.is_cuda(name):
        cuda = (row for row in later if "cuda" in row.file_name and is_cuda_build(str(row.build)))
        newer = _newest(cuda, version, request)
    # A newer build for the CPU is told where there is no newer CUDA build to tell of.
    newer = newer or _newest(later, version, request)
    if not newer:
        return None
    reasons = sorted((list(chosen.against(each)) for each in newer), key=lambda found: (len(found), found))
    refused = str(newer[0].version)
    return Rejected(refused, reasons[0][0] if reasons[0] else _unsaid(chosen, name, refused))


def _unsaid(chosen: Chosen, name: str, refused: str) -> str:
    """Why a version was not taken that nothing speaks against: it came later than the lock, which keeps what it has."""
    row = cast("RepoDataRecord", chosen.rows[name])
    kept = next((package for package in chosen.request.locked if package.filename == row.file_name), None)
    if kept is None:
        return "what it needs in turn does not go with the rest"
    if kept.rejected is not None and kept.rejected.version == refused:
        return kept.rejected.why
    return f"the lock keeps {row.version}; `--upgrade-package {name}` moves it"


def _newest(rows: Iterable[RepoDataRecord], version: Version, request: CondaRequest) -> list[RepoDataRecord]:
    """All rows of the newest version by its moment that is not older than `version`."""
    found: list[RepoDataRecord] = []
    best = version
    for row in rows:
        if row.version < best or not is_in_time(row, request.cut_of(row.name.normalized), undated=request.undated):
            continue
        found = [*found, row] if found and row.version == best else [row]
        best = row.version
    return found


def _newer(rows: Iterable[RepoDataRecord], version: Version) -> list[RepoDataRecord]:
    """The rows above a version. A version is compared once, however many builds it has."""
    verdicts: dict[str, bool] = {}
    found: list[RepoDataRecord] = []
    for row in rows:
        # name, version, build: to compare texts is cheaper than to ask the row for its version
        text = row.file_name.rsplit("-", 2)[1]
        if text not in verdicts:
            verdicts[text] = row.version > version
        if verdicts[text]:
            found.append(row)
    return found
