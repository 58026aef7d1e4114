"""The receipt for a terminal: lines at the margin are headings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from textwrap import wrap
from typing import Final

from envspec.conformance.results import Kind, Status
from envspec.escaping import one_line, visible
from envspec.receipt.numbers import devices
from envspec.receipt.values import Baseline, CheckRow, Receipt
from envspec.report import words

WIDTH: Final = 100
_MARGIN: Final = "  "


def render(receipt: Receipt, width: int = WIDTH) -> str:
    """The receipt as text of `width` characters a line; ends with a line feed."""
    sections = (
        _head(receipt, width),
        _checks(receipt.checks, width),
        _parts(receipt.checks, width),
        _baseline(receipt.baseline, width) if receipt.baseline else (),
    )
    return "".join(f"{line.rstrip()}\n" for line in chain(*sections))


def _head(receipt: Receipt, width: int) -> Iterator[str]:
    yield one_line(f"{receipt.lock.name}: {receipt.verdict.value} on {devices(receipt)}")
    rows = [
        ("checks", words.counted(receipt.summary.checks)),
        ("findings", f"{words.counted(receipt.summary.findings)}, {receipt.summary.findings.informing} informing"),
        ("where", words.place(receipt)),
        ("driver", receipt.machine.driver),
        ("ran", ", ".join(f"{what} {version}" for what, version in receipt.ran.items())),
        ("time", words.amount(receipt.seconds, "s")),
        *(("because", reason) for reason in receipt.reasons),
    ]
    yield from _table([row for row in rows if row[1]], width)


def _checks(checks: Iterable[CheckRow], width: int) -> Iterator[str]:
    yield "Checks"
    for check in checks:
        text = words.cause(check) if check.status is Status.FAILED else check.reason
        head = f"{_MARGIN}{check.status.value:<7}  {one_line(check.check):<11}  {_seconds(check):>7}  "
        yield from hanging(head, text, width)
        if check.hint:
            yield from hanging(" " * len(head), f"-> {check.hint}", width)


def _seconds(check: CheckRow) -> str:
    return f"{check.seconds:.1f} s" if check.seconds else ""


def _parts(checks: Iterable[CheckRow], width: int) -> Iterator[str]:
    rows = [
        (f"{check.check}: {finding.name}", finding.told)
        for check in checks
        for finding in check.findings
        if finding.kind is Kind.NOT_RUN
    ]
    if rows:
        yield "Parts that were not run"
        for what, why in rows:
            yield from hanging(_MARGIN, f"{what}: {why}", width)


def _baseline(baseline: Baseline, width: int) -> Iterator[str]:
    yield f"Beside the receipt of {baseline.lock}, {baseline.made_at:%Y-%m-%d %H:%M} UTC"
    if baseline.not_compared:
        yield from hanging(_MARGIN, f"not compared: {baseline.not_compared}", width)
        return
    worse = [row for row in baseline.rows if row.is_worse]
    counted = "1 number" if len(baseline.rows) == 1 else f"{len(baseline.rows)} numbers"
    yield f"{_MARGIN}{counted} compared, {len(worse)} worse than the tolerance"
    for row in worse:
        numbers = f"{words.amount(row.recorded, row.unit)} -> {words.amount(row.now, row.unit)}"
        change = f"{words.percent(row.change)} where {words.share(row.tolerance)} is allowed"
        yield from hanging(_MARGIN, f"{row.check}: {row.name}: {numbers} ({change})", width)
    for what in baseline.missing:
        yield from hanging(_MARGIN, f"not measured now: {what}", width)


def _table(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    names = max(len(what) for what, _ in rows)
    for what, text in rows:
        yield from hanging(f"{_MARGIN}{what:<{names}}  ", text, width)


def hanging(head: str, text: str, width: int) -> list[str]:
    """Text beside a head, each of its lines wrapped and below the first."""
    room = max(20, width - len(head))
    lines = [part for line in visible(text).split("\n") for part in wrap(line, room, break_on_hyphens=False)]
    first, *rest = lines or [""]
    return [f"{head}{first}", *(f"{'':<{len(head)}}{line}" for line in rest)]
