"""Receipts side by side as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from envspec.receipt.comparison import Comparison
from envspec.receipt.fleet import columns
from envspec.report import words
from envspec.report.fleet import HEADS, answers, grouped, headline, rows, sections, slower, weight
from envspec.report.markdown import folded, plain, table


def render(comparison: Comparison) -> str:
    """The Markdown, in GitHub's form; ends with a line feed."""
    return "\n".join(_lines(comparison)).rstrip("\n") + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"## {plain(headline(comparison))}"
    yield ""
    yield from table(("", ""), ((plain(question), plain(answer)) for question, answer in answers(comparison)))
    for line in comparison.faults:
        yield f"**A fault:** {plain(line.what)}: {plain(line.told)}"
        yield ""
    shown = columns(comparison.receipts)
    yield from table(
        (*HEADS, *(plain(f"{column.title}, {column.unit}") for column in shown)),
        (
            (*map(plain, row), *(words.amount(column.values[place]) for column in shown))
            for place, row in enumerate(rows(comparison))
        ),
    )
    worse = slower(comparison)
    if worse:
        yield f"### Worse than {plain(comparison.names[0])}"
        yield ""
        found = ((plain(name), plain(f"{row.check}: {row.name}"), plain(change)) for row, name, change in worse)
        yield from table(("receipt", "number", "change"), found)
    for title, lines in sections(comparison):
        body = (
            (plain(line.what), weight(line), plain(f"{names}: {value}"), plain(line.told))
            for line in lines
            for value, names in grouped(comparison, line)
        )
        yield from folded(f"{title}: {len(lines)} not the same", table(("what", "", "which", "told"), body))
