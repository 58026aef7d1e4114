"""The script of `envspec fleet job --for slurm` on a real Slurm of three nodes, with an NVML made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.machines import driver as made_driver
from tests.support.machines import suite as standin
from tests.support.machines.slurm import NODES, Cluster, cluster
from tests.support.machines.stack import stack
from tests.support.user import ROOT
from tests.support.waits import wait_for

#: What jobs may take on a machine under load, in seconds.
LONG_S: Final = 120
_HEALTHY: Final = "links=18,switch=1,fabric=3"
#: Starts Python on a node: node2 has an uncorrected error. FAULTY: its name; none without.
_PYTHON: Final = """#!/bin/sh
[ "$SLURMD_NODENAME" != "$FAULTY" ] || export VALUES="uncorrected@1=3,$VALUES"
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a machine with two GPUs, whose torch takes SECONDS to import."""
    folder = tmp_path_factory.mktemp("machine")
    body = "import os, time; time.sleep(float(os.environ.get('SECONDS', '0')))"
    return {
        **made_driver.made(folder),
        **made_driver.says(gpus=2),
        "VALUES": _HEALTHY,
        **standin.fake_torch(folder / "torch", body),
    }


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(_PYTHON.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


def envspec(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "envspec", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def script_of(folder: Path, python: Path | str, *words: str) -> Path:
    """The script for a folder of receipts."""
    options: list[str | Path] = ["--for", "slurm", "--receipts", folder, "--python", str(python)]
    ran = envspec("fleet", "job", "pytorch-2.9", *options, *words)
    assert ran.returncode == 0, ran.stderr
    script = folder.with_suffix(".sh")
    script.write_text(ran.stdout, encoding="utf-8")
    return script


def submit(
    slurm: Cluster, script: Path, *nodes: str, machine: Mapping[str, str] | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    # A node that is slow to answer is not among those that the script finds.
    wait_for(lambda: set(slurm.states().values()) == {"idle"}, LONG_S)
    # PYTHONPATH has the torch of the nodes.
    environ = {**os.environ, **slurm.environ, **(machine or {}), **more}
    words: list[str | Path] = ["sh", script, *nodes]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)


def has_no_job(slurm: Cluster) -> bool:
    return not slurm.run("squeue", "--noheader").stdout


def report(folder: Path) -> tuple[int, str]:
    ran = envspec("fleet", "report", folder, "--report", folder)
    return ran.returncode, ran.stdout


@pytest.mark.engine
def test_the_node_with_a_fault_is_named(
    slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path
) -> None:
    script = script_of(tmp_path / "fleet", python, "--check", "health")
    ran = submit(slurm_cluster, script, machine=machine, FAULTY="node2")
    assert ran.returncode == 0, ran.stderr
    assert [line.partition(":")[0] for line in ran.stdout.splitlines()] == [*NODES]
    wait_for(lambda: has_no_job(slurm_cluster), LONG_S)
    status, text = report(tmp_path / "fleet")
    assert status == 7 and "drain node2" in text and "GPU 1: no uncorrected errors: 3" in text
    assert "node2" in (tmp_path / "fleet" / "fleet.html").read_text(encoding="utf-8")
    again = submit(slurm_cluster, script)
    assert again.returncode == 2 and "has the receipts of another run" in again.stderr


@pytest.mark.engine
def test_nodes_are_chosen(slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    script = script_of(tmp_path / "fleet", python, "--check", "health")
    ran = submit(slurm_cluster, script, "node2", "node9", machine=machine)
    assert ran.returncode == 0 and "node9: Slurm refuses the job" in ran.stderr
    wait_for(lambda: has_no_job(slurm_cluster), LONG_S)
    status, text = report(tmp_path / "fleet")
    assert status == 7 and "node9  lost: no receipt" in text and "node1" not in text


@pytest.mark.engine
def test_a_node_that_ends_during_its_job_is_lost(machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    script = script_of(tmp_path / "fleet", python, "--check", "family")
    with cluster() as slurm:
        assert submit(slurm, script, machine=machine, SECONDS="8").returncode == 0
        wait_for(lambda: any("suite.pyz" in each for each in slurm.processes("node2").values()), LONG_S)
        slurm.kill_node("node2")
        wait_for(lambda: has_no_job(slurm), LONG_S)
    status, text = report(tmp_path / "fleet")
    assert status == 7 and "lost: no receipt" in text
    found = json.loads((tmp_path / "fleet" / "fleet.json").read_text(encoding="utf-8"))
    assert {each["name"]: each["reasons"] for each in found["nodes"]}["node2"] == ["lost: no receipt"]


@pytest.mark.engine
def test_scancel_leaves_no_process(
    slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path
) -> None:
    script = script_of(tmp_path / "fleet", python, "--check", "family", "--check", "ddp")
    assert submit(slurm_cluster, script, machine=machine, SECONDS="300").returncode == 0
    wait_for(lambda: len(slurm_cluster.processes(*NODES)) >= len(NODES), LONG_S)
    slurm_cluster.run("scancel", "--name=envspec-conformance")
    wait_for(lambda: not slurm_cluster.processes(*NODES), LONG_S)
    wait_for(lambda: has_no_job(slurm_cluster), LONG_S)


@pytest.mark.stack
def test_the_nodes_that_passed_train_together(slurm_cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    script = script_of(folder, stack("pytorch-2.9"), "--check", "ddp", "--device", "cpu")
    assert submit(slurm_cluster, script, *NODES[:2]).returncode == 0
    wait_for(lambda: has_no_job(slurm_cluster), 3 * LONG_S)
    together = {name: json.loads((folder / name / "together/receipt.json").read_text()) for name in NODES[:2]}
    for rank, receipt in enumerate(together.values()):
        assert receipt["verdict"] == "passed" and receipt["nodes"]["count"] == 2
        assert receipt["nodes"]["rank"] == rank and receipt["lock"]["name"] == "pytorch-2.9"
        names = {each["name"] for each in receipt["checks"][0]["findings"]}
        assert "gloo, 4 ranks on 2 nodes: gradients are equal bit by bit across ranks" in names
    assert report(folder)[0] == 0
