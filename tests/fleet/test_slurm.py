"""`envspec fleet run --on slurm` on a real Slurm of three nodes, with an NVML made here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.conformance.receipt import RECEIPT_MARK
from tests.fleet.test_slurm_cluster import LONG_S
from tests.support.machines import driver as made_driver
from tests.support.machines import suite as standin
from tests.support.machines.services import wait_for
from tests.support.machines.slurm import NODES, Cluster, cluster
from tests.support.user import ROOT

pytestmark = pytest.mark.engine

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


def _words(folder: Path, python: Path, *more: str) -> list[str]:
    words = ["fleet", "run", "pytorch-2.9", "--on", "slurm", "--report", str(folder), "--python", str(python)]
    return [sys.executable, "-m", "envspec", *words, "--check", "health", *more]


def _environ(slurm: Cluster, machine: Mapping[str, str], **more: str) -> dict[str, str]:
    # PYTHONPATH has the torch of the nodes; envspec itself is in the working directory.
    return {**os.environ, **slurm.environ, **machine, **more}


def _run(slurm: Cluster, machine: Mapping[str, str], words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=_environ(slurm, machine, **more), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def _nodes(folder: Path) -> dict[str, Any]:
    nodes: dict[str, Any] = json.loads((folder / "nodes.json").read_text(encoding="utf-8"))["nodes"]
    return nodes


def test_the_node_with_a_fault_is_named(
    slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "fleet"
    done = _run(slurm_cluster, machine, _words(folder, python), FAULTY="node2")
    assert done.returncode == 7, done.stderr
    assert {name: each["state"] for name, each in _nodes(folder).items()} == dict.fromkeys(NODES, "finished")
    verdicts = {name: json.loads((folder / name / "receipt.json").read_text())["verdict"] for name in NODES}
    assert verdicts == {"node1": "passed", "node2": "failed", "node3": "passed"}
    assert "drain node2" in done.stdout and "GPU 1: no uncorrected errors: 3" in done.stdout
    assert "node2" in (folder / "fleet.html").read_text(encoding="utf-8")
    again = _run(slurm_cluster, machine, _words(folder, python))
    assert again.returncode == 2 and "has the receipts of another run" in again.stderr


def test_nodes_are_chosen(slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    done = _run(slurm_cluster, machine, _words(tmp_path / "one", python, "--nodelist", "node[2-3]"))
    assert done.returncode == 0, done.stderr
    assert set(_nodes(tmp_path / "one")) == {"node2", "node3"}
    many = _run(slurm_cluster, machine, _words(tmp_path / "many", python, "--nodes", "4"))
    assert many.returncode == 6 and "3 of 3 nodes accept jobs, and 4 are requested" in many.stderr
    unknown = _run(slurm_cluster, machine, _words(tmp_path / "unknown", python, "--nodelist", "node[3-4]"))
    assert unknown.returncode != 0 and "node4" in unknown.stderr
    refused = _run(slurm_cluster, machine, _words(tmp_path / "refused", python, "--sbatch=--account", "--nodes", "1"))
    assert refused.returncode == 7 and "sbatch: " in refused.stderr


def test_without_slurm_it_says_so(machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    environ = {**os.environ, **machine, "PATH": str(tmp_path)}
    done = subprocess.run(
        _words(tmp_path / "fleet", python), env=environ, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "sinfo is not installed here" in done.stderr


def test_a_node_that_is_lost_is_reported(machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    with cluster({"SlurmdTimeout": "2", "MessageTimeout": "2"}) as slurm:
        environ = _environ(slurm, machine, SECONDS="8")
        words = _words(folder, python, "--check", "family")
        with subprocess.Popen(words, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            wait_for(lambda: any("suite.pyz" in each for each in slurm.processes("node2").values()), LONG_S)
            slurm.kill_node("node2")
            stdout, stderr = run.communicate(timeout=LONG_S + 60)
    nodes = _nodes(folder)
    assert nodes["node2"]["state"] == "lost" and "NODE_FAIL" in nodes["node2"]["reason"], nodes
    assert nodes["node1"]["state"] == nodes["node3"]["state"] == "finished", stderr
    assert run.returncode == 7 and b"node2" in stdout and b"NODE_FAIL" in stdout


@pytest.fixture
def waiting(
    slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose suites import for a long time on all nodes."""
    environ = _environ(slurm_cluster, machine, SECONDS="300")
    words = _words(tmp_path / "fleet", python, "--check", "family")
    with subprocess.Popen(words, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        try:
            wait_for(lambda: _checks(slurm_cluster) == len(NODES), LONG_S)
            yield run
        finally:
            run.kill()
            subprocess.run(["scancel", "--user=root"], env=environ, check=False)
            slurm_cluster.wait_idle(*NODES)


def _checks(slurm: Cluster) -> int:
    return sum("--check family" in each for each in slurm.processes(*NODES).values())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_run_that_is_ended_leaves_no_process(
    slurm_cluster: Cluster, waiting: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    waiting.send_signal(number)
    _, stderr = waiting.communicate(timeout=LONG_S)
    assert waiting.returncode == status, stderr
    wait_for(lambda: not slurm_cluster.processes(*NODES), LONG_S)
    assert set(_nodes(tmp_path / "fleet")) == {*NODES}


def test_a_job_that_scancel_ends_leaves_no_process(
    slurm_cluster: Cluster, waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    slurm_cluster.run("scancel", "--user=root")
    stdout, stderr = waiting.communicate(timeout=LONG_S)
    assert waiting.returncode == 7, stderr
    wait_for(lambda: not slurm_cluster.processes(*NODES), LONG_S)
    assert b"ended without a result" in stdout or b"CANCELLED" in stdout, stdout


def _programs(slurm: Cluster, folder: Path, receipts: Path) -> Path:
    words = [sys.executable, "-m", "envspec", "fleet", "programs", str(folder), "--receipts", str(receipts)]
    environ = {**os.environ, **slurm.environ}
    subprocess.run([*words, "--python", sys.executable], env=environ, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_programs_of_a_node(slurm_cluster: Cluster, machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    """As Slurm starts them: with SLURMD_NODENAME, and without PATH; here with the variables of the made NVML."""
    folder = tmp_path / "fleet"
    _run(slurm_cluster, machine, _words(folder, python), FAULTY="node2")
    programs = _programs(slurm_cluster, tmp_path / "programs", folder)

    def ran(name: str, node: str, **more: str) -> tuple[int, str, float]:
        environ = {**machine, "SLURMD_NODENAME": node, **more}
        began = time.monotonic()
        done = subprocess.run([programs / name], env=environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, time.monotonic() - began

    times = []
    for node, status, words in (
        ("node1", 0, "OK: receipt of 0 h ago; 2 GPUs without a fault\n"),
        ("node2", 1, "CRITICAL: health: GPU 1: no uncorrected errors: 3"),
        ("node9", 0, "UNKNOWN: this node has no receipt"),
    ):
        code, line, seconds = ran("prolog", node)
        assert (code, line.count("\n")) == (status, 1) and line.startswith(words), line
        times.append(seconds)
    assert min(times) < 1
    code, line, _ = ran("prolog", "node3", VALUES="pending@0=1")
    assert code == 1 and line.startswith("CRITICAL: GPU 0: no remapping pending: 1")
    try:
        assert ran("health", "node1")[0] == 0
        assert slurm_cluster.states()["node1"] == "idle"
        assert ran("health", "node2")[0] == 2
        assert slurm_cluster.states()["node2"].startswith("drain")
        shown = slurm_cluster.run("scontrol", "show", "node", "node2").stdout
        assert "Reason=envspec: CRITICAL: health: GPU 1" in shown
    finally:
        slurm_cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
        slurm_cluster.wait_idle("node2")


def test_a_prolog_keeps_jobs_from_a_node_with_a_fault(machine: dict[str, str], python: Path, tmp_path: Path) -> None:
    """In slurm.conf: the receipts are those of a run that was before."""
    folder = tmp_path / "fleet"
    with cluster() as slurm:
        assert _run(slurm, machine, _words(folder, python), FAULTY="node2").returncode == 7
        programs = _programs(slurm, tmp_path / "programs", folder)
    # This machine has no GPU: the prolog compares a receipt of the CPU.
    for node in NODES:
        receipt = json.loads((folder / node / "receipt.json").read_text())
        receipt["machine"]["gpus"] = []
        (folder / node / "receipt.json").write_text(json.dumps(receipt))
    with cluster({"Prolog": str(programs / "prolog")}) as slurm:
        jobs = {
            node: slurm.run(
                "sbatch", "--parsable", "--no-requeue", f"--nodelist={node}", "--wrap", "true"
            ).stdout.strip()
            for node in ("node1", "node2")
        }
        wait_for(lambda: slurm.job(jobs["node1"]).get("JobState") == "COMPLETED", LONG_S)
        wait_for(lambda: slurm.states()["node2"].startswith("drain"), LONG_S)
        assert slurm.job(jobs["node2"])["JobState"] != "COMPLETED"


def test_a_dry_run_prints_the_job(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*_words(tmp_path / "fleet", python), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and RECEIPT_MARK not in done.stdout
    assert done.stdout.startswith("# sbatch ") and f"exec {python} {tmp_path}/fleet/.envspec/suite.pyz" in done.stdout
    assert not (tmp_path / "fleet").exists()
