"""`bench.gpu_day` where there is neither a GPU nor torch: what it asks of the suite is what the suite reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu_day


def test_the_suite_runs_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_day.main(["suite", "--device", "cpu", "--check", "lock", "--output", str(tmp_path)]) == 0
    [row] = json.loads((tmp_path / "suite.json").read_text())["results"]
    assert (row["check"], row["status"], row["reason"]) == ("lock", "not run", "no lock is given")
    assert "not run  lock" in capsys.readouterr().out
    assert (tmp_path / "probe.txt").read_text().startswith("Linux")
