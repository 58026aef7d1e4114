"""Does a specifier reach beyond the releases that the data has?"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envspec.facts.load import Facts
from envspec.facts.rows import TorchRelease


class Reach(Enum):
    """Where a specifier's versions lie."""

    INSIDE = "inside"
    BOTH = "both"
    ONLY_OUTSIDE = "only outside"


def reaches_past(facts: Facts, torch: SpecifierSet, as_of: datetime | None = None) -> Reach:
    """Does a torch specifier allow releases that the data does not have (older than the first row, or newer)?

    Asked by trying versions: a specifier has no bounds of its own. Only those that could be out by `as_of` count.
    """
    inside = any(torch.contains(row.version, prereleases=True) for row in facts.torch if in_time(row, as_of))
    outside = any(torch.contains(version, prereleases=True) for version in probes_outside(facts, torch))
    if inside:
        return Reach.BOTH if outside else Reach.INSIDE
    return Reach.ONLY_OUTSIDE if outside else Reach.INSIDE


def probes_outside(facts: Facts, torch: SpecifierSet) -> list[str]:
    """Versions to try a specifier with: below the first release of the data, above the last, and those it names."""
    first, last = Version(facts.torch[0].version), Version(facts.torch[-1].version)
    named = named_versions(torch)
    above = [Version(f"{last.major}.{last.minor + step}.0") for step in range(1, 10)]
    above += [Version(f"{last.major}.{last.minor}.{last.micro + step}") for step in range(1, 5)]
    above += [Version(f"{last.major + 1}.0.0")]
    below = [Version(f"{first.major}.{minor}.{patch}") for minor in range(first.minor) for patch in range(3)]
    below += [Version(text) for text in ("1.0.0", "1.8.0", "1.13.1")]
    around = [Version(f"{v.major}.{v.minor}.{v.micro + step}") for v in named for step in range(2)]
    return [str(version) for version in (*below, *above, *named, *around) if not first <= version <= last]


def named_versions(specifiers: SpecifierSet) -> list[Version]:
    """The versions that the clauses name; those of `===` that are none are left out."""
    named = (_version(clause.version.removesuffix(".*")) for clause in specifiers)
    return [version for version in named if version]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def in_time(row: TorchRelease, as_of: datetime | None) -> bool:
    """Was it out by then? A release without an upload time counts as out."""
    return as_of is None or row.uploaded is None or row.uploaded <= as_of
