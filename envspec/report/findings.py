"""Findings of a receipt as rows of a table; those that are equal on several GPUs are one row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from envspec.conformance.results import CheckFinding
from envspec.conformance.results import Kind as FindingKind
from envspec.conformance.stragglers import stragglers
from envspec.context import ranges
from envspec.receipts.metrics import Better, better
from envspec.receipts.model import Receipt
from envspec.report.format import Column, Kind, Plot, Table, amount, row, share

#: Limits of what fraction of a bound is shown.
LEAST: Final = 1e-6
_MOST: Final = 1e3
#: As the suite begins or ends names of findings.
_GPU: Final = re.compile(r"\bGPU (\d+)\b")


@dataclass(frozen=True, slots=True)
class FoldedFinding:
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
        numbers = [_GPU.findall(each.name) for each in self.findings]
        if any(len(each) > 1 for each in numbers):
            return f"{_GPU.sub('GPU *', self.first.name)}, {len(self.findings)} times"
        gpus = ranges(sorted({int(number) for each in numbers for number in each}))
        return _GPU.sub(f"GPU {gpus}", self.first.name)

    @property
    def value(self) -> str:
        """`51 TFLOP/s`, `49 to 51 TFLOP/s`, with the largest spread; empty without a number."""
        values = [each.value for each in self.findings if each.value is not None]
        if not values:
            return ""
        low, high = min(values), max(values)
        text = amount(high, self.first.unit)
        if amount(low, self.first.unit) != text:
            # Bytes have a unit of their own for each size.
            text = f"{amount(low, self.first.unit if self.first.unit == 'bytes' else '')} to {text}"
        spread = max((each.spread for each in self.findings if each.spread is not None), default=None)
        return text if spread is None else f"{text}, spread {share(spread)}"

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
        alike = (name, each.kind, each.ok, each.unit, each.bound, each.relation, each.formula, each.value is None)
        # Why something was not run is what its row is about.
        why = each.detail if each.kind is FindingKind.NOT_RUN else ""
        is_alone = (each.ok is False and name in fine) or name == each.name
        groups.setdefault(number if is_alone else (*alike, why), []).append(each)
    folded = [FoldedFinding(part) for each in groups.values() for part in _slow_apart(each)]
    return sorted(folded, key=lambda each: each.first.ok is not False)


def _slow_apart(findings: Sequence[CheckFinding]) -> Iterator[tuple[CheckFinding, ...]]:
    """Each rate of one GPU that stands out because it is lower, then the others.

    Rates between pairs of GPUs stay together: pairs with another connection have another rate, and no fault. So do
    times: a cold cache doubles them.
    """
    rates = {
        str(number): each.value
        for number, each in enumerate(findings)
        if each.value is not None and better(each.unit) is Better.HIGHER and len(_GPU.findall(each.name)) == 1
    }
    slow = {int(number) for number, share in stragglers(rates).items() if share < 0}
    yield from ((findings[number],) for number in sorted(slow))
    yield tuple(each for number, each in enumerate(findings) if number not in slow)


def table(
    title: str,
    receipt: Receipt,
    shown: Callable[[CheckFinding], bool],
    plot: Plot | None = None,
    *,
    is_folded: bool = True,
) -> Table:
    """The findings that are `shown`, by check."""
    columns = (
        Column("check"),
        Column("finding"),
        Column("outcome", Kind.OUTCOME),
        Column("value", Kind.NUMBER),
        Column("bound"),
        Column("used", Kind.NUMBER),
        Column("observed"),
        Column("source of the bound"),
    )
    rows = (
        row(
            check.check,
            each.name,
            outcome(each.first),
            each.value,
            bound(each.first),
            share(each.used) if each.value and each.first.bound is not None else "",
            each.detail,
            each.first.source,
        )
        for check in receipt.checks
        for each in fold(filter(shown, check.findings))
    )
    return Table(title, columns, tuple(rows), is_folded=is_folded, plot=plot)


def parts_not_run(receipt: Receipt) -> list[tuple[str, str, str]]:
    """Check, name and reason of what was not run of a check."""
    return [
        (check.check, each.name, each.detail)
        for check in receipt.checks
        for each in fold(finding for finding in check.findings if finding.kind is FindingKind.NOT_RUN)
    ]


def has_number(finding: CheckFinding) -> bool:
    return finding.value is not None or finding.bound is not None


def bound(finding: CheckFinding) -> str:
    """`<= 3.9e-3 (4 u, u = 2^-10)`; empty without a bound."""
    if finding.bound is None:
        return ""
    limit = f"{finding.relation} {amount(finding.bound, finding.unit)}"
    # A formula without an operator is the number itself.
    return f"{limit} ({finding.formula})" if " " in finding.formula.strip() else limit


def outcome(finding: CheckFinding) -> str:
    """`passed`, `failed`, `not run` or `info`."""
    if finding.kind is FindingKind.NOT_RUN:
        return "not run"
    return {True: "passed", False: "failed", None: "info"}[finding.ok]


def used(finding: CheckFinding) -> float:
    """The fraction of its bound that a number uses: 1 is the bound. NaN is far beyond it."""
    value, bound = finding.value, finding.bound
    if value is None or bound is None or math.isnan(value):
        return _MOST
    part = _divided(bound, value) if finding.relation == ">=" else _divided(value, bound)
    return min(max(part, LEAST), _MOST)


def _divided(one: float, other: float) -> float:
    return one / other if other else _MOST if one > 0 else LEAST
