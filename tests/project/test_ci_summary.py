"""The one line that `.ci/run` ends with, from the lines of its runs of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.user import ROOT

UNITS = "\x1b[32m===== \x1b[1m2 failed\x1b[0m, 5 passed, 7 deselected, 1 error in 95.31s (0:01:35) =====\x1b[0m\n"
ENGINE = "1 failed in 0.10s\nlater\n3 passed, 4 skipped, 5 deselected, 2 errors in 4.5s\nnox > done\n"


@pytest.mark.parametrize(
    ("units", "engine", "status", "counts"),
    [
        (UNITS, ENGINE, 0, "2 failed, 8 passed, 4 skipped, 3 errors in 99.81s"),
        (UNITS, None, 0, "2 failed, 5 passed, 1 error in 95.31s"),
        # A run that broke off is an error.
        (UNITS, "tests/engine ...", 0, "2 failed, 5 passed, 2 errors in 95.31s"),
        ("no tests ran here", ENGINE, 1, ""),
    ],
)
def test_the_counts_of_both_runs_are_added_up(
    tmp_path: Path, units: str, engine: str | None, status: int, counts: str
) -> None:
    paths = [tmp_path / "units", tmp_path / "engine"]
    for path, log in zip(paths, (units, engine), strict=True):
        if log is not None:
            path.write_text(log)
    command = [sys.executable, str(ROOT / ".ci" / "summary.py"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = f"========== {counts} ==========\n" if counts else ""
    assert (done.returncode, done.stdout) == (status, line)
