"""Outcomes side by side: checks, findings, fingerprints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from envspec.conformance.results import Kind, Level, Status
from envspec.receipt.comparison import Line, Weight
from envspec.receipt.values import CheckRow, FindingRow, FingerprintRow, Receipt

K = TypeVar("K")


def ordered(rows: Iterable[Iterable[K]]) -> list[K]:
    """Every key of several tables once, in the order in which they come."""
    return list(dict.fromkeys(key for row in rows for key in row))


def check_lines(receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Checks whose outcome is not the same."""
    rows = [{check.check: check for check in receipt.checks} for receipt in receipts]
    for name in ordered(rows):
        found = [row.get(name) for row in rows]
        values = tuple(_outcome(check) for check in found)
        if len(set(values)) > 1:
            why = next((check.reason for check in found if check and check.status is not Status.PASSED), "")
            yield Line(name, values, Weight.DIFFERS, why)


def _outcome(check: CheckRow | None) -> str:
    if check is None:
        return "not asked for"
    return f"{check.status.value}, {check.cause.value}" if check.cause else check.status.value


def finding_lines(receipts: Sequence[Receipt]) -> Iterator[Line]:
    """Findings that judge, and those that were not run, of checks that all receipts have.

    Whether a part was run or only informs is no difference by itself: an image is pulled once.
    """
    rows = [
        {(check.check, each.name, each.unit): each for check in receipt.checks for each in check.findings}
        for receipt in receipts
    ]
    shared = set.intersection(*({check.check for check in receipt.checks} for receipt in receipts))
    for check, name, unit in ordered(rows):
        if check not in shared:
            continue
        found = [row.get((check, name, unit)) for row in rows]
        outcomes = {_judged(each) for each in found}
        values = tuple(_value(each) for each in found)
        if len(outcomes) > 1:
            weight = Weight.DIFFERS if outcomes & {"passed", "failed"} else Weight.INFORMS
            yield Line(f"{check}: {name}", values, weight, _told(found))
        elif "informs" not in outcomes and len(set(values)) > 1:
            yield Line(f"{check}: {name}", values, Weight.INFORMS, _apart(found))


def _judged(finding: FindingRow | None) -> str:
    if finding is None:
        return "not there"
    if finding.kind in (Kind.NOT_RUN, Kind.INFORMING):
        return "not run" if finding.kind is Kind.NOT_RUN else "informs"
    return "passed" if finding.ok else "failed"


def _value(finding: FindingRow | None) -> str:
    if finding is None:
        return ""
    outcome = _judged(finding)
    if finding.value is None:
        return outcome
    return f"{outcome}, {finding.value:.6g} {finding.unit}".rstrip()


def _told(found: Sequence[FindingRow | None]) -> str:
    return next((each.told for each in found if each and each.ok is not True and each.told), "")


def _apart(found: Sequence[FindingRow | None]) -> str:
    """How far the largest value of a number is from the smallest."""
    values = [abs(each.value) for each in found if each and each.value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    if not low or high - low <= 1e-6 * low:
        return ""
    if high < 1.1 * low:
        return f"{100 * (high / low - 1):.2g} % apart"
    return f"the largest is {high / low:.3g} times the smallest"


def fingerprint_lines(names: Sequence[str], receipts: Sequence[Receipt]) -> Iterator[Line]:
    rows = [
        {(check.check, each.name): each for check in receipt.checks for each in check.fingerprints}
        for receipt in receipts
    ]
    for check, name in ordered(rows):
        found = [row.get((check, name)) for row in rows]
        # The same numbers go in only with the same seed, and sizes are the suite's own.
        inputs = [f"seed {receipt.seed}, envspec {receipt.envspec}" for receipt in receipts]
        line = _fingerprint(f"{check}: {name}", names, found, inputs)
        if line:
            yield line


def _fingerprint(
    what: str, names: Sequence[str], found: Sequence[FingerprintRow | None], inputs: Sequence[str]
) -> Line | None:
    """Hashes of the same computation: exact ones must agree, others where their keys do. inputs: of each receipt."""
    values = tuple(each.digest if each else "" for each in found)
    if len({value for value in values if value}) == 1:
        return None
    groups: dict[tuple[Level, str], set[str]] = {}
    for each, given in zip(found, inputs, strict=True):
        if each:
            key = ", ".join(filter(None, [each.key, given])) if len(set(inputs)) > 1 else each.key
            groups.setdefault((each.level, key), set()).add(each.digest)
    if any(level is Level.UNIVERSAL and len(digests) > 1 for (level, _), digests in groups.items()):
        told = "exact results that are the same on every machine are not: one of them computes wrongly"
        return Line(what, values, Weight.FAULT, f"{told} ({_odd(names, values)})")
    if any(len(digests) > 1 for digests in groups.values()):
        return Line(what, values, Weight.INFORMS, "the same key, and other bits: floats that were summed otherwise")
    if len(groups) > 1:
        keys = "; ".join(sorted(key for _, key in groups))
        return Line(what, values, Weight.INFORMS, f"not compared, their keys differ: {keys}")
    return None


def _odd(names: Sequence[str], values: Sequence[str]) -> str:
    """Who is not with the most."""
    told = [value for value in values if value]
    most = max(told, key=told.count)
    if 2 * told.count(most) <= len(told):
        return "which one can't be told from these"
    odd = [name for name, value in zip(names, values, strict=True) if value not in ("", most)]
    return f"not as the most: {', '.join(odd)}"
