"""HTML pages: Jinja's environment, and plots as bars of HTML and CSS. A page loads nothing and runs nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from envspec.conformance.results import CheckOutcome
from envspec.context import counted
from envspec.escaping import visible
from envspec.receipts.model import Receipt
from envspec.report import format as form
from envspec.report.findings import LEAST, fold
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
    found = {
        f"{check.check}: {each.name}": each
        for check in receipt.checks
        for each in fold(finding for finding in check.findings if finding.bound is not None)
    }
    if not found:
        return None
    parts = {name: each.used for name, each in found.items()}
    low = math.floor(math.log10(max(LEAST, min(parts.values()) / 3)))
    high = math.ceil(math.log10(max(10.0, *parts.values())))
    beyond = [name for name, each in found.items() if not each.first.ok]
    nearest = max(parts, key=lambda name: parts[name])
    count = counted(len(found), "number")
    summary = (
        f"{len(beyond)} of {count} beyond the bound: {', '.join(beyond)}."
        if beyond
        else f"All {count} within their bounds; closest: {nearest}, {form.share(parts[nearest])}."
    )

    def position(value: float) -> float:
        return max(0.5, 100 * (math.log10(value) - low) / (high - low))

    return Plot(
        f"Value as a fraction of its bound (the line), logarithmic. {summary}",
        tuple(
            Bar(
                name,
                (Segment(position(parts[name]), "passed" if each.first.ok else "failed"),),
                form.share(parts[name]) if each.value else "-",
            )
            for name, each in found.items()
        ),
        limit=position(1.0),
        ticks=tuple((position(10.0**power), f"{10.0**power:g}") for power in range(low, high + 1)),
    )


def times(receipt: Receipt) -> Plot | None:
    checks = [check for check in receipt.checks if check.seconds]
    if not checks:
        return None
    slowest = max(checks, key=lambda check: check.seconds)
    # The sum of the phases can exceed the time that was measured around them.
    most = max(max(check.seconds, sum(phase.seconds for phase in check.phases)) for check in checks)
    return Plot(
        f"{counted(len(checks), 'check')} in {form.amount(receipt.seconds, 's')}; longest: {slowest.check}, "
        f"{form.amount(slowest.seconds, 's')}.",
        tuple(Bar(check.check, tuple(_phases(check, most)), f"{check.seconds:.1f} s") for check in checks),
    )


def _phases(check: CheckOutcome, most: float) -> Iterable[Segment]:
    for index, phase in enumerate(check.phases):
        width = 100 * phase.seconds / most
        yield Segment(width, index % _COLOURS, phase.name if len(phase.name) * _CHARACTER < width else "")
    rest = check.seconds - sum(phase.seconds for phase in check.phases)
    if rest > 0:
        yield Segment(100 * rest / most, "rest")


def memory(receipt: Receipt) -> Plot | None:
    kinds = ("tensors", "reserved on the device", "host")
    found = [
        (check.check, colour, value)
        for check in receipt.checks
        for colour, value in enumerate((check.peak.allocated_bytes, check.peak.reserved_bytes, check.peak.host_bytes))
        if value is not None
    ]
    if not found:
        return None
    card = min((gpu.memory_bytes for gpu in receipt.machine.gpus), default=None)
    name, colour, largest = max(found, key=lambda each: each[2])
    caption = f"Largest peak: {name}, {kinds[colour]}, {form.size(largest)}."
    if card:
        caption += f" Memory of a GPU: {form.size(card)}."
    return Plot(
        caption,
        tuple(Bar(name, (Segment(_width(value, largest), colour),), form.size(value)) for name, colour, value in found),
        legend=tuple((colour, kind) for colour, kind in enumerate(kinds) if any(each[1] == colour for each in found)),
    )


def side_by_side(unit: str, names: Sequence[str], values: Sequence[float | None]) -> Plot:
    most = max((value for value in values if value is not None), default=0.0)
    bars = [
        Bar(name, (Segment(_width(value or 0.0, most)),), form.amount(value, unit if value is not None else ""))
        for name, value in zip(names, values, strict=True)
    ]
    return Plot("", tuple(bars))


def _width(value: float, most: float) -> float:
    return 100 * value / most if most else 0.0
