"""What keeps a row out before anything is solved: its date, the spec's own words, the machine, CUDA's cap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from envspec.resolve.conda.channels import is_in_time
from envspec.resolve.conda.cuda_builds import constrained_name, is_cuda_build
from envspec.resolve.conda.question import CondaRequest
from envspec.resolve.conda.rows import name_of
from envspec.spec.virtual_packages import ARCHSPEC

if TYPE_CHECKING:
    from rattler import MatchSpec, PackageRecord, RepoDataRecord

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
