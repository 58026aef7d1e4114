"""How a real Slurm behaves when jobs and nodes end: what `--on slurm` relies on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.machines.services import wait_for
from tests.support.machines.slurm import KILL_WAIT_S, NODES, Cluster, cluster

pytestmark = pytest.mark.engine

#: What a job may take to start or to end on a machine under load, in seconds.
LONG_S: Final = 60
#: A program that goes on after SIGTERM. PATH: a file that it makes when it is up.
_STUBBORN: Final = (
    "import pathlib, signal, sys, time; signal.signal(15, lambda *_: 0); pathlib.Path(sys.argv[1]).touch()"
)
STUBBORN: Final = f"python3 -c '{_STUBBORN}\nwhile True: time.sleep(1)'"


def submit(slurm: Cluster, script: str, *options: str) -> str:
    """Submit a batch script of bash; return the job's number."""
    done = slurm.run("sbatch", "--parsable", "--no-requeue", *options, "--wrap", f"exec bash -c {quoted(script)}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def quoted(script: str) -> str:
    return "'" + script.replace("'", "'\\''") + "'"


def wait_state(slurm: Cluster, job: str, state: str) -> dict[str, str]:
    wait_for(lambda: slurm.job(job).get("JobState") == state, LONG_S)
    return slurm.job(job)


@contextmanager
def idle_again(slurm: Cluster) -> Iterator[None]:
    """Cancel the jobs that a test has left, end their processes, and wait for idle nodes."""
    try:
        yield
    finally:
        slurm.run("scancel", "--user=root")
        wait_for(lambda: not slurm.run("squeue", "--noheader").stdout, LONG_S)
        for process in slurm.processes():
            os.kill(process, signal.SIGKILL)
        wait_for(lambda: not slurm.processes(), LONG_S)
        slurm.wait_idle()


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_each_node_runs_its_batch_job(slurm_cluster: Cluster, tmp_path: Path) -> None:
    jobs = {
        node: submit(slurm_cluster, f"echo $SLURM_JOB_ID > {tmp_path}/$SLURMD_NODENAME", f"--nodelist={node}")
        for node in NODES
    }
    for job in jobs.values():
        assert wait_state(slurm_cluster, job, "COMPLETED")["ExitCode"] == "0:0"
    assert {path.name: path.read_text().strip() for path in tmp_path.iterdir()} == jobs


def test_srun_starts_one_task_on_each_node(slurm_cluster: Cluster) -> None:
    done = slurm_cluster.run("srun", "--nodes=3", "bash", "-c", "echo $SLURMD_NODENAME $SLURM_PROCID")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["node1 0", "node2 1", "node3 2"])


def test_a_fault_of_one_node_is_the_exit_code_of_srun(slurm_cluster: Cluster) -> None:
    done = slurm_cluster.run("srun", "--nodes=3", "bash", "-c", '[ "$SLURMD_NODENAME" != node2 ] || exit 7')
    assert done.returncode == 7
    assert "node2: task 1: Exited with exit code 7" in done.stderr


def test_scancel_ends_what_has_a_session_of_its_own(slurm_cluster: Cluster, tmp_path: Path) -> None:
    with idle_again(slurm_cluster):
        job = submit(slurm_cluster, f"setsid sleep 600 & sleep 601 & touch {tmp_path}/up; sleep 602")
        wait_for(lambda: sum("sleep 60" in words for words in slurm_cluster.processes().values()) >= 3, LONG_S)
        slurm_cluster.run("scancel", job)
        assert wait_state(slurm_cluster, job, "CANCELLED")["ExitCode"] == "0:15"
        wait_for(lambda: not slurm_cluster.processes(), LONG_S)


def test_what_ignores_sigterm_is_killed_after_kill_wait(slurm_cluster: Cluster, tmp_path: Path) -> None:
    with idle_again(slurm_cluster):
        job = submit(slurm_cluster, f"exec {STUBBORN} {tmp_path}/up")
        wait_for((tmp_path / "up").exists, LONG_S)
        slurm_cluster.run("scancel", job)
        assert wait_state(slurm_cluster, job, "CANCELLED")["ExitCode"] == "0:9"
        wait_for(lambda: not slurm_cluster.processes(), LONG_S)


@pytest.mark.parametrize(
    "script", [f"{STUBBORN} UP; true", f"(setsid {STUBBORN} UP &); sleep 600"], ids=["its-shell-ended", "double-fork"]
)
def test_what_outlives_its_parent_outlives_scancel(slurm_cluster: Cluster, tmp_path: Path, script: str) -> None:
    with idle_again(slurm_cluster):
        job = submit(slurm_cluster, script.replace("UP", f"{tmp_path}/up"))
        wait_for((tmp_path / "up").exists, LONG_S)
        slurm_cluster.run("scancel", job)
        wait_state(slurm_cluster, job, "CANCELLED")
        wait_for(lambda: not any("slurmstepd" in words for words in slurm_cluster.processes().values()), LONG_S)
        with pytest.raises(AssertionError):
            wait_for(lambda: not slurm_cluster.processes(), KILL_WAIT_S + 2)


def test_the_job_of_a_killed_node_fails(tmp_path: Path) -> None:
    with cluster() as slurm:
        lost = submit(slurm, f"touch {tmp_path}/lost; sleep 600", "--nodelist=node2")
        other = submit(slurm, f"touch {tmp_path}/other; sleep 600", "--nodelist=node3")
        wait_for(lambda: (tmp_path / "lost").exists() and (tmp_path / "other").exists(), LONG_S)
        slurm.kill_node("node2")
        assert slurm.processes("node2") == {}
        assert wait_state(slurm, lost, "NODE_FAIL")["Reason"] == "NodeDown"
        wait_for(lambda: slurm.states()["node2"] == "down*", LONG_S)
        assert slurm.job(other)["JobState"] == "RUNNING"
        slurm.restart_node("node2")
        again = submit(slurm, "exit 3", "--nodelist=node2")
        assert wait_state(slurm, again, "FAILED")["ExitCode"] == "3:0"
        started = [machine.pid for machine in slurm._machines.values()] + list(slurm.processes())
    assert [process for process in started if Path(f"/proc/{process}").exists()] == []
    assert not slurm.folder.exists()


def test_a_failing_prolog_drains_its_node(tmp_path: Path) -> None:
    prolog = program(tmp_path / "prolog", '[ "$SLURMD_NODENAME" != node2 ]')
    with cluster({"Prolog": prolog}) as slurm:
        job = submit(slurm, "true", "--nodelist=node2")
        wait_for(lambda: slurm.states()["node2"] == "drained", LONG_S)
        assert wait_state(slurm, job, "CANCELLED")["ExitCode"] == "0:0"
        assert slurm.run("sinfo", "--noheader", "--list-reasons", "--format=%E").stdout.strip() == "Prolog error"
        done = slurm.run("srun", "--nodes=2", "true")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: slurm.states()["node1"] == "idle", LONG_S)


def test_the_exit_code_of_a_health_check_drains_nothing(tmp_path: Path) -> None:
    drain = 'SLURM_CONF=$PWD/slurm.conf scontrol update NodeName=node3 State=DRAIN Reason="GPU lost"'
    text = f'[ "$SLURMD_NODENAME" != node3 ] || {drain}\necho $SLURMD_NODENAME >> {tmp_path}/calls\nexit 3'
    checks = {"HealthCheckProgram": program(tmp_path / "check", text), "HealthCheckInterval": "1"}
    with cluster(checks) as slurm:
        wait_for(lambda: slurm.states()["node3"] == "drained", LONG_S)
        calls = (tmp_path / "calls").read_text().split().count("node2")
        wait_for(lambda: (tmp_path / "calls").read_text().split().count("node2") > calls + 1, LONG_S)
        assert slurm.states() == {"node1": "idle", "node2": "idle", "node3": "drained"}
        assert "health_check failed: rc:3" in slurm.log("node2")
