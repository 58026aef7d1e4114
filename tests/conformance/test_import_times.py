"""What is imported before a check's turn: on how many cores, and how its times are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envspec.conformance.checks import CHECKS
from envspec.conformance.events import ProcessEvents
from envspec.conformance.suite import preimport_limit


@pytest.mark.parametrize(("cores", "processes"), [(0.5, 0), (2, 0), (3.9, 0), (4, 1), (7, 1), (8, 2), (128, 2)])
def test_a_few_cores_are_left_to_the_check_that_runs(cores: float, processes: int) -> None:
    assert preimport_limit(cores, 10**12) == processes


@pytest.mark.parametrize(("gigabytes", "processes"), [(0, 0), (4, 0), (8, 1), (16, 2), (1000, 2)])
def test_memory_is_left_to_the_check_that_runs(gigabytes: int, processes: int) -> None:
    assert preimport_limit(128, gigabytes * 10**9) == processes


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
    events = _events(tmp_path, {"turn": 1.0}, {"begin": ["x", 2.0]}, {"phase": ["x", 0.0]})
    assert _pairs(events) == [[], [("x", 0.0)]]


def test_a_phase_within_another_of_its_name_ends_first(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"begin": ["x", 1.0]}, {"begin": ["x", 5.0]}, {"turn": 4.0}, {"phase": ["x", 1.0]}]
    events = _events(tmp_path, *lines)
    assert _pairs(events) == [[], [("x", 1.0)]]
    assert events.open_phases == [("x", 1.0)]


def test_nothing_is_imported_beside_the_cold_start() -> None:
    assert next(iter(CHECKS)) == "coldstart"
    assert CHECKS["coldstart"].alone
    assert CHECKS["coldstart"].preimports == ()


@pytest.mark.parametrize("name", CHECKS)
def test_torch_is_the_first_to_be_preimported(name: str) -> None:
    assert not CHECKS[name].preimports or CHECKS[name].preimports[0] == "torch"
