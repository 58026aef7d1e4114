"""The Python that the sources name, and the extensions that are compiled for it and torch. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.diagnostics.audit.cuda import compiled_extensions
from envspec.diagnostics.audit.types import Audit, Finding, Rule, Severity
from envspec.facts.extensions import Label
from envspec.facts.tables import ExtensionRow, numeric
from envspec.importers.types import Clue
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
    return ".".join(map(str, numbers[:2])) if len(numbers) > 1 and text[:1].isdigit() else ""


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
    named = {series_of(each.value): each.source for each in reversed(audit.draft.pythons)}
    versions = [audit.target.python.version, *(f"{each}.{patch}" for each in named if each for patch in (0, 9))]
    for clue in audit.draft.pythons:
        bound = specifier_of(clue)
        if bound is not None and not any(bound.contains(each, prereleases=True) for each in versions):
            first = named.get(series, "--python")
            what = f"Python {series} ({first}) is not what this line requires: {clue.value}"
            todo = "name one Python in all of them"
            yield Finding(SEVERAL, clue.source, what, clue.why or "it names a Python", "the sources", todo)


def extensions(audit: Audit) -> Iterator[Finding]:
    """Extensions that have no wheel for torch on the index, and are compiled beside whichever torch is there."""
    for name in compiled_extensions(audit):
        found = (audit.taken or {}).get(name)
        row = audit.facts.extension(name, found.version if found else "")
        if row is None:
            continue
        source = audit.first(name) or audit.bringing(name)
        built = f"{name} {found.version}" if found else f"{name} (from its repository)"
        minutes = f", {row.minutes} minutes of one processor for one GPU" if row.minutes else ""
        why = f"the index has no wheel of it{minutes}" if found else f"git and URLs name sources{minutes}"
        yield Finding(
            COMPILED,
            source,
            f"{built} is compiled at installation, beside {audit.torch or 'whichever torch is installed'}",
            why,
            row.source,
            _wheel(audit, row, found.version if found else "") or "pin torch, and build the wheel once",
        )


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
    known = ", ".join(sorted(row.wheels, key=numeric))
    return f"use a torch for which the project publishes wheels ({known})" if known else ""


def _has_upper_bound(specifier: SpecifierSet) -> bool:
    return any(clause.operator in ("==", "===", "~=", "<", "<=") for clause in specifier)


def loose(audit: Audit) -> Iterator[Finding]:
    """What another day gives another environment; one line for each kind."""
    locked = audit.draft.versions
    named = [each for each in audit.required if each.requirement.kind is RequirementKind.NAME]
    unlocked = [each for each in named if each.requirement.name not in locked]
    open_ended = [each for each in unlocked if not _has_upper_bound(each.requirement.specifier)]
    if open_ended:
        names = list(dict.fromkeys(each.requirement.name for each in open_ended))
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        what = f"{len(names)} {'requirement has' if len(names) == 1 else 'requirements have'} no upper bound: {shown}"
        why = "another day may install other releases"
        todo = "lock them (`envspec init`, then `envspec lock`)"
        yield Finding(UNBOUNDED, open_ended[0].source, what, why, "the sources", todo)
    for each in audit.required:
        if each.requirement.kind is RequirementKind.GIT and each.requirement.url:
            ref = read_git(each.requirement.url).ref
            if not re.fullmatch("[0-9a-f]{7,}", ref):
                where = f"`{ref}`" if ref else "the default branch"
                what = f"{each.requirement.name} is fetched from {where} of its repository"
                why = "a branch moves, and a tag can be moved"
                yield Finding(BRANCH, each.source, what, why, "the sources", "name a commit")
    for entry in audit.ledger:
        words = entry.text.split()
        if len(words) > 1 and words[0].upper() == "FROM":
            image = next((word for word in words[1:] if not word.startswith("--")), "")
            if image.endswith(":latest"):
                why = "the tag moves with each release"
                yield Finding(
                    LATEST, entry.source, f"{image} has no version", why, "the sources", "name a tag or a digest"
                )


def unread(audit: Audit) -> Iterator[Finding]:
    """Lines of which nothing is known."""
    from envspec.importers.types import Outcome

    unread = (Outcome.NOT_UNDERSTOOD, Outcome.NOT_DECIDED)
    lines = [each for each in audit.ledger if each.outcome in unread]
    if lines:
        what = f"{len(lines)} {'line is' if len(lines) == 1 else 'lines are'} not understood, and not examined"
        why = f"the first one: {lines[0].reason or lines[0].text}"
        yield Finding(UNREAD, lines[0].source, what, why, "the sources", "see the ledger of `envspec init`")
