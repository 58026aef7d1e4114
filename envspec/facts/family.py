"""The torch family: which releases of torchvision, torchaudio, torchtext, torchdata and triton go with which torch.

A release's own metadata is the rule; where it lies or says nothing, a `[[edge]]` row of `envspec/data/family.toml`
corrects it. All checks here are pure and speak of what is known only: where a release is not in the data they let it
pass and leave the answer to the resolver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts.load import Facts
from envspec.facts.reach import named_versions, probes_outside
from envspec.facts.rows import EdgeRow, MemberRow
from envspec.facts.torch import split_label

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
    torch, _ = split_label(requests.get("torch", SpecifierSet()))
    asked = [_asked(facts, name, requests[name]) for name in (*MEMBERS, "triton") if name in requests]
    candidates = list(_torch_candidates(facts, torch))
    if not candidates:
        return None
    if any(all(_may_fit(facts, member, version) for member in asked) for version in candidates):
        return None
    for member in asked:
        if not any(_may_fit(facts, member, version) for version in candidates):
            return _one_member(facts, member, torch)
    reasons = "; ".join(_takes(facts, member) for member in asked)
    sets = dict.fromkeys(_set_for(facts, member, torch) for member in asked)
    return FamilyMismatch(
        f"{', '.join(map(str, asked))}: no torch release goes with all of them ({reasons})",
        hint=f"what goes together: {'; or '.join(sets)}",
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for a member. listed: releases of the data that match; older, newer: some that match beyond them."""

    package: str
    spec: SpecifierSet
    listed: tuple[MemberRow, ...]
    older: tuple[str, ...]
    newer: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package}{self.spec}"


def _asked(facts: Facts, package: str, spec: SpecifierSet) -> _Asked:
    rows = _listed(facts, package)
    if not rows:
        return _Asked(package, spec, (), (), ())
    first, last = Version(rows[0].version), Version(rows[-1].version)
    named = named_versions(spec)
    tried = (
        Version(f"{major}.{minor}.{patch}")
        for major in range(last.major + 2)
        for minor in range(40)
        for patch in range(3)
    )
    beyond = [version for version in (*named, *tried) if not first <= version <= last]
    matching = [version for version in beyond if spec.contains(version, prereleases=True)]
    return _Asked(
        package,
        spec,
        tuple(row for row in rows if spec.contains(row.version, prereleases=True)),
        tuple(str(version) for version in matching if version < first),
        () if _ended(facts, package) else tuple(str(version) for version in matching if version > last),
    )


def _ended(facts: Facts, package: str) -> bool:
    row = facts.ended.get(package)
    return row is not None and row.confidence == "high"


def _torch_candidates(facts: Facts, torch: SpecifierSet) -> Iterator[Version]:
    for row in facts.torch:
        if torch.contains(row.version, prereleases=True):
            yield Version(row.version)
    for text in probes_outside(facts, torch):
        if torch.contains(text, prereleases=True):
            yield Version(text)


def _may_fit(facts: Facts, member: _Asked, torch: Version) -> bool:
    """Is there a release that matches, in the data or beyond it, that may go with this torch?"""
    if member.package == "triton":
        return _triton_may_fit(facts, member.spec, torch)
    if any(_accepts(facts, row, str(torch)) for row in member.listed):
        return True
    older = member.older if _older_may_fit(facts, member.package, torch) else ()
    newer = member.newer if _newer_may_fit(facts, member.package, torch) else ()
    return any(_edges_allow(facts, member.package, version, str(torch)) for version in (*older, *newer))


def _older_may_fit(facts: Facts, package: str, torch: Version) -> bool:
    """Where the first release of the data pins torch exactly, older ones pinned older torches."""
    first = _listed(facts, package)[0].torch
    return not first.startswith("==") or torch < Version(first.removeprefix("=="))


def _newer_may_fit(facts: Facts, package: str, torch: Version) -> bool:
    """Newer releases go with the torches that the last one of the data takes, or with later ones."""
    last = _listed(facts, package)[-1]
    taken = [row.version for row in facts.torch if _accepts(facts, last, row.version)]
    return not taken or torch >= Version(taken[0])


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


def _takes(facts: Facts, member: _Asked) -> str:
    """What the releases that a request allows take: `torchvision 0.19.0 takes torch==2.4.0`."""
    if member.package == "triton":
        torches = [
            row.torch for row in facts.tritons.values() if _triton_may_fit(facts, member.spec, Version(row.torch))
        ]
        return f"{member} is pinned by torch {', '.join(torches)}" if torches else f"no torch pins {member}"
    if not member.listed:
        return f"{member} is not known"
    row = member.listed[-1]
    return f"{row.package} {row.version} takes torch{_effective(facts, row) or ' of any version'}"


def _effective(facts: Facts, row: MemberRow) -> str:
    lines = [line for line, _ in extra_requirements(facts, row.package, row.version)]
    corrected = [line.removeprefix("torch") for line in lines if Requirement(line).name == "torch"]
    return ",".join(corrected) or row.torch


def _set_for(facts: Facts, member: _Asked, torch: SpecifierSet) -> str:
    """The set of the newest known torch that goes with one member; for what goes with older torches, what it takes."""
    for row in reversed(facts.torch):
        if torch.contains(row.version, prereleases=True) and _may_fit(facts, member, Version(row.version)):
            return _told_set(facts, row.version)
    return _takes(facts, member)


def _told_set(facts: Facts, torch: str) -> str:
    fitting = fitting_set(facts, torch)
    return ", ".join([f"torch {torch}", *(f"{name} {version}" for name, version in fitting.items())])


def _one_member(facts: Facts, member: _Asked, torch: SpecifierSet) -> FamilyMismatch:
    package = member.package
    because = [_takes(facts, member)]
    if member.listed:
        because += [edge.reason for _, edge in extra_requirements(facts, package, member.listed[-1].version)]
    if package in facts.ended:
        because.append(facts.ended[package].reason)
    newest = next((row for row in reversed(facts.torch) if torch.contains(row.version, prereleases=True)), None)
    advice: list[str] = []
    if newest:
        advice.append(f"what goes together: {_told_set(facts, newest.version)}")
        if package != "triton" and package not in fitting_set(facts, newest.version):
            row = _listed(facts, package)[-1]
            advice.append(f"leave {package} out, or take {package} {row.version} with torch{_effective(facts, row)}")
    return FamilyMismatch(
        f"no {member} goes with torch{torch}: {'; '.join(because)}",
        hint="; ".join(advice) or "leave one of the versions open",
    )
