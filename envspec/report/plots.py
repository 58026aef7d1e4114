"""A receipt's plots as SVG for its page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from envspec.escaping import one_line
from envspec.receipt.values import CheckRow, FindingRow, Receipt
from envspec.report import words
from envspec.report.svg import FAILED, INK, PALETTE, PASSED, QUIET, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Inches of a row, and of what is around the rows.
_ROW: Final = 0.24
_AROUND: Final = 0.75
_WIDE: Final = 8.6
#: What is drawn of numbers that are no part of their bound at all, or far beyond it.
_LEAST: Final = 1e-6
_MOST: Final = 1e3


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing. svg: an element for HTML. told: what it shows, for those who don't see it."""

    title: str
    svg: str
    told: str


def bounds(receipt: Receipt) -> Plot | None:
    """Every bounded finding as its part of what it may be at most."""
    rows = [
        (f"{check.check}: {finding.name}", used(finding), finding.ok is True)
        for check in receipt.checks
        for finding in check.findings
        if finding.bound is not None
    ]
    if not rows:
        return None

    def onto(axes: Axes) -> None:
        for ok, colour, marker in ((True, PASSED, "o"), (False, FAILED, "X")):
            found = [(part, y) for y, (_, part, is_ok) in enumerate(rows) if is_ok is ok]
            axes.scatter([part for part, _ in found], [y for _, y in found], c=colour, marker=marker, s=32, zorder=3)
        axes.hlines(range(len(rows)), _LEAST / 10, [part for _, part, _ in rows], color=QUIET, linewidth=0.6)
        axes.axvline(1.0, color=INK, linewidth=1.2)
        axes.set_xscale("log")
        parts = [part for _, part, _ in rows]
        axes.set_xlim(max(_LEAST, min(parts) / 3), max(10.0, 3 * max(parts)))
        axes.xaxis.set_major_formatter(lambda part, _: f"{part:g}")
        axes.set_xlabel("part of the bound that was used; right of the line the bound is not kept")
        _named(axes, [name for name, _, _ in rows])

    beyond = [name for name, _, is_ok in rows if not is_ok]
    most = max(rows, key=lambda row: row[1])
    if beyond:
        told = f"Of {len(rows)} numbers with a bound {len(beyond)} do not keep it: {', '.join(beyond)}."
    else:
        told = (
            f"All of {len(rows)} numbers keep their bounds; the nearest is {most[0]} with {words.share(most[1])} of it."
        )
    return Plot("Numbers against their bounds", draw("bounds", onto, _WIDE, _height(len(rows))), one_line(told))


def used(finding: FindingRow) -> float:
    """Which part of its bound a number uses: 1 is the bound itself. What is no number is far beyond it."""
    value, bound = finding.value, finding.bound
    if value is None or bound is None or math.isnan(value):
        return _MOST
    part = _divided(bound, value) if finding.relation == ">=" else _divided(value, bound)
    return min(max(part, _LEAST), _MOST)


def _divided(one: float, other: float) -> float:
    return one / other if other else _MOST if one > 0 else _LEAST


def times(receipt: Receipt) -> Plot | None:
    """Seconds of each check, its phases one after the other."""
    checks = [check for check in receipt.checks if check.seconds]
    if not checks:
        return None
    longest = max(check.seconds for check in checks)

    def onto(axes: Axes) -> None:
        for y, check in enumerate(checks):
            _stack(axes, y, check, longest)
        axes.set_xlabel("seconds")
        axes.set_xlim(0, longest * 1.1)
        _named(axes, [check.check for check in checks])

    slowest = max(checks, key=lambda check: check.seconds)
    whole, most = words.amount(receipt.seconds, "s"), words.amount(slowest.seconds, "s")
    told = f"Times of {len(checks)} checks, {whole} in all; the longest is {slowest.check} with {most}."
    return Plot("Time of each check, by phase", draw("times", onto, _WIDE, _height(len(checks))), one_line(told))


def _stack(axes: Axes, y: int, check: CheckRow, longest: float) -> None:
    left = 0.0
    for place, phase in enumerate(check.phases):
        axes.barh(y, phase.seconds, left=left, height=0.72, color=PALETTE[place % len(PALETTE)], linewidth=0)
        # About what fits: 110 characters of this size are as wide as the axes.
        if len(phase.name) < 110 * phase.seconds / longest:
            middle = left + phase.seconds / 2
            axes.text(middle, y, one_line(phase.name), ha="center", va="center", size=7, color=INK)
        left += phase.seconds
    rest = max(0.0, check.seconds - left)
    axes.barh(y, rest, left=left, height=0.72, color="none", edgecolor=QUIET, linewidth=0.6)
    end = max(left, check.seconds) + longest / 150
    axes.text(end, y, f"{check.seconds:.1f}", va="center", size=7, color=INK)


def memory(receipt: Receipt) -> Plot | None:
    """The most memory of each check, on the device and on the host."""
    rows = [
        (f"{check.check}: {where}", value, colour)
        for check in receipt.checks
        for where, value, colour in (
            ("in tensors", check.peak.allocated_bytes, PALETTE[0]),
            ("reserved", check.peak.reserved_bytes, PALETTE[1]),
            ("on the host", check.peak.host_bytes, PALETTE[2]),
        )
        if value is not None
    ]
    if not rows:
        return None
    card = min((gpu.memory_bytes for gpu in receipt.machine.gpus), default=None)
    largest = max(value for _, value, _ in rows)

    def onto(axes: Axes) -> None:
        bars = axes.barh(
            range(len(rows)), [value / 1e9 for _, value, _ in rows], height=0.72, color=[row[2] for row in rows]
        )
        axes.bar_label(bars, [words.size(value) for _, value, _ in rows], padding=3, size=7, color=INK)
        axes.set_xlim(0, largest / 1e9 * 1.15 or 1.0)
        axes.set_xlabel("GB")
        _named(axes, [name for name, _, _ in rows])

    top = max(rows, key=lambda row: row[1])
    told = f"The most memory that checks held; the largest is {top[0]} with {words.size(top[1])}."
    if card:
        told += f" A GPU has {words.size(card)}."
    return Plot("Memory", draw("memory", onto, _WIDE, _height(len(rows))), one_line(told))


def bars(title: str, unit: str, values: Mapping[str, float | None], place: Callable[[float], str]) -> Plot:
    """One number of several receipts. place: the words beside a bar."""
    names: Sequence[str] = list(values)

    def onto(axes: Axes) -> None:
        drawn = axes.barh(range(len(names)), [values[name] or 0.0 for name in names], height=0.66, color=PALETTE[0])
        labels = ["-" if values[name] is None else place(values[name] or 0.0) for name in names]
        axes.bar_label(drawn, labels, padding=3, size=7, color=INK)
        axes.set_xlim(0, 1.2 * max([value for value in values.values() if value is not None] or [1.0]) or 1.0)
        axes.set_xlabel(unit)
        _named(axes, names)

    told = "; ".join(f"{name}: {'-' if value is None else place(value)}" for name, value in values.items())
    return Plot(title, draw(title, onto, _WIDE / 2, _height(len(names))), one_line(f"{title}: {told}"))


def _named(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)


def _short(name: str) -> str:
    name = one_line(name)
    return name if len(name) <= 64 else f"{name[:63]}…"


def _height(rows: int) -> float:
    return _AROUND + _ROW * rows
