"""Newer candidates, and what excludes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from msgspec import Struct, field

from envspec.models import CondaPackage, Rejected
from envspec.reasons import CONDA_PARTS, Reason, Why, reason
from envspec.resolve.conda.channels import in_time, is_in_time
from envspec.resolve.conda.records import (
    constrained_name,
    cuda_builds,
    cuda_constraint,
    is_cuda_build,
    name_of,
    record_name,
    specs_of,
)
from envspec.resolve.types import LOOSEN, CondaRequest
from envspec.spec.conda import ARCHSPEC
from envspec.spec.dates import utc_text

if TYPE_CHECKING:
    from rattler import MatchSpec, PackageRecord, RepoDataRecord, Version

_CAPS: Final = frozenset({"cuda-version", "cudatoolkit"})


class CondaCause(Enum):
    """What excludes packages, with the hint about it. Of several, the first one here decides."""

    NO_SUCH_NAME = "correct the name, or add the channel that has it"
    NO_CUDA = "add [cuda] to the spec, or require a build for the CPU"
    CUDA_VERSION = "raise [cuda] version, or allow an older package"
    UNDATED = 'set undated = "accept" in [conda] to include records without a build time'
    TOO_LATE = "move as_of, or loosen the requirement"
    MACHINE = "set the properties of the environment's machine in [conda.virtual_packages]"
    BASE = "use a newer base: [cuda] os or [image] base"
    NO_CUDA_BUILD = "remove the platform, or build on a package that has CUDA builds there"
    OTHER = LOOSEN


class Obstacle(NamedTuple):
    """Why a record cannot be chosen, or a requirement cannot be met, as a part of a sentence."""

    text: str
    cause: CondaCause = CondaCause.OTHER

    def after(self, text: str) -> Obstacle:
        """The same after another part of the sentence."""
        return Obstacle(f"{text}{self.text}", self.cause)


#: The origin of a virtual package's version.
_ORIGIN: Final[Mapping[str, Obstacle]] = {
    "__cuda": Obstacle("[cuda] gives", CondaCause.CUDA_VERSION),
    "__cuda_arch": Obstacle("the smallest of [cuda] gpus has"),
    "__glibc": Obstacle("the base has", CondaCause.BASE),
    "__osx": Obstacle("the oldest supported macOS is"),
}
_OF_MACHINE: Final = Obstacle("the machine has", CondaCause.MACHINE)
#: Virtual packages that follow from keys of the spec: what is missing.
_ABSENT: Final[Mapping[str, Obstacle]] = {
    "__cuda": Obstacle("needs [cuda] in the spec", CondaCause.NO_CUDA),
    "__cuda_arch": Obstacle("needs [cuda] gpus in the spec"),
}
_NOT_HERE: Final = Obstacle("this platform does not have")
#: By the code of a reason.
_CAUSES: Final[Mapping[str, CondaCause]] = {
    "conda-excluded-by-cuda": CondaCause.CUDA_VERSION,
    "conda-undated": CondaCause.UNDATED,
    "conda-too-late": CondaCause.TOO_LATE,
}


def with_key(request: CondaRequest, requirement: str) -> str:
    """A requirement with its key in the spec."""
    key = "conda.dependencies"
    if requirement in specs_of("python", request.requirements)[:1]:
        key = "env.python"
    elif requirement in request.of_platform:
        key = f"conda.platform.{request.platform.value}.dependencies"
    return f"{requirement} ({key})"


def _obstacle_of(why: Reason) -> Obstacle:
    """The obstacle of a reason, whose code is in CONDA_PARTS."""
    text = CONDA_PARTS[why.code].format_map(dict(why.values))
    return Obstacle(text, _CAUSES.get(why.code, CondaCause.OTHER))


def _excluded(request: CondaRequest, constraint: str) -> Reason:
    """What a constraint excludes is excluded by, in the spec's words."""
    name = constrained_name(constraint)
    if name is not None:
        return reason("conda-excluded-for-cuda", package=name)
    if request.cuda is not None and name_of(constraint) in _CAPS:
        return reason("conda-excluded-by-cuda", cuda=request.cuda)
    return reason("conda-excluded", constraint=constraint)


def machine_records(request: CondaRequest) -> dict[str, PackageRecord]:
    """The virtual packages as records that match specs can be matched with."""
    from rattler import PackageRecord
    from rattler.package.build_string import BuildString

    found: dict[str, PackageRecord] = {}
    for each in request.virtual_packages:
        found[each.name] = PackageRecord(each.name, each.version, BuildString(each.build), 0, "noarch")
    return found


@lru_cache(maxsize=1 << 16)
def _match_spec(text: str) -> MatchSpec:
    from rattler import MatchSpec

    return MatchSpec(text)


def fits(spec: str, record: PackageRecord) -> bool:
    return _match_spec(spec).matches(record)


def fitting(spec: str, records: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    return [record for record in records if fits(spec, record)]


class RequestLimits(Struct, frozen=True):
    """A request's limits. records: all records of some names. machine: see `machine_records`."""

    request: CondaRequest
    records: Mapping[str, Sequence[RepoDataRecord]]
    machine: Mapping[str, PackageRecord]

    def limits(self, name: str) -> Iterator[tuple[str, Obstacle]]:
        """What the request itself requires of a name: match spec, and its description."""
        for text in specs_of(name, self.request.requirements):
            yield text, Obstacle(with_key(self.request, text))
        for text in specs_of(name, self.request.constraints):
            yield text, _obstacle_of(_excluded(self.request, text))

    def obstacle(self, record: RepoDataRecord) -> Obstacle | None:
        """Why a record cannot be chosen whatever else is, as a predicate; None if it can."""
        if not is_in_time(record, self.request):
            return self.too_late([record])
        for text, limit in self.limits(record_name(record)):
            if not fits(text, record):
                return limit.after("is excluded by ")
        for unmet in filter(None, map(self.unmet, record.depends)):
            return unmet.after("needs ")
        return None

    def unmet(self, requirement: str) -> Obstacle | None:
        """Why nothing meets a requirement: `python >=3.12,<3.13, which ...`; None if something may."""
        name = name_of(requirement)
        if name.startswith("__"):
            return self._unmet_by_machine(name, requirement)
        if name not in self.records:
            return None
        matching = fitting(requirement, self.records[name])
        if not matching:
            return Obstacle(f"{requirement}, which no channel has")
        timely = in_time(matching, self.request)
        if not timely:
            return self.too_late(matching).after(f"{requirement}, which ")
        limits = list(self.limits(name))
        for record in timely:
            if all(fits(text, record) for text, _ in limits):
                return None
        for text, limit in limits:
            if not any(fits(text, record) for record in timely):
                is_cap = name in _CAPS and text in self.request.constraints
                return limit.after(f"{requirement}, {'above' if is_cap else 'which is excluded by'} ")
        words = " and ".join(limit.text for _, limit in limits)
        return Obstacle(f"{requirement}, which conflicts with {words}", first_cause(limit for _, limit in limits))

    def too_late(self, records: Sequence[RepoDataRecord]) -> Obstacle:
        """What excludes records of one name none of which is in time."""
        return _obstacle_of(too_late(records, self.request))

    def _unmet_by_machine(self, name: str, requirement: str) -> Obstacle | None:
        present = self.machine.get(name)
        if present is None:
            return _ABSENT.get(name, _NOT_HERE).after(f"{name}, which ")
        if fits(requirement, present):
            return None
        # The version of __archspec is always 1: its build is the value.
        value = present.build if name == ARCHSPEC else present.version
        origin = _ORIGIN.get(name, _OF_MACHINE)
        return Obstacle(f"{requirement}, and {origin.text} {value}", origin.cause)


def first_cause(obstacles: Iterable[Obstacle]) -> CondaCause:
    """The cause that decides the hint."""
    causes = {each.cause for each in obstacles}
    return next((cause for cause in CondaCause if cause in causes), CondaCause.OTHER)


def too_late(records: Sequence[RepoDataRecord], request: CondaRequest) -> Reason:
    """What excludes records of one name none of which is in time."""
    times = list(filter(None, [record.indexed_timestamp or record.timestamp for record in records]))
    if not times:
        return reason("conda-undated")
    cutoff = request.cutoff_of(record_name(records[0]))
    return reason("conda-too-late", built=utc_text(min(times)), as_of=utc_text(cutoff))


def newest_first(records: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """By version, build number and build string: the same order on every machine."""
    return sorted(records, key=lambda record: (record.version, record.build_number, str(record.build)), reverse=True)


class ChosenRecords(Struct):
    """What was chosen for a request. records: by name, virtual packages included."""

    request: CondaRequest
    records: Mapping[str, PackageRecord]
    _requiring: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, record in sorted(self.records.items()):
            for code, texts in (("needed-by", record.depends), ("conda-allowed-by", record.constrains)):
                for text in texts:
                    # What a package's own older version requires of it does not count.
                    if name_of(text) != name:
                        self._requiring.setdefault(name_of(text), []).append((text, code, f"{name} {record.version}"))

    def is_cuda(self, name: str) -> bool:
        """Whether the chosen record is a CUDA build, and meant to be one."""
        return self.request.cuda is not None and is_cuda_build(self.records[name])

    def against(self, candidate: RepoDataRecord) -> Iterator[Reason]:
        """What excludes a record that was not chosen, the spec's own requirements first."""
        yield from self._by_request(candidate)
        # The machine and the spec come first: of packages that are pinned to each other, as pytorch and libtorch are,
        # each is held back by the other, which explains neither.
        own = set(map(name_of, (*self.request.requirements, *self.request.constraints)))
        fixed: list[Reason] = []
        others: list[Reason] = []
        for text in candidate.depends:
            is_fixed = text.startswith("__") or name_of(text) in own
            (fixed if is_fixed else others).extend(self._unmet(text))
        yield from fixed
        for text, code, package in self._requiring.get(record_name(candidate), ()):
            if not fits(text, candidate):
                yield reason(code, package=package, requirement=text)
        yield from others
        for text in candidate.constrains:
            present = self.records.get(name_of(text))
            if present is not None and not fits(text, present):
                yield reason("conda-allows", requirement=text, package=record_name(present), version=present.version)

    def _by_request(self, candidate: RepoDataRecord) -> Iterator[Reason]:
        """What excludes it of the requirements on its own name, and of the constraints."""
        name, constraints = record_name(candidate), list(self.request.constraints)
        for text in specs_of(name, self.request.requirements):
            if not fits(text, candidate):
                yield reason("spec-requires", requirement=text)
        if self.is_cuda(name):
            constraints.append(cuda_constraint(name))
        for text in dict.fromkeys(specs_of(name, constraints)):
            if not fits(text, candidate):
                yield _excluded(self.request, text)

    def _unmet(self, text: str) -> Iterator[Reason]:
        name = name_of(text)
        present, is_machine = self.records.get(name), name.startswith("__")
        if present is None:
            if is_machine:
                yield reason("conda-no-machine", requirement=text)
        elif not fits(text, present):
            code = "conda-machine-has" if is_machine else "conda-needs"
            yield reason(code, requirement=text, package=name, version=present.version)


def rejected_candidate(chosen: ChosenRecords, name: str, records: Iterable[RepoDataRecord]) -> Rejected | None:
    """The newest version of `name` within the cutoff that is newer than the chosen one, and why it was rejected.

    records: all of the name.
    """
    request, version = chosen.request, chosen.records[name].version
    later = _newer_records(records, version)
    # A newer build for the CPU is named only if there is no newer CUDA build.
    cuda = _newest_builds(cuda_builds(later), version, request) if chosen.is_cuda(name) else []
    newer = cuda or _newest_builds(later, version, request)
    if not newer:
        return None
    fewest = _fewest_reasons(chosen, newer)
    rejected = str(newer[0].version)
    return Rejected(rejected, fewest[:1] or _why_kept(chosen, name, rejected))


def _fewest_reasons(chosen: ChosenRecords, candidates: Iterable[RepoDataRecord]) -> Why:
    """What excludes the candidate that the fewest reasons exclude."""
    return min((tuple(chosen.against(each)) for each in candidates), key=lambda why: (len(why), why))


def preferred_candidate(
    chosen: ChosenRecords, package: CondaPackage, preferred: tuple[str, str] | None, records: Iterable[RepoDataRecord]
) -> Rejected | None:
    """The version and build that the spec prefers, with the reason why another one was chosen.

    preferred: version and build (empty: any).
    records: all of the name.
    """
    if preferred is None or preferred in ((package.version, ""), (package.version, package.build)):
        return None
    version, build = preferred
    text = " ".join(filter(None, preferred))
    existing = [record for record in records if str(record.version) == version]
    same = existing
    if build:
        same = [record for record in existing if str(record.build) == build]
    if not same and package.version != version:
        same = existing
    if not same:
        return Rejected(text, (reason("conda-not-in-channel"),))
    timely = in_time(same, chosen.request)
    if not timely:
        return Rejected(text, (too_late(same, chosen.request),))
    return Rejected(text, _fewest_reasons(chosen, timely)[:1] or (reason("conda-conflict"),))


def _why_kept(chosen: ChosenRecords, name: str, rejected: str) -> Why:
    """Why a version was not chosen that nothing excludes: it is newer than the lock, which is kept."""
    record = cast("RepoDataRecord", chosen.records[name])
    locked = next((package for package in chosen.request.locked if package.filename == record.file_name), None)
    if locked is None:
        return (reason("conda-conflict"),)
    if locked.rejected is not None and locked.rejected.version == rejected:
        return locked.rejected.why
    is_preferred = name in {each for each, _, _ in chosen.request.preferred}
    code = "conda-spec-prefers" if is_preferred else "conda-lock-keeps"
    return (reason(code, version=record.version, package=name),)


def _newest_builds(records: Iterable[RepoDataRecord], version: Version, request: CondaRequest) -> list[RepoDataRecord]:
    """All records of the newest version within its cutoff that is not older than `version`."""
    found: list[RepoDataRecord] = []
    best = version
    for record in records:
        if record.version < best or not is_in_time(record, request):
            continue
        found = [*found, record] if found and record.version == best else [record]
        best = record.version
    return found


def _newer_records(records: Iterable[RepoDataRecord], version: Version) -> list[RepoDataRecord]:
    """The records above a version. A version is compared once, however many builds it has."""
    verdicts: dict[str, bool] = {}
    found: list[RepoDataRecord] = []
    for record in records:
        # Name, version, build: comparing texts is cheaper than getting the record's version.
        text = record.file_name.rsplit("-", 2)[1]
        if text not in verdicts:
            verdicts[text] = record.version > version
        if verdicts[text]:
            found.append(record)
    return found
