"""The receipt as Markdown, for the summary of a job: the verdict first, details folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from envspec.conformance.results import Kind, Status
from envspec.escaping import html, markdown, one_line, visible
from envspec.receipt.numbers import devices
from envspec.receipt.values import Baseline, CheckRow, Receipt, Verdict
from envspec.report import words

_SIGNS: Final = {Status.PASSED: "✅", Status.FAILED: "❌", Status.NOT_RUN: "⚪"}


def render(receipt: Receipt) -> str:
    """The Markdown, in GitHub's form; ends with a line feed."""
    sections = (
        _head(receipt),
        _checks(receipt.checks),
        chain.from_iterable(_failure(check) for check in receipt.checks if check.status is Status.FAILED),
        _not_run(receipt),
        _baseline(receipt.baseline) if receipt.baseline else (),
        _numbers(receipt),
        _where(receipt),
    )
    return "\n".join(chain(*sections)).rstrip("\n") + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of cells that are Markdown already."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines that are shown when somebody asks for them."""
    yield f"<details><summary>{html(one_line(title))}</summary>"
    yield ""
    yield from lines
    yield "</details>"
    yield ""


def verbatim(text: str) -> str:
    """Lines as they are: a block of HTML, in which no Markdown is read and which no run of backticks ends."""
    return f"<pre>{html(visible(text))}</pre>"


def _head(receipt: Receipt) -> Iterator[str]:
    sign = _SIGNS[Status.PASSED if receipt.verdict is Verdict.PASSED else Status.FAILED]
    yield f"## {sign} {markdown(receipt.lock.name)}: {receipt.verdict.value} on {markdown(devices(receipt))}"
    yield ""
    yield f"Checks: {words.counted(receipt.summary.checks)}. Findings: {words.counted(receipt.summary.findings)}."
    yield ""
    for reason in receipt.reasons:
        yield f"- {markdown(reason)}"
    if receipt.reasons:
        yield ""


def _checks(checks: Iterable[CheckRow]) -> Iterator[str]:
    rows = [
        (
            markdown(check.check) + (" (required)" if check.required else ""),
            f"{_SIGNS[check.status]} {check.status.value}",
            f"{check.seconds:.1f} s" if check.seconds else "",
            _judged(check),
            markdown(words.cause(check) if check.status is Status.FAILED else check.reason),
        )
        for check in checks
    ]
    return table(("check", "", "time", "findings", "why"), rows)


def _judged(check: CheckRow) -> str:
    judged = [finding for finding in check.findings if finding.ok is not None]
    return f"{sum(bool(finding.ok) for finding in judged)} of {len(judged)}" if judged else ""


def _failure(check: CheckRow) -> Iterator[str]:
    yield f"### ❌ {markdown(check.check)}"
    yield ""
    yield markdown(words.cause(check))
    yield ""
    if check.hint:
        yield f"**What to do:** {markdown(check.hint)}"
        yield ""
    wrong = [finding for finding in check.findings if finding.ok is False]
    if wrong:
        rows = [
            (markdown(finding.name), markdown(words.amount(finding.value, finding.unit)), markdown(words.held(finding)))
            for finding in wrong
        ]
        yield from table(("finding", "value", "asked"), rows)
    if check.log:
        yield from folded("the end of what it printed", [verbatim(check.log), ""])


def _not_run(receipt: Receipt) -> Iterator[str]:
    rows = [
        (markdown(check.check), "", markdown(check.reason))
        for check in receipt.checks
        if check.status is Status.NOT_RUN
    ]
    rows += [
        (markdown(check.check), markdown(finding.name), markdown(finding.told))
        for check in receipt.checks
        for finding in check.findings
        if finding.kind is Kind.NOT_RUN
    ]
    if rows:
        yield "### Not run"
        yield ""
        yield from table(("check", "part", "why"), rows)


def _baseline(baseline: Baseline) -> Iterator[str]:
    yield f"### Beside the receipt of {markdown(baseline.lock)}, {baseline.made_at:%Y-%m-%d %H:%M} UTC"
    yield ""
    if baseline.not_compared:
        yield f"Not compared: {markdown(baseline.not_compared)}"
        yield ""
        return
    rows = [
        (
            markdown(f"{row.check}: {row.name}"),
            markdown(words.amount(row.recorded, row.unit)),
            markdown(words.amount(row.now, row.unit)),
            f"{words.percent(row.change)}{' ❌' if row.is_worse else ''}",
            words.share(row.tolerance),
        )
        for row in baseline.rows
    ]
    yield from table(("number", "recorded", "now", "change", "tolerance"), rows)
    if baseline.missing:
        yield f"Not measured now: {markdown(', '.join(baseline.missing))}"
        yield ""


def _numbers(receipt: Receipt) -> Iterator[str]:
    rows = [
        (
            markdown(check.check),
            markdown(finding.name),
            markdown(words.amount(finding.value, finding.unit)),
            markdown(words.held(finding)),
            words.outcome(finding),
        )
        for check in receipt.checks
        for finding in check.findings
        if finding.value is not None
    ]
    if rows:
        yield from folded("Numbers", table(("check", "number", "value", "asked", ""), rows))


def _where(receipt: Receipt) -> Iterator[str]:
    ran = receipt.ran.items()
    rows = [(markdown(what), markdown(text)) for what, text in (*words.stack(receipt), *words.facts(receipt), *ran)]
    return folded("Stack, machine and versions", table(("", ""), rows))
