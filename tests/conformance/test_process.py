"""A check's process: what its events are read as, its verdict and hint, and how many processes import early."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envspec.conformance import isolation
from envspec.conformance.checks import CHECKS
from envspec.conformance.events import ProcessEvents
from envspec.conformance.isolation import Overrun
from envspec.conformance.results import Cause, CheckFinding, CheckOutcome, Kind, Status
from envspec.conformance.suite import preimport_limit
from envspec.conformance.supervisor import merged, verdict


def _overrun(*, is_stuck: bool) -> Overrun:
    return Overrun(limit_s=120, wall_s=1700, waited_s=1580, is_stuck=is_stuck)


_FOUND = ProcessEvents(findings=[CheckFinding("nms", Kind.EXACT, ok=False, detail="keeps all boxes")], done=True)


@pytest.mark.parametrize(
    ("events", "exited", "overrun", "cause", "hint"),
    [
        (ProcessEvents(), -11, None, Cause.CRASHED, CHECKS["family"].advice),
        (_FOUND, isolation.DONE, None, Cause.FOUND, CHECKS["family"].advice),
        (replace(_FOUND, hints=["take another box"]), isolation.DONE, None, Cause.FOUND, "take another box"),
        # What companions of torch are built for says nothing of these.
        (ProcessEvents(), -9, _overrun(is_stuck=True), Cause.OVER_LIMIT, "--limit NAME=SECONDS gives it more time"),
        (ProcessEvents(), -9, _overrun(is_stuck=False), Cause.OUT_OF_TIME, "--limit-factor"),
        # What is wrong is known.
        (_FOUND, -9, _overrun(is_stuck=False), Cause.FOUND, CHECKS["family"].advice),
        (ProcessEvents(), -9, None, Cause.OUT_OF_MEMORY, "more memory"),
        (ProcessEvents(raised=("out of memory", "")), isolation.RAISED, None, Cause.OUT_OF_MEMORY, "more memory"),
    ],
)
def test_the_hint_is_about_the_end_that_came(
    events: ProcessEvents, exited: int, overrun: Overrun | None, cause: Cause, hint: str
) -> None:
    result = verdict("family", events, exited, overrun)
    assert (result.cause, hint in result.hint) == (cause, True), result.hint
    assert result.status is (Status.NOT_KNOWN if cause is Cause.OUT_OF_TIME else Status.FAILED)


def test_running_out_of_time_is_reported_with_what_took_the_time() -> None:
    reason = verdict("family", ProcessEvents(), -9, _overrun(is_stuck=False)).reason
    took = "its limit is 120 s, and it took 1700 s, of which it waited 1580 s for a CPU"
    assert reason == f"ran out of time between two phases: {took}"


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        ("passed not_run", Status.PASSED, "0"),
        ("passed not_known", Status.NOT_KNOWN, "GPU 1: 1"),
        ("not_known failed passed", Status.FAILED, "GPU 1: 1"),
        ("not_known not_known", Status.NOT_KNOWN, "GPU 0: 0; GPU 1: 1"),
    ],
)
def test_a_check_is_what_the_worst_of_its_processes_is(words: str, status: Status, reason: str) -> None:
    statuses = [Status[each.upper()] for each in words.split()]
    outcome = merged({gpu: CheckOutcome("amp", each, reason=str(gpu)) for gpu, each in enumerate(statuses)})
    assert (outcome.status, outcome.reason) == (status, reason)


@pytest.mark.parametrize(
    ("cores", "gigabytes", "processes"),
    [
        *((cores, 1000, count) for cores, count in [(0.5, 0), (2, 0), (3.9, 0), (4, 1), (7, 1), (8, 2), (128, 2)]),
        *((128, gigabytes, count) for gigabytes, count in [(0, 0), (4, 0), (8, 1), (16, 2)]),
    ],
)
def test_cores_and_memory_are_left_to_the_check_that_runs(cores: float, gigabytes: int, processes: int) -> None:
    assert preimport_limit(cores, gigabytes * 10**9) == processes


def _events(folder: Path, *lines: dict[str, Any]) -> ProcessEvents:
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return ProcessEvents.read(path)


def _pairs(events: ProcessEvents) -> list[list[tuple[str, float]]]:
    """Preimports and phases."""
    return [[(each.name, each.seconds) for each in found] for found in (events.preimports, events.phases)]


_PHASES: list[dict[str, Any]] = [
    {"begin": ["one", 10.0]},
    {"phase": ["one", 2.0]},
    {"begin": ["other", 12.0]},
    {"phase": ["other", 3.0]},
]


@pytest.mark.parametrize(
    ("lines", "ahead", "phases"),
    [
        ([{"turn": 9.0}, *_PHASES], [], [("one", 2.0), ("other", 3.0)]),
        ([{"turn": 10.0}, *_PHASES], [], [("one", 2.0), ("other", 3.0)]),
        ([*_PHASES[:2], {"turn": 12.0}, *_PHASES[2:]], [("one", 2.0)], [("other", 3.0)]),
        ([*_PHASES[:3], {"turn": 14.0}, *_PHASES[3:]], [("one", 2.0), ("other", 2.0)], [("other", 1.0)]),
        ([*_PHASES, {"turn": 15.0}], [("one", 2.0), ("other", 3.0)], []),
        ([{"turn": 1.0}, {"begin": ["x", 2.0]}, {"phase": ["x", 0.0]}], [], [("x", 0.0)]),
    ],
)
def test_a_phase_is_of_the_turn_or_of_the_time_before(
    tmp_path: Path, lines: list[dict[str, Any]], ahead: list[tuple[str, float]], phases: list[tuple[str, float]]
) -> None:
    assert _pairs(_events(tmp_path, *lines)) == [ahead, phases]


def test_a_phase_within_another_of_its_name_ends_first(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"begin": ["x", 1.0]}, {"begin": ["x", 5.0]}, {"turn": 4.0}, {"phase": ["x", 1.0]}]
    events = _events(tmp_path, *lines)
    assert _pairs(events) == [[], [("x", 1.0)]]
    assert events.open_phases == [("x", 1.0)]
