"""Receipts compared, as text, Markdown, HTML and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from envspec.conformance.text import counted, some_of
from envspec.escaping import markdown
from envspec.receipts.compare import Comparison, Line, Weight, columns, has_shared_fingerprint
from envspec.receipts.metrics import devices, has_kind
from envspec.report import page
from envspec.report.format import (
    Row,
    Table,
    amount,
    document,
    first_rows,
    listing,
    markdown_page,
    not_empty,
    row,
    share,
    short_hashes,
    text,
    with_heads,
)
from envspec.report.receipt import brief_counts

#: Times are reported as worse beyond this fraction of the first receipt's and this many seconds.
_TIME_PART: Final = 0.10
_TIME_S: Final = 0.5
#: Longest list of names in an answer.
_NAMED: Final = 4
#: Longest list of worse numbers on a terminal.
_SHOWN: Final = 20


def as_text(comparison: Comparison, width: int) -> str:
    tables = (
        listing(headline(comparison), itertools.starmap(row, answers(comparison))),
        _faults(comparison),
        *_sections(comparison),
        first_rows(_worse(comparison), _SHOWN, "--format json shows all of them"),
        with_heads(_fleet(comparison)),
    )
    return text((), tables, width)


def as_markdown(comparison: Comparison) -> str:
    tables = (
        listing("", itertools.starmap(row, answers(comparison)), "question|answer"),
        _faults(comparison),
        _fleet(comparison),
        _worse(comparison),
        *_sections(comparison, is_folded=True),
    )
    return markdown_page((f"## {markdown(headline(comparison))}", ""), tables)


def as_html(comparison: Comparison) -> str:
    tables = (_faults(comparison), _fleet(comparison), _worse(comparison), *_sections(comparison))
    plots = []
    for column in columns(comparison.receipts):
        plots.append((page.plot_title(column), page.side_by_side(column, comparison.names)))
    return page.render(
        "comparison.html.jinja",
        headline=headline(comparison),
        verdict="failed" if comparison.differs else "passed",
        answers=listing("", itertools.starmap(row, answers(comparison))),
        tables=not_empty(tables),
        plots=plots,
    )


def as_json(comparison: Comparison) -> str:
    """What differs by section, the numbers, and the main numbers of each receipt."""
    different = {title: lines for title, lines in comparison.sections.items() if lines}
    return document(
        {
            "receipts": comparison.names,
            "differs": comparison.differs,
            "is_same_kind": comparison.is_same_kind,
            "faults": [f"{line.what}: {line.note}" for line in comparison.faults],
            "different": different,
            "numbers": comparison.numbers,
            "main": columns(comparison.receipts),
        }
    )


def headline(comparison: Comparison) -> str:
    count = counted(len(comparison.names), "receipt")
    if comparison.faults:
        return f"{count}: a machine computes wrong results"
    if comparison.differs:
        return f"{count}: they differ"
    return f"{count}: same stack, machines and outcome"


def answers(comparison: Comparison) -> list[tuple[str, str]]:
    return [
        ("same stack", _same_stack(comparison)),
        ("same machines", _answer(comparison, "Machine")),
        ("same outcome", _answer(comparison, "Checks", "Findings")),
        ("same results, bit by bit", _bits(comparison)),
        ("same speed and memory", _speed(comparison)),
    ]


def _same_stack(comparison: Comparison) -> str:
    answer = _answer(comparison, "Stack", "Versions that ran")
    if answer == "yes" and not all(each.lock for each in comparison.receipts):
        return "yes, as far as the versions that ran show: no lock"
    return answer


def _answer(comparison: Comparison, *sections: str) -> str:
    different = []
    for section in sections:
        for line in comparison.sections[section]:
            if line.weight is not Weight.INFO:
                different.append(line.what)
    return f"no: {some_of(different, _NAMED)}" if different else "yes"


def _bits(comparison: Comparison) -> str:
    if comparison.faults:
        return f"no, a machine computes wrong results: {some_of([line.what for line in comparison.faults], _NAMED)}"
    if different := [line.what for line in comparison.sections["Fingerprints"]]:
        return f"exact results yes, others no: {some_of(different, _NAMED)}"
    if has_shared_fingerprint(comparison.receipts):
        return "yes"
    return "unknown: no fingerprint is in all receipts"


def _speed(comparison: Comparison) -> str:
    if not all(map(has_kind, comparison.receipts)):
        return "not compared: NVML did not show the GPUs of a receipt"
    if not comparison.is_same_kind:
        return "not compared: the machines are of different kinds"
    beyond = [f"{each.check}: {each.name}" for each in comparison.numbers if each.is_beyond]
    if beyond:
        return f"no: {some_of(beyond, _NAMED)}"
    # Times have no tolerance: a cold cache doubles them.
    if any(each.is_judged for each in comparison.numbers):
        return "yes, within the tolerances"
    return "unknown: no two receipts share a rate with a spread or a peak of memory"


def _faults(comparison: Comparison) -> Table:
    return listing("Wrong results", (row(line.what, line.note) for line in comparison.faults), "what|which machine")


def _fleet(comparison: Comparison) -> Table:
    rows = []
    for name, receipt in zip(comparison.names, comparison.receipts, strict=True):
        counts = brief_counts(receipt.summary.checks)
        rows.append([name, receipt.verdict.value, devices(receipt), receipt.machine.driver or "-", counts])
    titles = "receipt|verdict:outcome|ran on|driver|passed / failed / not run"
    for column in columns(comparison.receipts):
        titles += f"|{column.title}, {column.unit}:number"
        for cells, value in zip(rows, column.values, strict=True):
            cells.append(amount(value))
    return listing("Receipts", itertools.starmap(row, rows), titles)


def _sections(comparison: Comparison, *, is_folded: bool = False) -> list[Table]:
    """A table of differences for each section; equal values of a difference share a row."""
    tables = []
    for title, lines in comparison.sections.items():
        if lines:
            heading = f"{title}: {counted(len(lines), 'difference')}"
            titles = "what|meaning:outcome|receipts|value|note"
            tables.append(listing(heading, _rows(comparison, lines), titles, is_folded=is_folded))
    return tables


def _rows(comparison: Comparison, lines: Sequence[Line]) -> list[Row]:
    rows: list[Row] = []
    for line in lines:
        groups: dict[str, list[str]] = {}
        for name, value in zip(comparison.names, line.values, strict=True):
            groups.setdefault(value or "-", []).append(name)
        what, weight, note = line.what, line.weight.value, line.note
        for value, names in groups.items():
            rows.append(row(what, weight, ", ".join(names), short_hashes(value), note))
            what = weight = note = ""
    return rows


def _worse(comparison: Comparison) -> Table:
    """Numbers in which a receipt is worse than the first one, the worst first.

    Rates and memory beyond their tolerance; times of at least half a second more and a tenth more.
    """
    found: list[tuple[float, Row]] = []
    for each in comparison.numbers:
        base = next(value for value in each.values if value is not None)
        for name, value, worse, allowed in zip(comparison.names, each.values, each.worse, each.tolerances, strict=True):
            if value is not None and worse is not None and _counts(each.unit, worse, value - base, allowed):
                numbers = amount(base, each.unit), amount(value, each.unit)
                found.append((worse, row(name, f"{each.check}: {each.name}", *numbers, f"{share(worse)} worse")))
    found.sort(key=lambda pair: -pair[0])
    rows = [line for _, line in found]
    return listing(f"Worse than {comparison.names[0]}", rows, "receipt|number|first:old|this:new|change")


def _counts(unit: str, worse: float, more: float, allowed: float | None) -> bool:
    if unit == "s":
        return worse > _TIME_PART and more > _TIME_S
    return allowed is not None and worse > allowed
