"""Checks on several nodes of a real Slurm at once, with a real torch on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machines.slurm import NODES, Cluster
from tests.support.machines.stack import stack
from tests.support.user import ROOT

pytestmark = pytest.mark.stack


def test_the_nodes_that_passed_train_together(slurm_cluster: Cluster, tmp_path: Path) -> None:
    words = ["fleet", "run", "pytorch-2.9", "--on", "slurm", "--nodelist", "node[1-2]", "--device", "cpu"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "envspec", *words, "--check", "ddp"),
            "--python",
            stack("pytorch-2.9"),
            "--report",
            tmp_path,
        ],
        env={**os.environ, **slurm_cluster.environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    together = {name: json.loads((tmp_path / name / "together/receipt.json").read_text()) for name in NODES[:2]}
    for rank, receipt in enumerate(together.values()):
        assert receipt["verdict"] == "passed" and receipt["nodes"]["count"] == 2
        assert receipt["nodes"]["rank"] == rank and receipt["lock"]["name"] == "pytorch-2.9"
        names = {each["name"] for each in receipt["checks"][0]["findings"]}
        assert "gloo, 4 ranks on 2 nodes: gradients are equal bit by bit across ranks" in names
    assert not slurm_cluster.processes(*NODES)
