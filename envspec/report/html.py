"""The receipt as one page: nothing of it comes from elsewhere, and it runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.conformance.results import Kind
from envspec.escaping import visible
from envspec.receipt.numbers import devices
from envspec.receipt.values import CheckRow, Receipt
from envspec.report import plots, words

if TYPE_CHECKING:
    from jinja2 import Environment


def render(receipt: Receipt) -> str:
    """The page; ends with a line feed."""
    template = environment().get_template("receipt.html.jinja")
    drawn = {"bounds": plots.bounds(receipt), "times": plots.times(receipt), "memory": plots.memory(receipt)}
    return (
        template.render(
            receipt=receipt,
            devices=devices(receipt),
            machine=words.facts(receipt),
            stack=words.stack(receipt),
            not_run=_not_run(receipt),
            **drawn,
        ).rstrip("\n")
        + "\n"
    )


def environment() -> Environment:
    """The templates, and the words that they use. Every value is escaped; a name that is not there is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("envspec.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What a template prints is text first: what a page can't show is written as an escape before it is escaped.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    made.filters.update(
        amount=words.amount,
        held=words.held,
        outcome=words.outcome,
        cause=words.cause,
        percent=words.percent,
        share=words.share,
        counted=words.counted,
        used=plots.used,
        judged=_judged,
    )
    return made


def _judged(check: CheckRow) -> str:
    judged = [finding.ok for finding in check.findings if finding.ok is not None]
    return f"{sum(judged)} of {len(judged)}" if judged else ""


def _not_run(receipt: Receipt) -> list[tuple[str, str, str]]:
    """(check, part, why): whole checks, and parts of those that ran."""
    whole = [(check.check, "", check.reason) for check in receipt.checks if check.status.value == "not run"]
    parts = [
        (check.check, finding.name, finding.told)
        for check in receipt.checks
        for finding in check.findings
        if finding.kind is Kind.NOT_RUN
    ]
    return whole + parts
