"""The one line that `.ci/run` ends with, from the lines of its runs of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / ".ci" / "summary.py"
UNITS = "\x1b[32m===== \x1b[1m2 failed\x1b[0m, 5 passed, 7 deselected, 1 error in 95.31s (0:01:35) =====\x1b[0m\n"
ENGINE = "1 failed in 0.10s\nlater\n3 passed, 4 skipped, 5 deselected, 2 errors in 4.5s\nnox > done\n"


def summary(folder: Path, *logs: str | None) -> tuple[int, str]:
    paths = [folder / str(place) for place in range(len(logs))]
    for path, log in zip(paths, logs, strict=True):
        if log is not None:
            path.write_text(log)
    done = subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_counts_of_both_runs_are_added_up(tmp_path: Path) -> None:
    line = "========== 2 failed, 8 passed, 4 skipped, 3 errors in 99.81s ==========\n"
    assert summary(tmp_path, UNITS, ENGINE) == (0, line)


def test_a_run_that_did_not_take_place_counts_for_nothing(tmp_path: Path) -> None:
    line = "========== 2 failed, 5 passed, 1 error in 95.31s ==========\n"
    assert summary(tmp_path, UNITS, None) == (0, line)


def test_a_run_that_broke_off_is_an_error(tmp_path: Path) -> None:
    line = "========== 2 failed, 5 passed, 2 errors in 95.31s ==========\n"
    assert summary(tmp_path, UNITS, "tests/engine ...") == (0, line)


def test_without_a_run_of_the_tests_there_is_no_summary(tmp_path: Path) -> None:
    assert summary(tmp_path, "no tests ran here", ENGINE) == (1, "")
