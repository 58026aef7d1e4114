"""Receipts side by side, in the forms in which people and programs read it: what all forms say, and their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

from envspec.receipt.comparison import Comparison, Line, NumberLine, Weight
from envspec.receipt.numbers import devices, has_kind
from envspec.receipt.values import Receipt
from envspec.report import words

#: Form -> the module that has `render`.
FLEET_REPORTS: Final[Mapping[str, str]] = {
    "text": "envspec.report.fleet_text",
    "json": "envspec.report.fleet_json",
    "markdown": "envspec.report.fleet_markdown",
    "html": "envspec.report.fleet_html",
}
#: Times are told from this part of the first receipt's on, and from this many seconds.
_TIME_PART: Final = 0.10
_TIME_S: Final = 0.5
#: How many names an answer has; all of them stand below it.
_NAMED: Final = 4
_WEIGHTS: Final = {Weight.FAULT: "a fault", Weight.DIFFERS: "differs", Weight.INFORMS: "informs"}


def render(form: str, comparison: Comparison) -> str:
    """The comparison in a form of the table; ends with a line feed."""
    rendered: Callable[[Comparison], str] = import_module(FLEET_REPORTS[form]).render
    return rendered(comparison)


def sections(comparison: Comparison) -> list[tuple[str, tuple[Line, ...]]]:
    """Title and lines of each section that has some."""
    found = [
        ("Stack", comparison.stack),
        ("Machine", comparison.machine),
        ("Versions that ran", comparison.versions),
        ("Checks", comparison.checks),
        ("Findings", comparison.findings),
        ("Fingerprints", comparison.fingerprints),
    ]
    return [(title, lines) for title, lines in found if lines]


def answers(comparison: Comparison) -> list[tuple[str, str]]:
    """The questions that a comparison is for, each with its answer."""
    return [
        ("same stack", _answer((*comparison.stack, *comparison.versions))),
        ("same machines", _answer(comparison.machine)),
        ("same outcome", _answer((*comparison.checks, *comparison.findings))),
        ("same results, bit by bit", _bits(comparison)),
        ("same speed and memory", _speed(comparison)),
    ]


def _answer(lines: Sequence[Line]) -> str:
    """Yes, or which lines of these say no."""
    different = [line.what for line in lines if line.weight is not Weight.INFORMS]
    return f"no: {_some(different)}" if different else "yes"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_NAMED])} and {more} more"


def _bits(comparison: Comparison) -> str:
    if comparison.faults:
        return f"no, and that is a fault: {_some([line.what for line in comparison.faults])}"
    told = [line.what for line in comparison.fingerprints]
    if told:
        return f"the exact ones; else not: {_some(told)}"
    shared = set.intersection(
        *(
            {(check.check, each.name) for check in receipt.checks for each in check.fingerprints}
            for receipt in comparison.receipts
        )
    )
    return "yes" if shared else "not known: no fingerprint is in all of them"


def _speed(comparison: Comparison) -> str:
    if not all(map(has_kind, comparison.receipts)):
        return "not compared: NVML does not show on which GPUs one of them ran"
    if not comparison.is_same_kind:
        return "not compared: the machines are of different kinds"
    beyond = [row for row in comparison.numbers if row.is_beyond]
    if beyond:
        return f"no: {_some([f'{row.check}: {row.name}' for row in beyond])}"
    # Times carry none: a cold cache doubles them.
    judged = any(row.tolerance is not None for row in comparison.numbers)
    return "yes, within the tolerances" if judged else "not known: no rate and no peak of memory is in two of them"


def slower(comparison: Comparison) -> list[tuple[NumberLine, str, str]]:
    """Numbers in which a receipt is worse than the first one: the number, whose, and by how much; the worst first.

    Rates and memory beyond their tolerance; times of at least half a second more and a tenth more.
    """
    found = []
    for row in comparison.numbers:
        base = next(value for value in row.values if value is not None)
        for name, value, worse in zip(comparison.names, row.values, row.worse, strict=True):
            if value is None or worse is None or not _is_told(row, worse, value - base):
                continue
            change = f"{words.amount(base, row.unit)} -> {words.amount(value, row.unit)}, {words.share(worse)} worse"
            found.append((worse, (row, name, change)))
    return [told for _, told in sorted(found, key=lambda each: -each[0])]


def _is_told(row: NumberLine, worse: float, more: float) -> bool:
    if row.unit == "s":
        return worse > _TIME_PART and more > _TIME_S
    return row.tolerance is not None and worse > row.tolerance


def grouped(comparison: Comparison, line: Line) -> list[tuple[str, str]]:
    """(value, the names of those that have it), as they come."""
    found: dict[str, list[str]] = {}
    for name, value in zip(comparison.names, line.values, strict=True):
        found.setdefault(value or "-", []).append(name)
    return [(value, ", ".join(names)) for value, names in found.items()]


def weight(line: Line) -> str:
    """What a line means, in a word."""
    return _WEIGHTS[line.weight]


def headline(comparison: Comparison) -> str:
    """The answer in a line."""
    count = f"{len(comparison.names)} receipts"
    if comparison.faults:
        return f"{count}: a machine computes wrongly"
    return f"{count}: they differ" if comparison.differs else f"{count}: the same stack, machines and outcome"


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Of each receipt: name, verdict, what it ran on, driver, how many checks passed, failed and were not run."""
    return [_row(name, receipt) for name, receipt in zip(comparison.names, comparison.receipts, strict=True)]


def _row(name: str, receipt: Receipt) -> tuple[str, ...]:
    checks = receipt.summary.checks
    counts = f"{checks.passed} / {checks.failed} / {checks.not_run}"
    return name, receipt.verdict.value, devices(receipt), receipt.machine.driver or "-", counts


HEADS: Final = ("receipt", "verdict", "ran on", "driver", "passed / failed / not run")
