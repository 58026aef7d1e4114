"""The torch family, and other packages whose metadata allows what they do not work with. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.diagnostics.audit.cuda import named_indexes
from envspec.diagnostics.audit.types import Audit, Finding, Required, Rule, Severity
from envspec.facts.tables import EdgeRow, numeric
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
    facts = audit.facts if _has_cuda(audit) else audit.facts.without_cuda()
    together: dict[str, SpecifierSet] = {}
    for each in (*audit.required, *audit.bounds):
        name = each.requirement.name
        together[name] = together.get(name, SpecifierSet()) & each.requirement.specifier
    names = {each.requirement.name for each in audit.required if not _is_unlisted(audit, each)}
    mismatch = family_mismatch(facts, {name: bound for name, bound in together.items() if name in names})
    if mismatch is not None:
        named = [name for name in (*MEMBERS, "triton", "torch") if name in names and together[name]]
        source = audit.bringing(next((name for name in named if name in mismatch.message), named[0]))
        text, _, why = mismatch.message.partition(": ")
        yield Finding(
            EXCLUDES,
            source,
            text if why else mismatch.message,
            why or "each release of a member is made for one torch",
            "metadata of the releases (envspec/data/family.toml)",
            mismatch.hint or "leave one of the versions open",
        )
    for required in audit.required:
        row = audit.facts.misnamed.get(required.requirement.name)
        # A name whose sdists are the right package is no mistake; one with a placeholder is, in that release alone.
        is_named = required.requirement.kind is RequirementKind.NAME
        if row and is_named and not row.sdists and (not row.placeholder or required.pin == row.placeholder):
            todo = row.hint or f"write `{row.instead}`"
            what = f"{required.requirement.name} is not the package that its name suggests"
            yield Finding(MISNAMED, required.source, what, row.reason, row.source, todo)


def taken(audit: Audit) -> Iterator[Finding]:
    """Versions that installers choose, and that a fact says do not work together."""
    facts = audit.facts if _has_cuda(audit) else audit.facts.without_cuda()
    broken: dict[str, list[tuple[EdgeRow, str]]] = {}
    for edge in facts.edges:
        found = (audit.taken or {}).get(edge.package)
        if found is None or not SpecifierSet(edge.versions).contains(found.version, prereleases=True):
            continue
        for line in map(Pep508, edge.requires):
            other = (audit.taken or {}).get(line.name)
            if other is None or line.specifier.contains(Version(other.version).public, prereleases=True):
                continue
            if _is_sure(audit, edge.package) and _is_sure(audit, line.name):
                broken.setdefault(str(line), []).append((edge, found.version))
    for text, edges in broken.items():
        yield _beside(audit, Pep508(text), edges)


def _is_sure(audit: Audit, name: str) -> bool:
    """Whether a package has the version that is in `taken`, which is of what the default index has."""
    if audit.is_pinned(name) or name in audit.versions():
        return True
    # torch has a bound of its own: see `torch_bound`.
    is_from_pytorch = name in INDEX_FAMILY and name != "torch"
    has_index = any(not each.is_extra for each in named_indexes(audit))
    return not audit.is_partial and not (is_from_pytorch and has_index)


def _beside(audit: Audit, line: Pep508, edges: Sequence[tuple[EdgeRow, str]]) -> Finding:
    """edges: with the chosen version of each one's package; all require the line."""
    edge, other = edges[0][0], audit.taken[line.name].version if audit.taken else ""
    torch = Version(other).public if line.name == "torch" else ""
    fitting = fitting_set(audit.facts, torch).get(edge.package) if torch else None
    todo = f"require `{line}`"
    if fitting:
        todo = f"write `{edge.package}=={fitting}`, the release for torch {torch}"
        if audit.torch and audit.torch.row is audit.facts.torch[-1] and line.specifier:
            todo += f", or `torch{line.specifier}`"
    elif len(edges) == 1:
        todo += f", or a {edge.package} that is not {edge.versions}"
    names = ", ".join(f"{each.package} {version}" for each, version in edges)
    are, work = ("is", "works") if len(edges) == 1 else ("are", "work")
    what = f"{names} {are} chosen with {line.name} {other}, and {work} with {line} only"
    why = "; ".join(dict.fromkeys(each.reason for each, _ in edges))
    rule = FAMILY if {edge.package, line.name} <= _FAMILY else BESIDE
    is_kept = numeric(audit.target.python.series) <= _WITH_SETUPTOOLS or audit.is_python_assumed
    if line.name == "setuptools" and is_kept:
        rule, why = (
            SETUPTOOLS,
            f"{why}; an older setuptools that is there already, as in python -m venv, is kept by pip",
        )
    fact = "; ".join(dict.fromkeys(each.source for each, _ in edges))
    return Finding(rule, audit.bringing(edge.package), what, why, fact, todo)


def _is_unlisted(audit: Audit, each: Required) -> bool:
    """Whether it pins a release of a member that the data does not list: then nothing is known of it."""
    rows = [row.version for row in audit.facts.members if row.package == each.requirement.name]
    return bool(rows and each.pin) and not any(
        each.requirement.specifier.contains(row, prereleases=True) for row in rows
    )


def _has_cuda(audit: Audit) -> bool:
    """Whether torch is a CUDA build, as far as it is known."""
    return audit.target.platform.is_linux and (audit.torch is None or audit.torch.cuda is not None)
