"""HTML pages: Jinja's environment, and plots as bars of HTML and CSS. A page loads nothing and runs nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from envspec.conformance.results import CheckOutcome
from envspec.conformance.text import counted
from envspec.escaping import visible
from envspec.receipts.compare import ComparisonColumn
from envspec.receipts.metrics import Better
from envspec.receipts.model import Receipt
from envspec.report import format as form
from envspec.report.findings import LEAST, fold_checks, has_bound
from envspec.report.format import Bar, Plot, Segment

#: Per cent of the width that one character of a bar's label needs.
_CHARACTER: Final = 1.1
_COLOURS: Final = 6


def render(template: str, **values: Any) -> str:
    """A page of templates/; ends with a line feed. All text is escaped; an undefined name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("envspec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Characters that a page can't show become escapes before HTML's own escaping.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(compact=form.compact)
    return environment.get_template(template).render(**values).rstrip("\n") + "\n"


def bounds(receipt: Receipt) -> Plot | None:
    """Each bounded number as a fraction of its bound, on a logarithmic axis."""
    found = {f"{check}: {each.name}": each for check, each in fold_checks(receipt, has_bound)}
    if not found:
        return None
    used = {name: each.used for name, each in found.items()}
    low = math.floor(math.log10(max(LEAST, min(used.values()) / 3)))
    high = math.ceil(math.log10(max(10.0, *used.values())))

    def position(value: float) -> float:
        return max(0.5, 100 * (math.log10(value) - low) / (high - low))

    bars, beyond = [], []
    for name, each in found.items():
        outcome = "passed"
        if not each.first.ok:
            outcome = "failed"
            beyond.append(name)
        segment = Segment(position(used[name]), outcome)
        bars.append(Bar(name, (segment,), form.share(used[name]) if each.value else "-"))
    count = counted(len(found), "number")
    nearest = max(used, key=lambda name: used[name])
    summary = f"All {count} within their bounds; closest: {nearest}, {form.share(used[nearest])}."
    if beyond:
        summary = f"{len(beyond)} of {count} beyond the bound: {', '.join(beyond)}."
    return Plot(
        f"Value as a fraction of its bound (the line), logarithmic. {summary}",
        tuple(bars),
        limit=position(1.0),
        ticks=tuple((position(10.0**power), f"{10.0**power:g}") for power in range(low, high + 1)),
    )


def times(receipt: Receipt) -> Plot | None:
    checks = [check for check in receipt.checks if check.seconds]
    if not checks:
        return None
    slowest = max(checks, key=lambda check: check.seconds)
    # The sum of the phases can exceed the time that was measured around them.
    most = max(slowest.seconds, *map(_in_phases, checks))
    bars = []
    for check in checks:
        bars.append(Bar(check.check, tuple(_phases(check, most)), f"{check.seconds:.1f} s"))
    return Plot(
        f"{counted(len(checks), 'check')} in {form.amount(receipt.seconds, 's')}; longest: {slowest.check}, "
        f"{form.amount(slowest.seconds, 's')}.",
        tuple(bars),
    )


def _in_phases(check: CheckOutcome) -> float:
    return sum(phase.seconds for phase in check.phases)


def _phases(check: CheckOutcome, most: float) -> Iterable[Segment]:
    for index, phase in enumerate(check.phases):
        width = 100 * phase.seconds / most
        yield Segment(width, index % _COLOURS, phase.name if len(phase.name) * _CHARACTER < width else "")
    rest = check.seconds - _in_phases(check)
    if rest > 0:
        yield Segment(100 * rest / most, "rest")


def memory(receipt: Receipt) -> Plot | None:
    kinds = ("tensors", "reserved on the device", "host")
    found = []
    for check in receipt.checks:
        peaks = (check.peak.allocated_bytes, check.peak.reserved_bytes, check.peak.host_bytes)
        for colour, value in enumerate(peaks):
            if value is not None:
                found.append((check.check, colour, value))
    if not found:
        return None
    name, colour, largest = max(found, key=lambda each: each[2])
    caption = f"Largest peak: {name}, {kinds[colour]}, {form.size(largest)}."
    if card := min((gpu.memory_bytes for gpu in receipt.machine.gpus), default=0):
        caption += f" Memory of a GPU: {form.size(card)}."
    bars, legend = [], {}
    for name, colour, value in found:
        bars.append(Bar(name, (Segment(_width(value, largest), colour),), form.size(value)))
        legend[colour] = kinds[colour]
    return Plot(caption, tuple(bars), legend=tuple(sorted(legend.items())))


def side_by_side(column: ComparisonColumn, names: Sequence[str]) -> Plot:
    """The values of a column as bars. names: of the receipts."""
    most = max(filter(None, column.values), default=0.0)
    bars = []
    for name, value in zip(names, column.values, strict=True):
        bars.append(Bar(name, (Segment(_width(value or 0.0, most)),), form.amount(value, column.unit)))
    return Plot("", tuple(bars))


def plot_title(column: ComparisonColumn) -> str:
    better = "less" if column.better is Better.LOWER else "more"
    return f"{column.title}, {column.unit} ({better} is better)"


def _width(value: float, most: float) -> float:
    return 100 * value / most if most else 0.0
