"""A Slurm cluster of three nodes on this machine: real daemons on free ports of loopback, in a folder of their own.

A job finds out on which node it is by SLURMD_NODENAME (host name and file system are the same everywhere), so that a
fault of one node is made by the job's own program: `[ "$SLURMD_NODENAME" != node2 ] || exit 7`.

How Slurm behaves with these settings, measured with 22.05.8 (Debian 12):

- `scancel` sends SIGCONT and SIGTERM to the batch script's shell and everything below it, in sessions of its own or
  not, and to the tasks of srun's steps. KillWait later (5 s), what is left below the shell or the task gets SIGKILL.
- proctrack/linuxproc finds processes by their parents. A process whose parent has ended (a double fork) gets no signal
  and outlives the job. So does one that ignores SIGTERM below a shell that does not: the shell ends at once, the job is
  CANCELLED, and nobody sends SIGKILL. `exec` instead of a child, or a shell with a trap that waits, avoids that.
  proctrack/cgroup ends both kinds.
- `scancel --signal=S` (SIGTERM, too) reaches the steps of srun alone and cancels nothing, `--batch` the shell alone,
  `--full` the shell, all below it, and the steps.
- SIGTERM to an srun outside of a batch job: SIGKILL for its tasks, exit code 137. SIGKILL to srun: SIGTERM for its
  tasks, then SIGKILL. The exit code of srun is its tasks' highest, 128 and the signal's number for a signal.
- `ExitCode` is `STATUS:SIGNAL` of the batch script. After `scancel` it is `0:15`, or `0:9` after KillWait.
- With timeouts of 3 s, a killed node is in state `idle*` or `mixed*` after 5 to 8 s and `down*` after 8 to 14 s. Until
  then, its job is RUNNING. Then the job is NODE_FAIL, reason NodeDown, if it was submitted with `--no-requeue`.
  Otherwise it is PENDING again, reason BeginTime, for two minutes at least. A job of several nodes ends on all of them:
  SIGTERM, then SIGKILL. With `--no-kill` it goes on, and srun and the job succeed if the tasks of the other nodes do.
- After `--time` (minutes): SIGTERM, SIGKILL after KillWait, state TIMEOUT. `--signal=B:USR1@30` reaches the shell 30 to
  60 s before.
- A process that SIGKILL does not end keeps its job COMPLETING. After UnkillableStepTimeout (60 s) the node is drained,
  reason `Kill task failed`.
- A job on a node that takes no jobs is PENDING, reason ReqNodeNotAvail; srun waits, unless with `--immediate=SECONDS`.
- A job without its working directory runs in /tmp. One without the folder of its output is FAILED, ExitCode `0:53`.
  `%N` in the name of the output is this machine's name, not the node's.
- Without accounting, sacct fails, and a job is forgotten MinJobAge (300 s) after its end.
- A Prolog that fails drains its node (reason `Prolog error`). A batch job is PENDING from then on, reason
  launch_failed_requeued_held; with `--no-requeue` it is CANCELLED, reason None, ExitCode 0:0. An srun fails at once.
- The exit code of HealthCheckProgram is only logged. To drain its node it calls `scontrol update NodeName=
  State=DRAIN Reason=`; its environment is SLURMD_NODENAME alone, without PATH and SLURM_CONF.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from envspec.conformance.processes import descendants
from tests.support.machines import NotRun, program
from tests.support.user import ROOT
from tests.support.waits import free_port

NODES: Final = ("node1", "node2", "node3")
#: The cluster is up in 1 to 2 s here; a machine under load gets longer.
STARTING_S: Final = 60.0
STOPPING_S: Final = 10.0
#: After SIGTERM, a job's processes get SIGKILL.
KILL_WAIT_S: Final = 5
#: How long a node may be silent before it is DOWN: more than a busy machine takes, less than Slurm's default, 300.
SLURMD_TIMEOUT_S: Final = 15
_POLL_S: Final = 0.1
#: Variables of a job that the tests may run in, and defaults of users for the clients.
_FOREIGN: Final = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_")
#: Runs a daemon as the first process of a machine does: what it starts stays below this process, with sessions of its
#: own or without a parent. The machine ends like in a power cut when its stdin does, so when the tests are killed, too.
#: SIGCHLD is ignored after the start of the daemon, which would inherit that.
_MACHINE: Final = """
import os, signal, subprocess, sys, time
from envspec.conformance.processes import adopt_orphans, descendants
adopt_orphans()
subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.stdin.read()
while left := descendants(os.getpid()):
    for process in left:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.01)
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. folder: configuration, logs, state. environ: for sbatch, srun, squeue, scontrol, scancel."""

    folder: Path
    environ: Mapping[str, str]
    _machines: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a client to its end. Its working directory, which becomes the one of a job, is the cluster's folder."""
        return subprocess.run(
            words,
            env=dict(self.environ),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def states(self) -> dict[str, str]:
        """Node -> its state in sinfo's long form: `idle`, `mixed`, `allocated`, `drained`, `down*`, ..."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def job(self, number: str) -> dict[str, str]:
        """What `scontrol show job` prints: `JobState`, `Reason`, `ExitCode` (`status:signal`), `NodeList`, ..."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def processes(self, *nodes: str) -> dict[int, str]:
        """PID -> command line of what runs on these nodes (default: all) below slurmd or after losing its parent."""
        found = {}
        for node in nodes or NODES:
            for process in descendants(self._machines[node].pid):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0")
                    # A zombie has no command line.
                    if words and words.split("\0") != _slurmd(node):
                        found[process] = words.replace("\0", " ")
        return found

    def kill_node(self, node: str) -> None:
        """End slurmd and all that it started by SIGKILL, as in a power cut; unlike then, the kernel closes sockets.

        The controller has the node in state `down*` some seconds later.
        """
        _cut(self._machines[node])

    def log(self, name: str) -> str:
        """The log of `munged`, `slurmctld`, or a node."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._machines[name] = subprocess.Popen(
                [sys.executable, "-c", _MACHINE, *words],
                env={**self.environ, "PYTHONPATH": str(ROOT)},
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _registered(self) -> bool:
        states = self.states()
        return len(states) == len(NODES) and not any(state.endswith("*") for state in states.values())

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns true."""
        until = time.monotonic() + STARTING_S
        while not ready():
            if time.monotonic() > until:
                raise NotRun(f"{name} does not come up: {' | '.join(self.log(name).splitlines()[-3:])}")
            time.sleep(_POLL_S)


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster and wait for its nodes; at the end, end all of its processes and remove its folder.

    Raises:
        NotRun: not root, not Linux, a program is missing, or a daemon does not come up (with the end of its log).
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NotRun("a Slurm cluster of the test's own needs root on Linux")
    munged, slurmctld = program("munged"), program("slurmctld")
    for name in ("slurmd", "sbatch"):
        program(name)
    # Sockets have at most 108 characters: pytest's folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="envspec-slurm-"))
    # munged requires that every user can reach its socket.
    folder.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    started = Cluster(folder, {**clean, "SLURM_CONF": str(folder / "slurm.conf")})
    try:
        _configure(folder)
        started._start("munged", munged, *_munge_options(folder))
        started._wait("munged", (folder / "munge.socket").exists)
        started._start("slurmctld", slurmctld, "-D")
        for node in NODES:
            started._start(node, *_slurmd(node))
        started._wait("slurmctld", started._registered)
        yield started
    finally:
        for machine in reversed(started._machines.values()):
            _cut(machine)
        shutil.rmtree(folder, ignore_errors=True)


def _slurmd(node: str) -> list[str]:
    return [program("slurmd"), "-D", "-N", node]


def _munge_options(folder: Path) -> list[str]:
    named = {"socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
    # --force: the folder for temporary files need not meet munged's requirements.
    return ["--foreground", "--force", f"--key-file={folder / 'munge.key'}"] + [
        f"--{option}={folder / name}" for option, name in named.items()
    ]


def _configure(folder: Path) -> None:
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    # All defaults, instead of those of a file in /etc.
    (folder / "cgroup.conf").touch()
    host = socket.gethostname().partition(".")[0]
    usual = {
        "ClusterName": "envspec",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(free_port()),
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/%n.pid",
        "SlurmUser": "root",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        # Three nodes offer more CPUs together than this machine has.
        "SlurmdParameters": "config_overrides",
        # The others need cgroups, which a container may not make.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "SchedulerType": "sched/builtin",
        # A batch job may wait 3 s otherwise.
        "SchedulerParameters": "batch_sched_delay=0",
        "MpiDefault": "none",
        "ReturnToService": "2",
        "SlurmdTimeout": str(SLURMD_TIMEOUT_S),
        "KillWait": str(KILL_WAIT_S),
    }
    nodes = [f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2" for node in NODES]
    partition = "PartitionName=all Nodes=ALL Default=YES OverSubscribe=YES State=UP"
    lines = [*(f"{name}={value}" for name, value in usual.items()), *nodes, partition]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")


def _cut(machine: subprocess.Popen[bytes]) -> None:
    """End a machine and all that runs on it by SIGKILL."""
    assert machine.stdin
    machine.stdin.close()
    machine.wait(STOPPING_S)
