"""A run beside a recorded one of the same kind of machine: is it slower, does it need more memory?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envspec.receipt.numbers import Number, has_kind, kind, numbers, worsening
from envspec.receipt.values import Baseline, BaselineRow, Receipt


def against(now: Receipt, recorded: Receipt) -> Baseline:
    """Every rate and every peak of memory of `now` beside that of `recorded`.

    Machines of another kind, or of one that is not known, are not compared: the answer says so.
    """
    head = Baseline(lock=recorded.lock.name, made_at=recorded.made_at, machine=kind(recorded))
    if kind(now) != kind(recorded):
        why = f"another kind of machine: recorded on {kind(recorded)}; this is {kind(now)}"
        return head.model_copy(update={"not_compared": why})
    if not has_kind(now):
        why = f"the kind of machine is not known: it has {kind(now)}"
        return head.model_copy(update={"not_compared": why})
    present = {number.key: number for number in numbers(now)}
    judged = [number for number in numbers(recorded) if number.tolerance is not None and number.value]
    rows = tuple(_row(number, present[number.key].value) for number in judged if number.key in present)
    missing = tuple(_missing(now, [number for number in judged if number.key not in present]))
    return head.model_copy(update={"rows": rows, "missing": missing})


def _missing(now: Receipt, gone: Sequence[Number]) -> Iterator[str]:
    """What the run has no number for; checks that it was not asked for are told of once."""
    asked = {check.check for check in now.checks}
    unasked = dict.fromkeys(number.check for number in gone if number.check not in asked)
    if unasked:
        yield f"{', '.join(unasked)}, not asked for"
    yield from (f"{number.check}: {number.name}" for number in gone if number.check in asked)


def _row(number: Number, now: float) -> BaselineRow:
    tolerance = number.tolerance or 0.0
    return BaselineRow(
        check=number.check,
        name=number.name,
        unit=number.unit,
        recorded=number.value,
        now=now,
        change=(now - number.value) / number.value,
        tolerance=tolerance,
        is_worse=worsening(number.better, number.value, now) > tolerance,
    )
