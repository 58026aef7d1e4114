"""From what a check's process has said, and how it ended, to its result: which hint is told."""

from __future__ import annotations

import pytest

from envspec.conformance import worker
from envspec.conformance.checks import CHECKS
from envspec.conformance.events import Heard
from envspec.conformance.results import Cause, Finding, Kind
from envspec.conformance.supervisor import End, judged

_WRONG = Finding("nms", Kind.EXACT, ok=False, told="keeps all boxes")


@pytest.mark.parametrize(
    ("end", "raised", "cause", "hint"),
    [
        (End(-11, False, 90), None, Cause.CRASHED, CHECKS["family"].advice),
        (End(worker.DONE, False, 90), None, Cause.FOUND, CHECKS["family"].advice),
        # What companions of torch are built for says nothing of these.
        (End(-9, True, 1), None, Cause.OVER_LIMIT, "--limit NAME=SECONDS gives it more time"),
        (End(-9, False, 90), None, Cause.OUT_OF_MEMORY, "more memory"),
        (End(worker.RAISED, False, 90), ("out of memory", "MemoryError"), Cause.OUT_OF_MEMORY, "more memory"),
    ],
)
def test_the_hint_is_about_the_end_that_came(end: End, raised: tuple[str, str] | None, cause: Cause, hint: str) -> None:
    heard = Heard(findings=[_WRONG] if cause is Cause.FOUND else [], raised=raised, done=end.status == worker.DONE)
    result = judged("family", heard, end)
    assert (result.cause, hint in result.hint) == (cause, True), result.hint


def test_a_checks_own_hint_is_the_first() -> None:
    heard = Heard(findings=[_WRONG], hints=["take another box"], done=True)
    assert judged("family", heard, End(worker.DONE, False, 90)).hint == "take another box"
