"""The torch family, and other packages whose metadata allows what they do not work with. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.diagnostics.audit.cuda import named_indexes
from envspec.diagnostics.audit.types import Audit, Finding, Required, Rule, Severity
from envspec.facts.tables import EdgeRow, Facts, matching_rows, numeric, rows_with
from envspec.facts.torch import MEMBERS, family_mismatch, fitting_set
from envspec.origins import INDEX_FAMILY
from envspec.spec.requirements import RequirementKind

EXCLUDES: Final = Rule("ENV101", Severity.ERROR, "requirements on the torch family exclude each other")
FAMILY: Final = Rule("ENV102", Severity.ERROR, "the torch family that installers choose does not import together")
BESIDE: Final = Rule(
    "ENV103", Severity.ERROR, "a package does not work with the versions that installers choose with it"
)
MISNAMED: Final = Rule("ENV104", Severity.WARNING, "a name on the index belongs to another package")
SETUPTOOLS: Final = Rule("ENV105", Severity.WARNING, "a package does not work with the newest setuptools")

#: Up to this Python, environments have a setuptools, which pip keeps; uv's have none. Source: documentation of venv,
#: changed in 3.12.
_WITH_SETUPTOOLS: Final = (3, 11)
_FAMILY: Final = frozenset({"torch", "torchcodec", *MEMBERS})


def requested(audit: Audit) -> Iterator[Finding]:
    """What the sources' own lines show, whatever an index has."""
    yield from excluding(audit)
    for required in audit.required:
        row = audit.facts.misnamed.get(required.name)
        if row is None or required.requirement.kind is not RequirementKind.NAME:
            continue
        # A name whose sdists are the right package is no mistake; one with a placeholder is, in that release alone.
        is_wrong = not row.placeholder or required.pin == row.placeholder
        if is_wrong and not row.sdists:
            todo = row.hint or f"write `{row.instead}`"
            what = f"{required.name} is not the package that its name suggests"
            yield Finding(MISNAMED, required.source, what, row.reason, row.source, todo)


def excluding(audit: Audit) -> Iterator[Finding]:
    """Requirements on the torch family of which no releases satisfy all."""
    together: dict[str, SpecifierSet] = {}
    for each in (*audit.required, *audit.bounds):
        together[each.name] = together.get(each.name, SpecifierSet()) & each.requirement.specifier
    listed = {}
    for each in audit.required:
        if not _is_unlisted(audit, each):
            listed[each.name] = together[each.name]
    mismatch = family_mismatch(_facts(audit), listed)
    if mismatch is None:
        return
    named = [name for name in (*MEMBERS, "triton", "torch") if listed.get(name)]
    excluded = [name for name in named if name in mismatch.packages]
    why = mismatch.because or "each release of a member is made for one torch"
    fact = "metadata of the releases (envspec/data/family.toml)"
    todo = mismatch.hint or "leave one of the versions open"
    yield Finding(EXCLUDES, audit.bringing((excluded or named)[0]), mismatch.what, why, fact, todo)


def taken(audit: Audit) -> Iterator[Finding]:
    """Versions that installers choose, and that a fact says do not work together."""
    broken: dict[str, list[tuple[EdgeRow, str]]] = {}
    for edge in _facts(audit).edges:
        found = audit.chosen(edge.package)
        if found is None or not SpecifierSet(edge.versions).contains(found.version, prereleases=True):
            continue
        for line in map(Pep508, edge.requires):
            other = audit.chosen(line.name)
            if other is None or line.specifier.contains(Version(other.version).public, prereleases=True):
                continue
            if _is_sure(audit, edge.package) and _is_sure(audit, line.name):
                broken.setdefault(str(line), []).append((edge, found.version))
    for text, edges in broken.items():
        line = Pep508(text)
        if other := audit.chosen(line.name):
            yield _broken(audit, line, other.version, edges)


def _is_sure(audit: Audit, name: str) -> bool:
    """Whether a package has the version that is in `taken`, which is of what the default index has."""
    # A pin counts whatever else is installed.
    if any(each.pin for each in audit.requiring(name)) or name in audit.versions():
        return True
    # torch has a bound of its own: see `torch_bound`.
    is_from_pytorch = name in INDEX_FAMILY and name != "torch"
    has_index = any(not each.is_extra for each in named_indexes(audit))
    return not audit.is_partial and not (is_from_pytorch and has_index)


def _broken(audit: Audit, line: Pep508, other: str, edges: Sequence[tuple[EdgeRow, str]]) -> Finding:
    """What is wrong with packages that do not work with the version of another one.

    line: what they work with. other: the version that installers choose instead.
    edges: what requires the line, with the chosen version of each one's package.
    """
    edge = edges[0][0]
    names: list[str] = []
    reasons: dict[str, None] = {}
    facts: dict[str, None] = {}
    for each, version in edges:
        names.append(f"{each.package} {version}")
        reasons[each.reason] = facts[each.source] = None
    are, work = "are", "work"
    if len(edges) == 1:
        are, work = "is", "works"
    what = f"{', '.join(names)} {are} chosen with {line.name} {other}, and {work} with {line} only"
    rule, why = BESIDE, "; ".join(reasons)
    is_kept = numeric(audit.target.python.series) <= _WITH_SETUPTOOLS or audit.is_python_assumed
    if line.name == "setuptools" and is_kept:
        rule = SETUPTOOLS
        why += "; an older setuptools that is there already, as in python -m venv, is kept by pip"
    elif {edge.package, line.name} <= _FAMILY:
        rule = FAMILY
    todo = _other_release(audit, line, other, edge)
    if not todo:
        todo = f"require `{line}`"
        if len(edges) == 1:
            todo += f", or a {edge.package} that is not {edge.versions}"
    return Finding(rule, audit.bringing(edge.package), what, why, "; ".join(facts), todo)


def _other_release(audit: Audit, line: Pep508, other: str, edge: EdgeRow) -> str:
    """The release of a package for the torch that installers choose; empty if none is known."""
    if line.name != "torch":
        return ""
    torch = Version(other).public
    fitting = fitting_set(audit.facts, torch).get(edge.package)
    if not fitting:
        return ""
    todo = f"write `{edge.package}=={fitting}`, the release for torch {torch}"
    if audit.torch and audit.torch.row is audit.facts.torch[-1] and line.specifier:
        todo += f", or `torch{line.specifier}`"
    return todo


def _is_unlisted(audit: Audit, each: Required) -> bool:
    """Whether it pins a release of a member that the data does not list: then nothing is known of it."""
    rows = list(rows_with(audit.facts.members, package=each.name))
    if not rows or not each.pin:
        return False
    return not matching_rows(rows, each.requirement.specifier)


def _facts(audit: Audit) -> Facts:
    """Those for the CPU alone if it is known that torch is no CUDA build."""
    has_cuda = audit.torch is None or audit.torch.cuda is not None
    if has_cuda and audit.target.platform.is_linux:
        return audit.facts
    return audit.facts.without_cuda()
