"""A check's process: what its events are read as, its verdict and hint, and how many processes import early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envspec.conformance import worker
from envspec.conformance.checks import CHECKS
from envspec.conformance.events import ProcessEvents
from envspec.conformance.results import Cause, CheckFinding, Kind
from envspec.conformance.suite import preimport_limit
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
    ("turn", "place", "ahead", "phases"),
    [
        (9.0, 0, [], [("one", 2.0), ("other", 3.0)]),
        (10.0, 0, [], [("one", 2.0), ("other", 3.0)]),
        (12.0, 2, [("one", 2.0)], [("other", 3.0)]),
        (14.0, 3, [("one", 2.0), ("other", 2.0)], [("other", 1.0)]),
        (15.0, 4, [("one", 2.0), ("other", 3.0)], []),
    ],
)
def test_a_phase_is_of_the_turn_or_of_the_time_before(
    tmp_path: Path, turn: float, place: int, ahead: list[tuple[str, float]], phases: list[tuple[str, float]]
) -> None:
    """place: of the turn, among the lines."""
    events = _events(tmp_path, *_PHASES[:place], {"turn": turn}, *_PHASES[place:])
    assert _pairs(events) == [ahead, phases]


def test_a_phase_of_no_time_is_one(tmp_path: Path) -> None:
    assert _pairs(_events(tmp_path, {"turn": 1.0}, {"begin": ["x", 2.0]}, {"phase": ["x", 0.0]})) == [[], [("x", 0.0)]]


def test_a_phase_within_another_of_its_name_ends_first(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"begin": ["x", 1.0]}, {"begin": ["x", 5.0]}, {"turn": 4.0}, {"phase": ["x", 1.0]}]
    events = _events(tmp_path, *lines)
    assert _pairs(events) == [[], [("x", 1.0)]]
    assert events.open_phases == [("x", 1.0)]
