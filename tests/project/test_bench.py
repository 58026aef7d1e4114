"""What the benchmarks publish: costs, medians, equal requests for all tools, and nothing of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from bench import gpu_coverage, gpu_day, lock
from bench.conda import Question
from bench.conda_channel import WANTED, write
from bench.conda_solvers import bare, requests
from bench.harness import Absence, Cost, Results, Sample, clean, published, run, sampled
from bench.peers import ADDED, load_stack, pins_of, stack_names
from envspec.context import Context
from envspec.receipts.model import read
from envspec.resolve.conda.solve import solve_all
from envspec.resolve.conda.solver import Rattler

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


def sample(tool: str, scenario: str, exit_code: int | None = 0, **figures: float) -> Sample:
    return Sample("s29", tool, scenario, 0, figures, exit_code, "Expecting\nvalue" if exit_code else "")


@linux_only
def test_costs_are_those_of_the_process_tree(tmp_path: Path) -> None:
    hold = "import sys, time; held = bytearray(60_000_000); time.sleep(0.4); sys.exit('so it ends')"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    alone, below = (
        run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, limit_s=20) for code in (hold, parent)
    )
    assert (alone.exit_code, alone.output) == (1, "so it ends")
    assert 0 < alone.cpu_s <= alone.wall_s + 0.5
    assert below.peak_bytes > alone.peak_bytes > alone.own_bytes > 60_000_000


@linux_only
def test_a_run_over_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import time, pathlib; time.sleep(0.8); pathlib.Path('alive').touch()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    cost = run([sys.executable, "-c", parent], cwd=tmp_path, env=os.environ, limit_s=0.3)
    assert cost.exit_code is None and not cost.is_done
    time.sleep(0.8)
    assert not (tmp_path / "alive").exists()


def test_a_measured_command_has_nothing_of_the_machine_s_configuration(tmp_path: Path) -> None:
    machine = {"SSL_CERT_FILE": "/c.pem", "PIP_INDEX_URL": "http://a", "UV_INDEX": "http://b", "HOME": "/home/me"}
    environ = clean(machine, home=tmp_path, proxy="http://127.0.0.1:1")
    assert environ["SSL_CERT_FILE"] == "/c.pem"
    assert (environ["HOME"], environ["HTTPS_PROXY"]) == (str(tmp_path), "http://127.0.0.1:1")
    assert not {"PIP_INDEX_URL", "UV_INDEX"} & set(environ)


def test_a_ratio_is_of_medians_over_runs_that_succeeded() -> None:
    runs = [sample("ours", "cold", wall_s=wall_s) for wall_s in (1.0, 2.0, 9.0)]
    runs += [sample("ours", "cold", 4, wall_s=0.01), sample("ours", "cold", None, wall_s=60)]
    # A run whose bytes were counted is not timed.
    runs += [sample("ours", "cold", received_bytes=5e6), *(sample("theirs", "cold", wall_s=4.0) for _ in range(2))]
    found = Results("a page", {"runs": 1}, machine={"cpu": "x"}, samples=runs)
    assert found.mid("s29", "ours", "cold") == 2.0
    assert found.mid("s29", "ours", "cold", "received_bytes") == 5e6
    assert found.ratio("s29", "ours", "theirs", "cold") == 0.5
    assert found.ratio("s29", "ours", "theirs", "warm") is None


def test_the_page_names_missed_goals_failures_and_absences() -> None:
    runs = [sample(lock.OURS, "cold", wall_s=1.0, peak_bytes=300e6), sample("poetry", "cold", 1, wall_s=2.0)]
    found = Results("a page", {"runs": 1}, machine={"cpu": "x"}, samples=runs)
    found.goals = lock.goals(found, ["s29"])
    found.absences.append(Absence("s26", "pdm", "cold", "no interpreter of\nPython 3.10"))
    text = found.page({"s29": lock.stack_table(found, (), "s29")}, ["by hand"])
    assert "| cold, peak memory | s29 | 300.00 | <= 250 MB | MISSED |" in text
    assert "| envspec | 1.00 | - |" in text
    assert "- s29, poetry, cold: exit 1: Expecting value" in text
    assert "- s26, pdm, cold: not run: no interpreter of Python 3.10" in text


def test_what_is_published_names_no_address_host_or_path() -> None:
    text = "at https://index.example.com/x/, host files.example.org, in /home/me/.cache/x.json: failed"
    assert published(text) == "at <url>, host <host>, in <path>: failed"
    assert sampled("a", "b", "c", 0, Cost(1, 1, 1, 1, 2, text)).output == published(text)


def test_a_lock_s_family_and_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "# c\nTorch==2.9.1 \\\n    --hash=sha256:00\ntorchaudio[x]==2.11.0 ; python_version > '3'\n    # via torch==1\n"
    )
    pins = pins_of(tmp_path / "requirements.txt")
    assert pins == {"torch": "2.9.1", "torchaudio": "2.11.0"}
    assert lock.verdict_on(pins) == "torchaudio 2.11.0 beside torch 2.9.1"
    assert lock.verdict_on({"torch": "2.7.0+cu126", "torchaudio": "2.7.1+cu126"}) == "coherent"


def test_every_stack_is_dated_and_has_none_of_the_names_that_are_added() -> None:
    for stack in map(load_stack, stack_names()):
        assert stack.as_of.utcoffset() is not None
        assert not set(ADDED) & set(stack.requirements)


def test_conda_tools_get_the_same_question_and_give_the_same_answer(tmp_path: Path) -> None:
    platforms = ("linux-64", "osx-arm64")
    write(tmp_path / "channel", 36_000, platforms)
    question = Question((tmp_path / "channel").as_uri(), platforms).document()
    alone = asyncio.run(bare(question, tmp_path / "bare"))
    stage = asyncio.run(solve_all(requests(question), Rattler(), Context({}, tmp_path, tmp_path / "stage")))
    assert [sorted(row.url for row in rows) for rows in alone] == [
        sorted(package.url for package in answer.packages) for answer in stage
    ]
    builds = [{row.name.normalized: str(row.build) for row in rows} for rows in alone]
    assert [found[WANTED[0]].split("_")[0] for found in builds] == ["cuda129", "cpu"]
    assert [len(rows) for rows in alone] == pytest.approx([110, 100], abs=15)


def test_the_suite_of_a_gpu_day_runs_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU and without torch: the suite reads the request."""
    assert gpu_day.main(["suite", "--device", "cpu", "--check", "lock", "--output", str(tmp_path)]) == 0
    [row] = json.loads((tmp_path / "suite" / "receipt.json").read_text())["checks"]
    assert (row["check"], row["status"], row["reason"]) == ("lock", "not run", "no lock is given")
    assert "not run  lock" in capsys.readouterr().out
    assert (tmp_path / "probe.txt").read_text().startswith("Linux")


def test_the_page_of_what_ran_on_which_gpu_is_that_of_the_receipts() -> None:
    """It has every check, every bound and every shortcut of the stand-in: a new one needs the page written again."""
    assert gpu_coverage.PAGE.read_text(encoding="utf-8") == gpu_coverage.page()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/tour.md", "CHANGELOG.md"])
def test_pages_state_that_no_gpu_has_run_the_suite_until_a_receipt_of_one_is_committed(page: str) -> None:
    receipts = [read(path) for path in sorted(gpu_coverage.RECEIPTS.glob("*.json"))]
    has_gpu = any(each.device == "cuda" for each in receipts)
    text = " ".join((gpu_coverage.ROOT / page).read_text(encoding="utf-8").split())
    assert ("No GPU has run the suite yet" in text) is not has_gpu


def test_a_check_that_the_stand_in_has_not_run_is_listed_as_such() -> None:
    assert "not run yet" not in gpu_coverage.page()
    assert "| `new` | (not run yet: `--stand-in`) | | never |" in gpu_coverage.page(["matmul", "new"])
