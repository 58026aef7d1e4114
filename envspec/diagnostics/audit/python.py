"""The Python that the sources name, and the extensions that are compiled for it and torch. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.conformance.text import counted, some_of
from envspec.diagnostics.audit.cuda import compiled_extensions
from envspec.diagnostics.audit.types import Audit, Finding, Required, Rule, Severity
from envspec.facts.extensions import Label
from envspec.facts.tables import ExtensionRow, numeric
from envspec.importers.types import Clue, Outcome, Source
from envspec.spec.requirements import RequirementKind, read_git

SEVERAL: Final = Rule("ENV601", Severity.ERROR, "the sources name Pythons that exclude each other")
COMPILED: Final = Rule("ENV701", Severity.WARNING, "an extension of torch is compiled at installation")
UNBOUNDED: Final = Rule("ENV801", Severity.INFO, "requirements without an upper bound on their versions")
BRANCH: Final = Rule("ENV802", Severity.INFO, "a git requirement without a commit")
LATEST: Final = Rule("ENV803", Severity.INFO, "an image without a version")
UNREAD: Final = Rule("ENV901", Severity.INFO, "lines that envspec does not understand")


def series_of(text: str) -> str:
    """`3.11` of a series or an exact version; empty for a specifier."""
    numbers = numeric(text)
    if len(numbers) < 2 or not text[:1].isdigit():
        return ""
    return f"{numbers[0]}.{numbers[1]}"


def specifier_of(clue: Clue) -> SpecifierSet | None:
    """The bounds of a clue that is a specifier; None for a series or a version."""
    if series_of(clue.value):
        return None
    try:
        return SpecifierSet(clue.value)
    except InvalidSpecifier:
        return None


def pythons(audit: Audit) -> Iterator[Finding]:
    """The Python that is examined, against each line that bounds it: an image may have several Pythons, and a project
    runs with one of them.
    """
    series = audit.target.python.series
    versions = [audit.target.python.version]
    lines: dict[str, Source] = {}
    for clue in audit.draft.pythons:
        if named := series_of(clue.value):
            lines.setdefault(named, clue.source)
            versions += [f"{named}.0", f"{named}.9"]
    for clue in audit.draft.pythons:
        bound = specifier_of(clue)
        if bound is not None and not any(bound.filter(versions, prereleases=True)):
            what = f"Python {series} ({lines.get(series, '--python')}) is not what this line requires: {clue.value}"
            todo = "name one Python in all of them"
            yield Finding(SEVERAL, clue.source, what, clue.why or "it names a Python", "the sources", todo)


def extensions(audit: Audit) -> Iterator[Finding]:
    """Extensions that have no wheel for torch on the index, and are compiled beside whichever torch is there."""
    for name in compiled_extensions(audit):
        version, built = "", f"{name} (from its repository)"
        why = "git and URLs name sources"
        if found := audit.chosen(name):
            version, built = found.version, f"{name} {found.version}"
            why = "the index has no wheel of it"
        row = audit.facts.extension(name, version)
        if row is None:
            continue
        if row.minutes:
            why += f", {row.minutes} minutes of one processor for one GPU"
        what = f"{built} is compiled at installation, beside {audit.torch or 'whichever torch is installed'}"
        todo = _wheel(audit, row, version) or "pin torch, and build the wheel once"
        yield Finding(COMPILED, audit.bringing(name), what, why, row.source, todo)


def _wheel(audit: Audit, row: ExtensionRow, version: str) -> str:
    """Where its project publishes a wheel for the torch; empty if none is known."""
    torch = audit.torch
    if torch is None or torch.cuda is None or not row.pages or row.confidence == "unverified":
        return ""
    series = ".".join(torch.row.version.split(".")[:2])
    labels = [Label(series, variant) for variant in row.wheels.get(series, ())]
    fitting = [label for label in labels if label.serves(torch.cuda)]
    if fitting:
        label = max(fitting, key=lambda each: each.cuda_number)
        return f"use the project's wheel for {label}: {label.fill(row.pages[0], version)}"
    if not row.wheels:
        return ""
    known = ", ".join(sorted(row.wheels, key=numeric))
    return f"use a torch for which the project publishes wheels ({known})"


def loose(audit: Audit) -> Iterator[Finding]:
    """What another day gives another environment; one line for each kind."""
    open_ended = list(filter(_is_open_ended, audit.required))
    unlocked = [each for each in open_ended if each.name not in audit.draft.versions]
    if unlocked:
        names = list(dict.fromkeys(each.name for each in unlocked))
        have = "has" if len(names) == 1 else "have"
        what = f"{counted(len(names), 'requirement')} {have} no upper bound: {some_of(names, 5)}"
        why = "another day may install other releases"
        todo = "lock them (`envspec init`, then `envspec lock`)"
        yield Finding(UNBOUNDED, unlocked[0].source, what, why, "the sources", todo)
    yield from _branches(audit)
    for entry in audit.ledger:
        words = [word for word in entry.text.split() if not word.startswith("--")]
        if len(words) > 1 and words[0].upper() == "FROM" and words[1].endswith(":latest"):
            what, why = f"{words[1]} has no version", "the tag moves with each release"
            yield Finding(LATEST, entry.source, what, why, "the sources", "name a tag or a digest")


def _is_open_ended(required: Required) -> bool:
    """Whether it is a name whose newest version is not bounded."""
    if required.requirement.kind is not RequirementKind.NAME:
        return False
    return not any(clause.operator in ("==", "===", "~=", "<", "<=") for clause in required.requirement.specifier)


def _branches(audit: Audit) -> Iterator[Finding]:
    """Git requirements that name no commit."""
    for each in audit.required:
        if each.requirement.kind is not RequirementKind.GIT or not each.requirement.url:
            continue
        ref = read_git(each.requirement.url).ref
        if re.fullmatch("[0-9a-f]{7,}", ref):
            continue
        where = f"`{ref}`" if ref else "the default branch"
        what = f"{each.name} is fetched from {where} of its repository"
        why = "a branch moves, and a tag can be moved"
        yield Finding(BRANCH, each.source, what, why, "the sources", "name a commit")


def unread(audit: Audit) -> Iterator[Finding]:
    """Lines of which nothing is known."""
    unread = (Outcome.NOT_UNDERSTOOD, Outcome.NOT_DECIDED)
    lines = [each for each in audit.ledger if each.outcome in unread]
    if lines:
        are = "is" if len(lines) == 1 else "are"
        what = f"{counted(len(lines), 'line')} {are} not understood, and not examined"
        why = f"the first one: {lines[0].reason or lines[0].text}"
        yield Finding(UNREAD, lines[0].source, what, why, "the sources", "see the ledger of `envspec init`")
