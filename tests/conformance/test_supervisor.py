"""From what a check's process has said, and how it ended, to its result: which hint is told."""

from __future__ import annotations

import pytest

from envspec.conformance import worker
from envspec.conformance.checks import CHECKS
from envspec.conformance.events import ProcessEvents
from envspec.conformance.results import Cause, CheckFinding, Kind
from envspec.conformance.supervisor import ProcessEnd, verdict

_WRONG = CheckFinding("nms", Kind.EXACT, ok=False, detail="keeps all boxes")


@pytest.mark.parametrize(
    ("end", "raised", "cause", "hint"),
    [
        (ProcessEnd(-11, False, 90), None, Cause.CRASHED, CHECKS["family"].advice),
        (ProcessEnd(worker.DONE, False, 90), None, Cause.FOUND, CHECKS["family"].advice),
        # What companions of torch are built for says nothing of these.
        (ProcessEnd(-9, True, 1), None, Cause.OVER_LIMIT, "--limit NAME=SECONDS gives it more time"),
        (ProcessEnd(-9, False, 90), None, Cause.OUT_OF_MEMORY, "more memory"),
        (ProcessEnd(worker.RAISED, False, 90), ("out of memory", "MemoryError"), Cause.OUT_OF_MEMORY, "more memory"),
    ],
)
def test_the_hint_is_about_the_end_that_came(
    end: ProcessEnd, raised: tuple[str, str] | None, cause: Cause, hint: str
) -> None:
    events = ProcessEvents(
        findings=[_WRONG] if cause is Cause.FOUND else [], raised=raised, done=end.status == worker.DONE
    )
    result = verdict("family", events, end)
    assert (result.cause, hint in result.hint) == (cause, True), result.hint


def test_a_checks_own_hint_is_the_first() -> None:
    events = ProcessEvents(findings=[_WRONG], hints=["take another box"], done=True)
    assert verdict("family", events, ProcessEnd(worker.DONE, False, 90)).hint == "take another box"
