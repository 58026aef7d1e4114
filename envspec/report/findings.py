"""Findings of a receipt as rows of a table; those that are equal on several GPUs are one row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from envspec.conformance.results import CheckFinding
from envspec.conformance.results import Kind as FindingKind
from envspec.conformance.stragglers import stragglers
from envspec.context import ranges
from envspec.receipts.metrics import Better, better
from envspec.receipts.model import Receipt
from envspec.report.format import Row, Table, amount, listing, row, share

#: Limits of what fraction of a bound is shown.
LEAST: Final = 1e-6
_MOST: Final = 1e3
#: As the suite begins or ends names of findings.
_GPU: Final = re.compile(r"\bGPU (\d+)\b")


class FoldedFinding(Struct, frozen=True):
    """Findings that differ in the number of their GPU, their value and what was observed. One: as it is."""

    findings: tuple[CheckFinding, ...]

    @property
    def first(self) -> CheckFinding:
        return self.findings[0]

    @property
    def name(self) -> str:
        """`GPU 0-7: bf16`; of pairs of GPUs `GPU * to GPU *: 56 times`."""
        if len(self.findings) == 1:
            return self.first.name
        gpus: set[int] = set()
        for each in self.findings:
            numbers = _GPU.findall(each.name)
            if len(numbers) > 1:
                return f"{_GPU.sub('GPU *', self.first.name)}, {len(self.findings)} times"
            gpus.update(map(int, numbers))
        return _GPU.sub(f"GPU {ranges(sorted(gpus))}", self.first.name)

    @property
    def value(self) -> str:
        """`51 TFLOP/s`, `49 to 51 TFLOP/s`, with the largest spread; empty without a number."""
        values = [each.value for each in self.findings if each.value is not None]
        if not values:
            return ""
        unit = self.first.unit
        text = amount(max(values), unit)
        if amount(min(values), unit) != text:
            # Bytes have a unit of their own for each size.
            low = amount(min(values), unit if unit == "bytes" else "")
            text = f"{low} to {text}"
        spreads = [each.spread for each in self.findings if each.spread is not None]
        if spreads:
            text += f", spread {share(max(spreads))}"
        return text

    @property
    def used(self) -> float:
        """The largest fraction of the bound."""
        return max(map(used, self.findings))

    @property
    def detail(self) -> str:
        """What was observed: of several, the first one's if they differ."""
        details = {each.detail for each in self.findings}
        if len(details) == 1:
            return self.first.detail
        return f"{self.first.detail} (the first of {len(self.findings)})"


def fold(findings: Iterable[CheckFinding]) -> list[FoldedFinding]:
    """The findings in their order, each in one of the results; those that failed are first.

    What failed on some GPUs only is not folded, nor is a rate of a GPU that is slower than the others by more than the
    suite's rule allows.
    """
    found = list(findings)
    fine = {_GPU.sub("", each.name) for each in found if each.ok}
    groups: dict[object, list[CheckFinding]] = {}
    for number, each in enumerate(found):
        name = _GPU.sub("", each.name)
        is_alone = (each.ok is False and name in fine) or name == each.name
        key: object = number
        if not is_alone:
            # Why something was not run is what its row is about.
            why = each.detail if is_not_run(each) else ""
            has_value = each.value is not None
            key = (name, each.kind, each.ok, each.unit, each.bound, each.relation, each.formula, has_value, why)
        groups.setdefault(key, []).append(each)
    folded: list[FoldedFinding] = []
    for group in groups.values():
        folded += map(FoldedFinding, _slow_apart(group))
    return sorted(folded, key=lambda each: each.first.ok is not False)


def _slow_apart(findings: Sequence[CheckFinding]) -> Iterator[tuple[CheckFinding, ...]]:
    """Each rate of one GPU that stands out because it is lower, then the others.

    Rates between pairs of GPUs stay together: pairs with another connection have another rate, and no fault. So do
    times: a cold cache doubles them.
    """
    rates = {}
    for number, each in enumerate(findings):
        is_of_one = len(_GPU.findall(each.name)) == 1
        if is_of_one and each.value is not None and better(each.unit) is Better.HIGHER:
            rates[str(number)] = each.value
    shares = stragglers(rates)
    others = []
    for number, each in enumerate(findings):
        if shares.get(str(number), 0.0) < 0:
            yield (each,)
        else:
            others.append(each)
    yield tuple(others)


def fold_checks(receipt: Receipt, shown: Callable[[CheckFinding], bool]) -> Iterator[tuple[str, FoldedFinding]]:
    """Names of checks and their findings that are `shown`."""
    for check in receipt.checks:
        for each in fold(filter(shown, check.findings)):
            yield check.check, each


def table(title: str, receipt: Receipt, shown: Callable[[CheckFinding], bool], *, is_folded: bool = True) -> Table:
    """The findings that are `shown`, by check."""
    rows = []
    for check, each in fold_checks(receipt, shown):
        first = each.first
        part = share(each.used) if each.value and has_bound(first) else ""
        rows.append(row(check, each.name, outcome(first), each.value, bound(first), part, each.detail, first.source))
    titles = "check|finding|outcome:outcome|value:number|bound|used:number|observed|source of the bound"
    return listing(title, rows, titles, is_folded=is_folded)


def parts_not_run(receipt: Receipt) -> list[Row]:
    """Check, name and reason of what was not run of a check."""
    return [row(check, each.name, each.detail) for check, each in fold_checks(receipt, is_not_run)]


def is_not_run(finding: CheckFinding) -> bool:
    return finding.kind is FindingKind.NOT_RUN


def has_bound(finding: CheckFinding) -> bool:
    return finding.bound is not None


def has_number(finding: CheckFinding) -> bool:
    return finding.value is not None or has_bound(finding)


def bound(finding: CheckFinding) -> str:
    """`<= 3.9e-3 (4 u, u = 2^-10)`; empty without a bound."""
    if finding.bound is None:
        return ""
    limit = f"{finding.relation} {amount(finding.bound, finding.unit)}"
    # A formula without an operator is the number itself.
    if " " in finding.formula.strip():
        return f"{limit} ({finding.formula})"
    return limit


def outcome(finding: CheckFinding) -> str:
    """`passed`, `failed`, `not run` or `info`."""
    if is_not_run(finding):
        return "not run"
    return {True: "passed", False: "failed", None: "info"}[finding.ok]


def used(finding: CheckFinding) -> float:
    """The fraction of its bound that a number uses: 1 is the bound. NaN is far beyond it."""
    value, bound = finding.value, finding.bound
    if value is None or bound is None or math.isnan(value):
        return _MOST
    part = _divided(value, bound)
    if finding.relation == ">=":
        part = _divided(bound, value)
    return min(max(part, LEAST), _MOST)


def _divided(one: float, other: float) -> float:
    if other:
        return one / other
    if one > 0:
        return _MOST
    return LEAST
