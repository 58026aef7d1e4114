"""Receipts side by side for a terminal: lines at the margin are headings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from envspec.escaping import one_line
from envspec.receipt.comparison import Comparison, Line
from envspec.receipt.fleet import columns
from envspec.report import words
from envspec.report.fleet import HEADS, answers, grouped, headline, rows, sections, slower, weight
from envspec.report.text import WIDTH, hanging

_MARGIN: Final = "  "
#: The rest is in the other forms.
_MOST: Final = 20


def render(comparison: Comparison, width: int = WIDTH) -> str:
    """The comparison as text of `width` characters a line, its table as wide as it is."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(comparison, width))


def _lines(comparison: Comparison, width: int) -> Iterator[str]:
    yield headline(comparison)
    found = answers(comparison)
    widest = max(len(question) for question, _ in found)
    for question, answer in found:
        yield from hanging(f"{_MARGIN}{question:<{widest}}  ", answer, width)
    for line in comparison.faults:
        yield from hanging(f"{_MARGIN}FAULT  ", f"{line.what}: {line.told}", width)
    for title, lines in sections(comparison):
        yield title
        for line in lines:
            yield from _told(comparison, line, width)
    worse = slower(comparison)
    if worse:
        yield f"Worse than {one_line(comparison.names[0])}"
        for number, name, change in worse[:_MOST]:
            yield from hanging(f"{_MARGIN}", f"{name}: {number.check}: {number.name}: {change}", width)
        if len(worse) > _MOST:
            yield f"{_MARGIN}... and {len(worse) - _MOST} more: --format json has all of them"
    yield "Fleet"
    yield from _table(_fleet(comparison))


def _told(comparison: Comparison, line: Line, width: int) -> Iterator[str]:
    told = f" ({line.told})" if line.told else ""
    yield from hanging(_MARGIN, f"{line.what}: {weight(line)}{told}", width)
    for value, names in grouped(comparison, line):
        yield from hanging(f"{_MARGIN * 2}", f"{names}: {value}", width)


def _fleet(comparison: Comparison) -> list[tuple[str, ...]]:
    shown = columns(comparison.receipts)
    heads = (*HEADS, *(f"{column.title}, {column.unit}" for column in shown))
    return [
        heads,
        *(
            (*row, *(words.amount(column.values[place]) for column in shown))
            for place, row in enumerate(rows(comparison))
        ),
    ]


def _table(table: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [[one_line(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield _MARGIN + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
