"""Receipts side by side as one page."""

from __future__ import annotations

from envspec.receipt.comparison import Comparison
from envspec.receipt.fleet import Column, columns
from envspec.receipt.numbers import Better
from envspec.report import fleet, plots, words
from envspec.report.html import environment


def render(comparison: Comparison) -> str:
    """The page; nothing of it comes from elsewhere. Ends with a line feed."""
    shown = columns(comparison.receipts)
    template = environment().get_template("fleet.html.jinja")
    page = template.render(
        comparison=comparison,
        headline=fleet.headline(comparison),
        answers=fleet.answers(comparison),
        heads=fleet.HEADS,
        rows=list(zip(fleet.rows(comparison), zip(*(column.values for column in shown), strict=True), strict=True)),
        columns=shown,
        sections=[
            (title, [(line, fleet.weight(line), fleet.grouped(comparison, line)) for line in lines])
            for title, lines in fleet.sections(comparison)
        ],
        slower=fleet.slower(comparison),
        plots=[_plot(comparison, column) for column in shown],
    )
    return page.rstrip("\n") + "\n"


def _plot(comparison: Comparison, column: Column) -> plots.Plot:
    way = "less is better" if column.better is Better.LOWER else "more is better"
    values = dict(zip(comparison.names, column.values, strict=True))
    return plots.bars(column.title, f"{column.unit}, {way}", values, lambda value: words.amount(value, column.unit))
