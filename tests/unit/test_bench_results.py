"""The benchmark's arithmetic, its reading of locks, and what it publishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import markdown, pins, stacks
from bench.peers import PEERS
from bench.results import (
    OURS,
    REFERENCE,
    Absence,
    Answer,
    Results,
    Sample,
    Scenario,
    lock_goals,
    mid,
    published,
    ratio,
    verdict_on,
)


def sample(tool: str, wall_s: float, scenario: Scenario = Scenario.COLD, **changes: object) -> Sample:
    values: dict[str, object] = {
        "stack": "s29",
        "tool": tool,
        "scenario": scenario.value,
        "round": 0,
        "wall_s": wall_s,
        "cpu_s": 0.1,
        "peak_bytes": 100_000_000,
        "received_bytes": None,
        "exit_code": 0,
        "said": "",
        **changes,
    }
    return Sample(**values)  # type: ignore[arg-type]


def test_a_ratio_is_of_medians_over_runs_that_ended_well() -> None:
    runs = [sample(OURS, wall_s) for wall_s in (1.0, 2.0, 9.0)]
    runs += [sample(OURS, 0.01, exit_code=4), sample(OURS, 60, exit_code=None)]
    runs += [sample(REFERENCE, wall_s) for wall_s in (4.0, 4.0)]
    assert mid(runs, "s29", OURS, Scenario.COLD) == 2.0
    assert ratio(runs, "s29", OURS, Scenario.COLD) == 0.5
    assert ratio(runs, "s29", OURS, Scenario.WARM) is None


def test_a_run_whose_bytes_were_counted_is_not_timed_where_others_are() -> None:
    runs = [sample(OURS, 9.0, received_bytes=5_000_000), sample(OURS, 1.0)]
    assert mid(runs, "s29", OURS, Scenario.COLD) == 1.0
    assert mid(runs, "s29", OURS, Scenario.COLD, "received_bytes") == 5_000_000
    assert mid(runs[:1], "s29", OURS, Scenario.COLD) == 9.0


def test_goals_are_only_for_stacks_that_both_locked() -> None:
    runs = [
        sample(OURS, 1.2),
        sample(REFERENCE, 1.0),
        sample(OURS, 0.2, Scenario.WARM),
        sample(REFERENCE, 1.0, Scenario.WARM),
    ]
    verdicts = {goal.what: goal.is_met for goal in lock_goals(runs, ["s29", "s27"])}
    assert verdicts == {"cold, time": False, "warm, time": True, "cold, peak memory": True}


@pytest.mark.parametrize(
    ("family", "verdict"),
    [
        ({"torch": "2.9.1", "torchaudio": "2.9.1", "torchvision": "0.24.1"}, "coherent"),
        ({"torch": "2.9.1", "torchaudio": "2.11.0"}, "torchaudio 2.11.0 beside torch 2.9.1"),
        ({"torch": "2.7.0+cu126", "torchaudio": "2.7.1+cu126"}, "coherent"),
        ({"torch": "2.7.0", "torchtext": "0.18.0"}, "torchtext 0.18.0 beside torch 2.7.0"),
        ({"torch": "2.11.0", "torchaudio": "2.11.0"}, "coherent"),
        ({}, ""),
    ],
)
def test_the_verdict_on_a_family(family: dict[str, str], verdict: str) -> None:
    assert verdict_on(family) == verdict


def test_what_is_published_names_no_address_host_or_path() -> None:
    told = published("at https://index.example.com/x/, host files.example.org, in /home/me/.cache/x.json: failed")
    assert told == "at <url>, host <host>, in <path>: failed"


def test_pins_are_read_from_every_tool_s_lock(tmp_path: Path) -> None:
    texts = {
        "requirements.txt": "# c\nTorch==2.9.1 \\\n    --hash=sha256:00\n"
        "zope.event[x]==5.0 ; python_version > '3'\n    # via torch==1\n",
        "uv.lock": '[[package]]\nname = "stack"\nversion = "0"\nsource = { virtual = "." }\n'
        '[[package]]\nname = "numpy"\nversion = "1.26.4"\nsource = { registry = "x" }\n'
        '[[package]]\nname = "numpy"\nversion = "2.2.0"\nsource = { registry = "x" }\n',
        "pylock.toml": '[[packages]]\nname = "torch"\nversion = "2.9.1"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert pins.read(tmp_path / "requirements.txt") == {"torch": "2.9.1", "zope-event": "5.0"}
    assert pins.read(tmp_path / "uv.lock") == {"numpy": "1.26.4|2.2.0"}
    assert pins.family_of(pins.read(tmp_path / "pylock.toml")) == {"torch": "2.9.1"}


@pytest.mark.parametrize("name", stacks.names())
def test_every_stack_is_dated_and_asks_for_none_of_the_names_that_are_added(name: str) -> None:
    stack = stacks.load(name)
    assert stack.as_of.utcoffset() is not None
    assert not set(stacks.ADDED) & set(stack.requirements)


def test_a_changed_stack_changes_its_spec() -> None:
    stack = stacks.load("s29").plus("humanize").on("linux-64", "osx-arm64")
    assert stack.requirements[-1] == "humanize"
    assert '"humanize"' in stack.spec
    assert '"osx-arm64"' in stack.spec
    assert stack.spec.count("torch==2.9.1") == 1


def test_the_page_names_what_did_not_run() -> None:
    results = Results(
        machine={"cpu": "x"},
        tools={OURS: "1"},
        notes={"pip lock": "today"},
        options={"runs": 1},
        samples=(sample(OURS, 1.0), sample("poetry", 2.0, exit_code=1, said="Expecting value")),
        absences=(Absence("s26", "pdm", "cold", "no interpreter of Python 3.10 on this machine"),),
        answers=(Answer("s29", OURS, 132, {"torch": "2.9.1"}, "coherent"),),
        goals=(),
    )
    page = markdown.page(results)
    assert "- s26, pdm, cold: not run: no interpreter of Python 3.10 on this machine" in page
    assert "- s29, poetry, cold: exit 1 after 2.0 s: Expecting value" in page
    assert "| envspec | 1.00 |" in page


def test_the_peers_that_readers_ask_for_are_there() -> None:
    assert {"uv pip compile", "uv lock", "pip-compile", "pip lock", "poetry", "pdm", OURS} <= set(PEERS)
