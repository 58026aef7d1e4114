"""The benchmark of the conda half: the channel that it makes, its questions, how answers are read, and its report."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from bench import conda_bare, conda_channel, conda_stage
from bench.conda_memory import OwnMemory
from bench.conda_questions import Question
from bench.conda_report import GOAL_ROWS, Agreement, Case, CondaResults, Sample, goals, mid, page, plot, ratio
from bench.conda_stack import WANTED
from bench.conda_tools import BARE, CONDA_LOCK, ENVSPEC, STAGE, TOOLS, Place
from envspec.context import Context
from envspec.resolve.conda.rattler import Rattler
from envspec.resolve.conda.solve import solve_all

CASE = Case(GOAL_ROWS, 1)


def sample(tool: str, cpu_s: float, case: Case = CASE, **changes: object) -> Sample:
    values: dict[str, object] = {
        "case": case,
        "tool": tool,
        "round": 0,
        "wall_s": cpu_s,
        "cpu_s": cpu_s,
        "peak_bytes": 500_000_000,
        "own_bytes": 100_000_000,
        "exit_code": 0,
        "said": "",
        **changes,
    }
    return Sample(**values)  # type: ignore[arg-type]


def results(*samples: Sample, agreements: tuple[Agreement, ...] = ()) -> CondaResults:
    return CondaResults(
        machine={"date": "2026-11-20", "cpu": "a processor"},
        tools={BARE: "0.28.0"},
        notes={BARE: "the floor"},
        options={"rounds": 1},
        channels={"650,000": {"linux-64": "433,333 in 240 MB"}},
        samples=samples,
        agreements=agreements,
    )


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channel")
    conda_channel.write(folder, 36_000, ("linux-64", "osx-arm64"))
    return folder


def rows_of(channel: Path, subdir: str) -> dict[str, dict[str, object]]:
    document = json.loads((channel / subdir / "repodata.json").read_text())
    assert document["info"] == {"subdir": subdir}
    return {**document["packages"], **document["packages.conda"]}


def test_a_channel_has_the_rows_that_were_asked_for(channel: Path) -> None:
    counts = {subdir: len(rows_of(channel, subdir)) for subdir in ("linux-64", "noarch", "osx-arm64")}
    assert counts == {"linux-64": 24_000, "noarch": 12_000, "osx-arm64": 14_400}


def test_its_rows_name_their_file_and_stand_in_order(channel: Path) -> None:
    for subdir in ("linux-64", "noarch"):
        document = json.loads((channel / subdir / "repodata.json").read_text())
        for table, suffix in (("packages", ".tar.bz2"), ("packages.conda", ".conda")):
            assert all(one < other for one, other in pairwise(document[table]))
            assert all(
                filename == f"{row['name']}-{row['version']}-{row['build']}{suffix}" and row["subdir"] == subdir
                for filename, row in document[table].items()
            )


def test_its_rows_are_the_same_every_time(channel: Path) -> None:
    again = {entry.filename: json.loads(entry.text) for entry in conda_channel.entries("noarch", 12_000)}
    assert again == rows_of(channel, "noarch")


def test_it_has_cuda_builds_of_each_python_but_none_for_macos(channel: Path) -> None:
    newest = {row["build"]: row for row in rows_of(channel, "linux-64").values() if row["name"] == WANTED[0]}
    assert {build.split("_")[0] for build in map(str, newest)} == {
        "cpu",
        "cuda118",
        "cuda126",
        "cuda128",
        "cuda129",
        "cuda130",
    }
    assert not [row for row in rows_of(channel, "osx-arm64").values() if "cuda" in str(row["build"])]


def test_too_few_rows_for_the_stack_are_refused() -> None:
    with pytest.raises(ValueError, match=r"linux-64: 100 rows are too few, the stack alone has \d+"):
        conda_channel.entries("linux-64", 100)


def test_real_rows_take_the_place_of_made_ones_with_their_name(tmp_path: Path) -> None:
    real = {"name": "cuda-version", "version": "99", "build": "0", "build_number": 0, "depends": []}
    (tmp_path / "noarch").mkdir()
    text = json.dumps({"packages": {}, "packages.conda": {"cuda-version-99-0.conda": real}})
    (tmp_path / "noarch" / "repodata.json").write_text(text)
    found = list(conda_channel.entries("noarch", 3_000, tmp_path))
    assert len(found) == 3_000
    assert [entry.filename for entry in found if "cuda-version-" in entry.filename] == ["cuda-version-99-0.conda"]


def test_the_tools_are_asked_the_same_and_answer_the_same(channel: Path, tmp_path: Path) -> None:
    question = Question(channel.as_uri(), ("linux-64", "osx-arm64")).document()
    bare = asyncio.run(conda_bare.answers(question, tmp_path / "bare"))
    world = Context({}, tmp_path, tmp_path / "stage")
    stage = asyncio.run(solve_all(conda_stage.requests(question), Rattler(), world))
    assert [sorted(row.url for row in rows) for rows in bare] == [
        sorted(package.url for package in answer.packages) for answer in stage
    ]
    builds = [{row.name.normalized: str(row.build) for row in rows} for rows in bare]
    assert [found[WANTED[0]].split("_")[0] for found in builds] == ["cuda129", "cpu"]
    assert [len(rows) for rows in bare] == pytest.approx([110, 100], abs=15)


def test_conda_lock_is_asked_for_cuda_builds_where_there_is_cuda() -> None:
    question = Question("file:///channel", ("linux-64", "osx-arm64"))
    lines = question.environment().splitlines()
    assert f"  - {WANTED[0]} * cuda*  # [linux64]" in lines
    assert f"  - {WANTED[0]}  # [arm64]" in lines
    assert [line for line in lines if "cuda-version" in line] == ["  - cuda-version <=12.9  # [linux64]"]
    packages = {name: of["packages"] for name, of in yaml.safe_load(question.virtual_packages())["subdirs"].items()}
    assert packages["linux-64"]["__cuda"] == "12.9"
    assert packages["linux-64"]["__archspec"] == "1 x86_64"
    assert "__cuda" not in packages["osx-arm64"]


def test_every_tools_answer_is_read_in_one_form(tmp_path: Path) -> None:
    url = "file:///c/noarch/a-1-0.conda"
    (tmp_path / "stdout").write_text(f"linux-64 {url}\n")
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / "conda-linux-64.lock").write_text(
        f"# a comment: https://somewhere\n@EXPLICIT\n{url}#sha256:00\n"
    )
    package = {"name": "a", "manager": "conda", "platform": "linux-64", "url": url, "hash": {"md5": "0"}}
    (tmp_path / "conda-lock.yml").write_text(yaml.safe_dump({"version": 1, "package": [package]}, sort_keys=False))
    place = Place(tmp_path, tmp_path)
    for name in (BARE, STAGE, ENVSPEC, CONDA_LOCK):
        assert TOOLS[name].answer(place) == {("linux-64", url)}, name


def test_ratios_are_of_medians_over_runs_that_ended_well() -> None:
    runs = [sample(BARE, cpu_s) for cpu_s in (1.0, 2.0, 9.0)]
    runs += [sample(ENVSPEC, cpu_s) for cpu_s in (3.0, 3.0)]
    runs += [sample(ENVSPEC, 0.1, exit_code=4), sample(ENVSPEC, 0.1, exit_code=None)]
    assert mid(runs, CASE, BARE, "cpu_s") == 2.0
    assert ratio(runs, CASE, ENVSPEC) == 1.5
    assert ratio(runs, CASE, CONDA_LOCK) is None


def test_goals_count_on_the_large_channel_alone() -> None:
    small = Case(20_000, 1)
    runs = [sample(tool, 1.0, small) for tool in (BARE, ENVSPEC)] + [sample(BARE, 1.0), sample(ENVSPEC, 1.3)]
    assert [(goal.what, goal.measured, goal.is_met) for goal in goals(runs)] == [
        ("envspec lock, CPU", 1.3, False),
        ("envspec lock, peak memory", 500.0, True),
    ]


def test_the_page_says_what_was_missed_what_differs_and_what_failed() -> None:
    runs = (sample(BARE, 1.0), sample(ENVSPEC, 1.3), sample(CONDA_LOCK, 2.0, exit_code=1, said="no conda\nhere"))
    text = page(results(*runs, agreements=(Agreement(CASE, BARE, 114, 0), Agreement(CASE, ENVSPEC, 113, 3))))
    assert "| envspec lock, CPU | 650,000 rows, 1 platform, file:// | 1.30 | <= 1.2 x py-rattler | MISSED |" in text
    assert "| py-rattler | 1.00 | 1.00 | 1.00 | 1.00 | 500 | 100 | 114 | yes |" in text
    assert "| envspec lock | 1.30 | 1.30 | 1.30 | 1.30 | 500 | 100 | 113 | 3 differ |" in text
    assert "- 650,000 rows, 1 platform, file://, conda-lock: exit 1: no conda here" in text


def test_without_the_large_channel_no_goal_is_claimed() -> None:
    assert "None: no channel of 650,000 rows was measured." in page(results(sample(BARE, 1.0, Case(20_000, 1))))


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    runs = [sample(tool, 1.0, Case(rows, 1)) for tool in (BARE, ENVSPEC) for rows in (20_000, 80_000)]
    plot(results(*runs), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_memory_is_a_childs_own() -> None:
    code = "import time; held = bytearray(60_000_000); time.sleep(0.3)"
    with OwnMemory() as own:
        subprocess.run([sys.executable, "-c", code], check=True)
    assert 60e6 < own.peak_bytes < 100e6


def test_memory_of_a_child_that_was_there_before_does_not_count() -> None:
    held = "held = bytearray(60_000_000); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        with OwnMemory() as own:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(0.3)"], check=True)
        other.communicate(b"\n")
    assert 0 < own.peak_bytes < 40e6


def test_memory_before_a_program_has_started_is_its_parents() -> None:
    """Between fork and exec, which can take long on a busy machine, a child has its parent's memory."""
    code = "import os, time; held = bytearray(60_000_000); here = os.fork(); time.sleep(0.3); here and os.wait()"
    with OwnMemory() as own:
        subprocess.run([sys.executable, "-c", code], check=True)
    assert 60e6 < own.peak_bytes < 100e6
