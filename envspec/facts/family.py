"""The torch family: which releases of torchvision, torchaudio, torchtext, torchdata and triton go with which torch.

A release's own metadata is the rule; where it lies or says nothing, a `[[edge]]` row of `envspec/data/family.toml`
corrects it. All checks here are pure and speak of what is known only: where a release is not in the data they let it
pass and leave the answer to the resolver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts.load import Facts
from envspec.facts.rows import EdgeRow, MemberRow
from envspec.facts.torch import probes_outside

#: Members whose releases the data lists one by one.
MEMBERS: Final = ("torchvision", "torchaudio", "torchtext", "torchdata")


class FamilyMismatch(NoSolution):
    """Requests for members of the torch family that no set of releases serves."""


def extra_requirements(facts: Facts, package: str, version: str) -> tuple[tuple[str, EdgeRow], ...]:
    """The Requires-Dist lines to add to the metadata of one release, each with the row that says why."""
    return tuple(
        (line, edge)
        for edge in facts.family_edges(package)
        if SpecifierSet(edge.versions).contains(version, prereleases=True)
        for line in edge.requires
    )


def fitting_set(facts: Facts, torch: str) -> Mapping[str, str]:
    """The newest known release of each member that goes with a torch release; `triton` as a specifier.

    A member without an entry has none that is known to fit.
    """
    chosen: dict[str, str] = {}
    for package in MEMBERS:
        fitting = [row.version for row in _listed(facts, package) if _accepts(facts, row, torch)]
        if fitting:
            chosen[package] = fitting[-1]
    if torch in facts.tritons:
        chosen["triton"] = facts.tritons[torch].triton.removeprefix("==")
    return chosen


def explain_family(facts: Facts, requests: Mapping[str, SpecifierSet]) -> str | None:
    """Why requests for family members cannot be served together, with the set that fits; None where nothing is known
    against them. requests: normalised name -> specifier, `torch` among them or not; other names are ignored.
    """
    mismatch = family_mismatch(facts, requests)
    return str(mismatch) if mismatch else None


def family_mismatch(facts: Facts, requests: Mapping[str, SpecifierSet]) -> FamilyMismatch | None:
    """As `explain_family`, as an error to raise."""
    torch = requests.get("torch", SpecifierSet())
    asked = {name: requests[name] for name in (*MEMBERS, "triton") if name in requests}
    candidates = list(_torch_candidates(facts, torch))
    if not candidates:
        return None
    if any(all(_may_fit(facts, name, spec, version) for name, spec in asked.items()) for version in candidates):
        return None
    for name, spec in asked.items():
        if not any(_may_fit(facts, name, spec, version) for version in candidates):
            return _one_member(facts, name, spec, torch)
    wanted = ", ".join(f"{name}{spec}" for name, spec in asked.items())
    reasons = "; ".join(_takes(facts, name, spec) for name, spec in asked.items())
    return FamilyMismatch(f"{wanted}: no torch release goes with all of them ({reasons})", hint=_advice(facts, torch))


def _torch_candidates(facts: Facts, torch: SpecifierSet) -> Iterator[Version]:
    for row in facts.torch:
        if torch.contains(row.version, prereleases=True):
            yield Version(row.version)
    for text in probes_outside(facts, torch):
        if torch.contains(text):
            yield Version(text)


def _may_fit(facts: Facts, package: str, spec: SpecifierSet, torch: Version) -> bool:
    """Is there a release of the package, in the data or beyond it, that may go with this torch?"""
    if package == "triton":
        return _triton_may_fit(facts, spec, torch)
    listed = _listed(facts, package)
    if any(spec.contains(row.version, prereleases=True) and _accepts(facts, row, str(torch)) for row in listed):
        return True
    return any(
        spec.contains(probe) and _edges_allow(facts, package, probe, str(torch))
        for probe in _unlisted(facts, package, spec, torch)
    )


def _unlisted(facts: Facts, package: str, spec: SpecifierSet, torch: Version) -> Iterator[str]:
    """Releases beyond the data that could go with this torch. Where the first release in the data pins torch exactly,
    older ones pinned older torches; newer ones go with torches that the last one takes, or later ones.
    """
    listed = _listed(facts, package)
    first, last = listed[0], listed[-1]
    named = [Version(clause.version.removesuffix(".*")) for clause in spec]
    if not (first.torch.startswith("==") and torch >= Version(first.torch.removeprefix("=="))):
        oldest = Version(first.version)
        yield from (str(v) for v in named if v < oldest)
        yield from (f"0.{minor}.{patch}" for minor in range(oldest.minor) for patch in range(3) if not oldest.major)
    taken = [row.version for row in facts.torch if _accepts(facts, last, row.version)]
    ended = facts.ended.get(package)
    sure_end = ended is not None and ended.confidence == "high"
    if not sure_end and (not taken or torch >= Version(taken[0])):
        newest = Version(last.version)
        yield from (str(v) for v in named if v > newest)
        yield from (f"{newest.major}.{newest.minor + step}.0" for step in range(1, 6))
        yield f"{newest.major}.{newest.minor}.{newest.micro + 1}"


def _triton_may_fit(facts: Facts, spec: SpecifierSet, torch: Version) -> bool:
    pin = facts.tritons.get(str(torch))
    if pin is None:
        return True
    both = spec & SpecifierSet(pin.triton)
    exact = [clause.version for clause in both if clause.operator in ("==", "~=")]
    return any(both.contains(version.removesuffix(".*"), prereleases=True) for version in exact)


def _listed(facts: Facts, package: str) -> list[MemberRow]:
    return [row for row in facts.members if row.package == package]


def _accepts(facts: Facts, row: MemberRow, torch: str) -> bool:
    own = SpecifierSet(row.torch).contains(torch, prereleases=True)
    return own and _edges_allow(facts, row.package, row.version, torch)


def _edges_allow(facts: Facts, package: str, version: str, torch: str) -> bool:
    lines = (Requirement(line) for line, _ in extra_requirements(facts, package, version))
    return all(line.specifier.contains(torch, prereleases=True) for line in lines if line.name == "torch")


def _takes(facts: Facts, package: str, spec: SpecifierSet) -> str:
    """What the releases that a request allows take: `torchvision 0.19.0 takes torch==2.4.0`."""
    if package == "triton":
        torches = [row.torch for row in facts.tritons.values() if _triton_may_fit(facts, spec, Version(row.torch))]
        return f"triton{spec} is pinned by torch {', '.join(torches)}" if torches else f"no torch pins triton{spec}"
    matching = [row for row in _listed(facts, package) if spec.contains(row.version, prereleases=True)]
    if not matching:
        return f"{package}{spec} is not known"
    row = matching[-1]
    return f"{package} {row.version} takes torch{_effective(facts, row) or ' of any version'}"


def _effective(facts: Facts, row: MemberRow) -> str:
    lines = [line for line, _ in extra_requirements(facts, row.package, row.version)]
    corrected = [line.removeprefix("torch") for line in lines if Requirement(line).name == "torch"]
    return ",".join(corrected) or row.torch


def _one_member(facts: Facts, package: str, spec: SpecifierSet, torch: SpecifierSet) -> FamilyMismatch:
    because = [_takes(facts, package, spec)]
    matching = [row.version for row in _listed(facts, package) if spec.contains(row.version, prereleases=True)]
    if matching:
        because += [edge.reason for _, edge in extra_requirements(facts, package, matching[-1])]
    if package in facts.ended:
        because.append(facts.ended[package].reason)
    asked = f"{package}{spec}"
    return FamilyMismatch(
        f"no {asked} goes with torch{torch}: {'; '.join(because)}", hint=_advice(facts, torch, package)
    )


def _advice(facts: Facts, torch: SpecifierSet, package: str = "") -> str:
    """The set that fits the torch that was asked for, and, beside it, the torch that a member without one needs."""
    newest = next((row for row in reversed(facts.torch) if torch.contains(row.version, prereleases=True)), None)
    advice: list[str] = []
    if newest:
        fitting = fitting_set(facts, newest.version)
        names = [f"torch {newest.version}", *(f"{name} {version}" for name, version in fitting.items())]
        advice.append(f"what goes together: {', '.join(names)}")
        if package and package not in fitting and package != "triton":
            row = _listed(facts, package)[-1]
            advice.append(f"leave {package} out, or take {package} {row.version} with torch{_effective(facts, row)}")
    return "; ".join(advice) or "leave one of the versions open"
