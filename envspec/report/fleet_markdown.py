"""Receipts side by side as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from envspec.escaping import markdown
from envspec.receipt.comparison import Comparison
from envspec.receipt.fleet import columns
from envspec.report import words
from envspec.report.fleet import HEADS, answers, grouped, headline, rows, sections, slower, weight
from envspec.report.markdown import folded, table


def render(comparison: Comparison) -> str:
    """The Markdown, in GitHub's form; ends with a line feed."""
    return "\n".join(_lines(comparison)).rstrip("\n") + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"## {markdown(headline(comparison))}"
    yield ""
    yield from table(("", ""), ((markdown(question), markdown(answer)) for question, answer in answers(comparison)))
    for line in comparison.faults:
        yield f"**A fault:** {markdown(line.what)}: {markdown(line.told)}"
        yield ""
    shown = columns(comparison.receipts)
    yield from table(
        (*HEADS, *(markdown(f"{column.title}, {column.unit}") for column in shown)),
        (
            (*map(markdown, row), *(words.amount(column.values[place]) for column in shown))
            for place, row in enumerate(rows(comparison))
        ),
    )
    worse = slower(comparison)
    if worse:
        yield f"### Worse than {markdown(comparison.names[0])}"
        yield ""
        found = (
            (markdown(name), markdown(f"{row.check}: {row.name}"), markdown(change)) for row, name, change in worse
        )
        yield from table(("receipt", "number", "change"), map(tuple, found))
    for title, lines in sections(comparison):
        body = (
            (markdown(line.what), weight(line), markdown(f"{names}: {value}"), markdown(line.told))
            for line in lines
            for value, names in grouped(comparison, line)
        )
        yield from folded(f"{title}: {len(lines)} not the same", table(("what", "", "which", "told"), body))
