"""The table model of all reports, and numbers, times and hashes as text.

A report is a list of `Table`: `text_lines` and `markdown_lines` render one, the templates do it for HTML. Cells hold
plain text: each renderer escapes them, nothing else does.
"""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from itertools import compress
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from envspec.escaping import html, markdown, markdown_code, one_line, visible
from envspec.reasons import Reason
from envspec.spec.dates import utc_text
from envspec.structs import replace

_INDENT: Final = "  "
_BELOW: Final = " " * 6
#: A longer cell does not widen its column.
_WIDEST: Final = 44
_LEAST_ROOM: Final = 16
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_SHA256: Final = re.compile(r"\b[0-9a-f]{64}\b")
_SIGNS: Final = {"passed": "✅", "failed": "❌", "worse": "❌", "fault": "❌", "not run": "⚪", "not known": "❔"}


class CellKind(Enum):
    """What the cells of a column hold. OLD is followed by NEW: text shows both as `old -> new`."""

    TEXT = "text"
    NUMBER = "number"
    OUTCOME = "outcome"
    OLD = "old"
    NEW = "new"


class Column(Struct, frozen=True):
    title: str = ""
    kind: CellKind = CellKind.TEXT


class Row(Struct, frozen=True):
    """A row of a table.

    notes: sentences about the row, below it in text, in the last column elsewhere.
    """

    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Segment(Struct, frozen=True):
    """A part of a bar.

    width: per cent of the plot.
    colour: number of a colour, or `passed` or `failed`.
    """

    width: float
    colour: int | str = 0
    label: str = ""


class Bar(Struct, frozen=True):
    name: str
    segments: tuple[Segment, ...]
    value: str


class Plot(Struct, frozen=True):
    """Bars, one below the other.

    caption: what they show, in words.
    limit: position of a line, in per cent.
    ticks: position and text of the axis' marks.
    legend: colour and its meaning.
    """

    caption: str
    bars: tuple[Bar, ...]
    limit: float | None = None
    ticks: tuple[tuple[float, str], ...] = ()
    legend: tuple[tuple[int, str], ...] = ()


class Table(Struct, frozen=True):
    """A part of a report.

    notes: title of the notes' column.
    is_folded: details that Markdown and HTML show on request.
    plot: on pages, above the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: str = "note"
    is_folded: bool = False
    plot: Plot | None = None

    @property
    def has_notes(self) -> bool:
        return any(row.notes for row in self.rows)


def row(*cells: str, notes: Iterable[str] = ()) -> Row:
    return Row(cells, tuple(filter(None, notes)))


def listing(
    title: str, rows: Iterable[Row], titles: str = "", notes: str = "note", *, is_folded: bool = False
) -> Table:
    """A table of rows.

    titles: of its columns, as `name|time:number`, with the kind unless it is text; by default they have no titles.
    """
    found = tuple(rows)
    if not titles:
        titles = "|" * (max((len(each.cells) for each in found), default=1) - 1)
    return Table(title, tuple(map(_column, titles.split("|"))), found, notes, is_folded)


def _column(described: str) -> Column:
    title, _, kind = described.partition(":")
    return Column(title, CellKind(kind or "text"))


def properties(title: str, pairs: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values, without those that have no value."""
    rows = []
    for name, value in pairs:
        if value:
            rows.append(row(name, value))
    return listing(title, rows)


def heads(table: Table) -> Row:
    """The titles of the columns: text shows none otherwise."""
    return Row(tuple(column.title for column in table.columns))


def with_heads(table: Table) -> Table:
    return replace(table, rows=(heads(table), *table.rows))


def first_rows(table: Table, most: int, where: str) -> Table:
    """The table's first rows, and how many more there are. where: these are."""
    more = len(table.rows) - most
    if more <= 0:
        return table
    return replace(table, rows=(*table.rows[:most], row(f"... and {more} more: {where}")))


def not_empty(tables: Iterable[Table]) -> list[Table]:
    """The tables that have rows or a plot."""
    return [table for table in tables if table.rows or table.plot]


def optional(template: str, value: object) -> str:
    """`template` with the value in place of its braces; empty without a value."""
    if not value:
        return ""
    return template.format(value)


def compact(table: Table) -> Table:
    """The same rows, all of one length, without columns that are empty in all of them."""
    count = len(table.columns)
    padded = [each.cells + ("",) * (count - len(each.cells)) for each in table.rows]
    is_filled = list(map(any, zip(*padded, strict=False)))
    rows = []
    for each, cells in zip(table.rows, padded, strict=True):
        rows.append(Row(tuple(compress(cells, is_filled)), each.notes))
    return replace(table, columns=tuple(compress(table.columns, is_filled)), rows=tuple(rows))


def text(head: Iterable[str], tables: Iterable[Table], width: int) -> str:
    """Lines of `head`, then each table that has rows, separated by blank lines; ends with a line feed."""
    parts = [block(head)]
    for table in tables:
        parts.append(block(text_lines(table, width)))
    return "\n".join(filter(None, parts))


def block(lines: Iterable[str]) -> str:
    """Lines without spaces at their ends; ends with a line feed if there are any."""
    return "".join(f"{line.rstrip()}\n" for line in lines)


def text_lines(table: Table, width: int) -> Iterator[str]:
    """The title at the margin, below it aligned rows; the last cell of a row and notes are wrapped at `width`."""
    if not table.rows:
        return
    if table.title:
        yield one_line(table.title)
    shown = compact(table)
    is_new = list(_follow_old(shown.columns))
    rows = [_joined(each, is_new) for each in shown.rows]
    is_number = [column.kind is CellKind.NUMBER for column, new in zip(shown.columns, is_new, strict=True) if not new]
    widths = _widths(rows, is_number)
    for each, joined in zip(shown.rows, rows, strict=True):
        if joined.cells:
            yield from _row_lines(each, joined, widths, is_number, width)
        for note in each.notes:
            yield from wrapped(note, width, _BELOW)


def _row_lines(
    each: Row, joined: _Joined, widths: Sequence[int], is_number: Sequence[bool], width: int
) -> Iterator[str]:
    """The lines of one row that has cells, without its notes."""
    cells = joined.cells
    padded = []
    for cell, size, right in zip(cells, widths, is_number, strict=False):
        padded.append(cell.rjust(size) if right else cell.ljust(size))
    head = _INDENT + "  ".join((*padded[:-1], ""))
    line = (head + padded[-1]).rstrip()
    is_long = len(line) > width
    if joined.arrow and is_long:
        index, old, new = joined.arrow
        yield _INDENT + "  ".join((*padded[:index], *cells[index + 1 :]))
        yield f"{_BELOW}   {old}"
        yield f"{_BELOW}-> {new}"
    elif not is_number[len(cells) - 1] and (is_long or "\n" in each.cells[-1]):
        last = cells[-1]
        if len(cells) == len(each.cells):
            last = visible(each.cells[-1])
        yield from hanging(head, last, width, _BELOW if head == _INDENT else "")
    else:
        yield line


class _Joined(NamedTuple):
    """Cells of a row of text, old and new in one of them. arrow: its place, old and new, if both are there."""

    cells: list[str]
    arrow: tuple[int, str, str] | None


def _widths(rows: Iterable[_Joined], is_number: Sequence[bool]) -> list[int]:
    """Of each column; text at the end of a row is not padded, so that it counts for nothing."""
    widths = [0] * len(is_number)
    for cells, _ in rows:
        for index, cell in enumerate(cells):
            if len(cell) <= _WIDEST and (index < len(cells) - 1 or is_number[index]):
                widths[index] = max(widths[index], len(cell))
    return widths


def _follow_old(columns: Iterable[Column]) -> Iterator[bool]:
    """Whether each column is NEW and follows OLD, which `compact` may have removed."""
    before = CellKind.TEXT
    for column in columns:
        yield before is CellKind.OLD and column.kind is CellKind.NEW
        before = column.kind


def _joined(each: Row, is_new: Sequence[bool]) -> _Joined:
    cells: list[str] = []
    arrow = None
    for cell, new in zip(map(_plain, each.cells), is_new, strict=True):
        if not new:
            cells.append(cell)
            continue
        old = cells.pop()
        arrow = None
        if old and cell and old != cell:
            arrow = (len(cells), old, cell)
            cells.append(f"{old} -> {cell}")
        else:
            cells.append(cell or old)
    while cells and not cells[-1]:
        cells.pop()
    return _Joined(cells, arrow)


def _plain(cell: str) -> str:
    """On one line, with its indentation."""
    return visible(cell).replace("\n", " ").replace("\t", " ").rstrip()


def wrapped(sentence: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        visible(sentence),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def hanging(head: str, sentence: str, width: int, below: str = "") -> Iterator[str]:
    """`head` and text to the right of it, or below if there is no room. below: indentation of further lines."""
    below = below or " " * len(head)
    room = width - max(len(head), len(below))
    if room < _LEAST_ROOM:
        if head.strip():
            yield head.rstrip()
        head = below = _BELOW
        room = max(_LEAST_ROOM, width - len(head))
    for line in visible(sentence).split("\n"):
        for part in wrapped(line, room):
            yield head + part
            head = below


def markdown_lines(table: Table, level: int = 3) -> Iterator[str]:
    """The table in GitHub's form below its heading; nothing without rows."""
    if not table.rows:
        return
    if table.is_folded:
        yield from folded(table.title, _markdown_rows(compact(table)))
        return
    if table.title:
        yield f"{'#' * level} {markdown(table.title)}"
        yield ""
    yield from _markdown_rows(compact(table))


def markdown_page(head: Iterable[str], tables: Iterable[Table], level: int = 3) -> str:
    """Lines of `head`, then each table that has rows; ends with a line feed."""
    lines = list(head)
    for table in tables:
        lines += markdown_lines(table, level)
    return "\n".join(lines).rstrip("\n") + "\n"


def folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines that a click on their title shows."""
    yield f"<details><summary>{html(one_line(title))}</summary>"
    yield ""
    yield from lines
    yield "</details>"
    yield ""


def verbatim(lines: str) -> str:
    """A block of HTML, in which Markdown has no meaning and which no run of backticks ends."""
    return f"<pre>{html(visible(lines))}</pre>"


def _markdown_rows(table: Table) -> Iterator[str]:
    titles = list(heads(table).cells)
    if table.has_notes:
        titles.append(table.notes)
    yield f"| {' | '.join(map(markdown, titles))} |"
    yield f"|{'---|' * len(titles)}"
    for each in table.rows:
        cells = list(map(_markdown_cell, each.cells, table.columns))
        if table.has_notes:
            cells.append("<br>".join(map(markdown, each.notes)))
        yield f"| {' | '.join(cells)} |"
    yield ""


def sign_of(outcome: str) -> str:
    """The sign of an outcome such as `passed` or `failed (required)`; empty for other words."""
    return _SIGNS.get(outcome.partition(" (")[0], "")


def _markdown_cell(cell: str, column: Column) -> str:
    if column.kind in (CellKind.OLD, CellKind.NEW):
        return markdown_code(cell)
    if column.kind is CellKind.OUTCOME:
        return f"{sign_of(cell)} {markdown(cell)}".lstrip()
    return markdown(cell).lstrip()


def document(value: object) -> str:
    """Structs, dataclasses, enums, times, tuples and mappings as JSON; ends with a line feed."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_json_value) + "\n"


def _json_value(value: object) -> Any:
    if isinstance(value, Reason):
        fields: dict[str, object] = {"code": value.code, "text": str(value)}
        for name, text in value.values:
            fields.setdefault(name, text)
        if value.because:
            fields["because"] = value.because
        return fields
    if isinstance(value, Struct):
        return structs.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return utc_text(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def size(count: float) -> str:
    """Bytes in powers of 1000: `8.05 GB`."""
    step = 0
    while abs(count) >= 999.5 and step < len(_UNITS) - 1:
        count, step = count / 1000, step + 1
    if not step:
        return f"{count:.0f} bytes"
    return f"{_three_digits(count)} {_UNITS[step]}"


def total_size(known_bytes: int, unsized: int) -> str:
    """The sum of sizes of which some may be unknown. unsized: how many."""
    if not unsized:
        return size(known_bytes)
    if not known_bytes:
        return "size unknown"
    return f"{size(known_bytes)} and {unsized} of unknown size"


def amount(value: float | None, unit: str = "") -> str:
    """A number of three digits with its unit; `-` for None."""
    if value is None:
        return "-"
    if unit == "bytes":
        return size(value)
    return f"{_three_digits(value)} {unit}".rstrip()


def _three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if 999.5 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    if 0.001 <= abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.3g}"


def percent(change: float) -> str:
    """A change with its sign: `+12 %`."""
    digits = 1 if abs(change) < 0.1 else 0
    return f"{change:+.{digits}%}".replace("%", " %")


def share(part: float) -> str:
    """A fraction as `10 %`; from ten on as `450 times`."""
    if part < 9.995:
        return f"{100 * part:.3g} %"
    return f"{part:,.0f} times"


def short_hashes(line: str) -> str:
    """`line` with each SHA-256 shortened to its first 12 digits."""
    return _SHA256.sub(lambda found: found[0][:12], line)
