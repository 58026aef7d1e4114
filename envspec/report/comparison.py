"""Receipts compared, as text, Markdown, HTML and JSON."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from envspec.context import counted
from envspec.escaping import markdown
from envspec.receipts.compare import Comparison, Line, Weight, columns
from envspec.receipts.metrics import Better, devices, has_kind
from envspec.report import page
from envspec.report.format import (
    Column,
    Kind,
    Row,
    Table,
    amount,
    document,
    first_rows,
    listing,
    markdown_lines,
    row,
    share,
    short_hashes,
    text,
)

#: Times are reported as worse beyond this fraction of the first receipt's and this many seconds.
_TIME_PART: Final = 0.10
_TIME_S: Final = 0.5
#: Longest list of names in an answer.
_NAMED: Final = 4
#: Longest list of worse numbers on a terminal.
_SHOWN: Final = 20


def as_text(comparison: Comparison, width: int) -> str:
    worse = first_rows(_worse(comparison), _SHOWN, "--format json shows all of them")
    fleet = _fleet(comparison)
    heads = Row(tuple(column.title for column in fleet.columns))
    return text(
        (),
        (
            listing(headline(comparison), itertools.starmap(row, answers(comparison))),
            _faults(comparison),
            *_sections(comparison),
            worse,
            replace(fleet, rows=(heads, *fleet.rows)),
        ),
        width,
    )


def as_markdown(comparison: Comparison) -> str:
    tables = (
        listing("", itertools.starmap(row, answers(comparison)), "question|answer"),
        _faults(comparison),
        _fleet(comparison),
        _worse(comparison),
        *(replace(table, is_folded=True) for table in _sections(comparison)),
    )
    lines = [f"## {markdown(headline(comparison))}", "", *(line for each in tables for line in markdown_lines(each))]
    return "\n".join(lines).rstrip("\n") + "\n"


def as_html(comparison: Comparison) -> str:
    tables = (_faults(comparison), _fleet(comparison), _worse(comparison), *_sections(comparison))
    plots = []
    for column in columns(comparison.receipts):
        better = "less" if column.better is Better.LOWER else "more"
        plot = page.side_by_side(column.unit, comparison.names, column.values)
        plots.append((f"{column.title}, {column.unit} ({better} is better)", plot))
    return page.render(
        "comparison.html.jinja",
        headline=headline(comparison),
        verdict="failed" if comparison.differs else "passed",
        answers=listing("", itertools.starmap(row, answers(comparison))),
        tables=[table for table in tables if table.rows],
        plots=plots,
    )


def as_json(comparison: Comparison) -> str:
    """What differs by section, the numbers, and the main numbers of each receipt."""
    return document(
        {
            "receipts": comparison.names,
            "differs": comparison.differs,
            "is_same_kind": comparison.is_same_kind,
            "faults": [f"{line.what}: {line.note}" for line in comparison.faults],
            "different": {
                title: [asdict(line) for line in lines] for title, lines in comparison.sections.items() if lines
            },
            "numbers": comparison.numbers,
            "main": columns(comparison.receipts),
        }
    )


def headline(comparison: Comparison) -> str:
    count = counted(len(comparison.names), "receipt")
    if comparison.faults:
        return f"{count}: a machine computes wrong results"
    return f"{count}: they differ" if comparison.differs else f"{count}: same stack, machines and outcome"


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
    is_known = all(each.lock for each in comparison.receipts)
    return answer if is_known or answer != "yes" else "yes, as far as the versions that ran show: no lock"


def _answer(comparison: Comparison, *sections: str) -> str:
    lines = (line for section in sections for line in comparison.sections[section])
    different = [line.what for line in lines if line.weight is not Weight.INFO]
    return f"no: {_some(different)}" if different else "yes"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_NAMED])} and {more} more"


def _bits(comparison: Comparison) -> str:
    if comparison.faults:
        return f"no, a machine computes wrong results: {_some([line.what for line in comparison.faults])}"
    if different := [line.what for line in comparison.sections["Fingerprints"]]:
        return f"exact results yes, others no: {_some(different)}"
    shared = set.intersection(
        *(
            {(check.check, each.name) for check in receipt.checks for each in check.fingerprints}
            for receipt in comparison.receipts
        )
    )
    return "yes" if shared else "unknown: no fingerprint is in all receipts"


def _speed(comparison: Comparison) -> str:
    if not all(map(has_kind, comparison.receipts)):
        return "not compared: NVML did not show the GPUs of a receipt"
    if not comparison.is_same_kind:
        return "not compared: the machines are of different kinds"
    beyond = [f"{each.check}: {each.name}" for each in comparison.numbers if each.is_beyond]
    if beyond:
        return f"no: {_some(beyond)}"
    # Times have no tolerance: a cold cache doubles them.
    judged = any(each.is_judged for each in comparison.numbers)
    unknown = "unknown: no two receipts share a rate with a spread or a peak of memory"
    return "yes, within the tolerances" if judged else unknown


def _faults(comparison: Comparison) -> Table:
    return listing("Wrong results", (row(line.what, line.note) for line in comparison.faults), "what|which machine")


def _fleet(comparison: Comparison) -> Table:
    found = columns(comparison.receipts)
    rows = []
    for index, (name, receipt) in enumerate(zip(comparison.names, comparison.receipts, strict=True)):
        checks = receipt.summary.checks
        counts = f"{checks.passed} / {checks.failed} / {checks.not_run}"
        numbers = (amount(column.values[index]) for column in found)
        rows.append(row(name, receipt.verdict.value, devices(receipt), receipt.machine.driver or "-", counts, *numbers))
    texts = map(Column, ("ran on", "driver", "passed / failed / not run"))
    titles = (Column("receipt"), Column("verdict", Kind.OUTCOME), *texts)
    mains = (Column(f"{column.title}, {column.unit}", Kind.NUMBER) for column in found)
    return Table("Receipts", (*titles, *mains), tuple(rows))


def _sections(comparison: Comparison) -> list[Table]:
    """A table of differences for each section; equal values of a difference share a row."""
    heads = (Column("what"), Column("meaning", Kind.OUTCOME), Column("receipts"), Column("value"), Column("note"))
    return [
        Table(f"{title}: {counted(len(lines), 'difference')}", heads, tuple(_rows(comparison, lines)))
        for title, lines in comparison.sections.items()
        if lines
    ]


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
    rows = tuple(line for _, line in sorted(found, key=lambda pair: -pair[0]))
    heads = (Column("receipt"), Column("number"), Column("first", Kind.OLD), Column("this", Kind.NEW), Column("change"))
    return Table(f"Worse than {comparison.names[0]}", heads, rows)


def _counts(unit: str, worse: float, more: float, allowed: float | None) -> bool:
    if unit == "s":
        return worse > _TIME_PART and more > _TIME_S
    return allowed is not None and worse > allowed
