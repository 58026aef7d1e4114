"""torchrun, begun by a check: its ranks, where they meet, and what became of them.

The rendezvous is torchrun's static one, on one machine and on several. Its ranks follow from the nodes' own numbers, so
that a rank that is missing names its node, and the host of the rendezvous is the one that was asked for. torchrun's
other one (c10d) numbers nodes by their host names, takes a node for the host by comparing names, which fails where a
name does not resolve, and would notice a lost node only for the sake of a restart, which no check wants.
Source: `torch.distributed.elastic.rendezvous`, torch 2.4 to 2.9.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envspec.conformance import network, torchrun
from envspec.conformance.bounds import SIZES
from envspec.conformance.order import Nodes
from envspec.conformance.processes import GRACE_S
from envspec.conformance.ranks.said import Said, Task
from envspec.conformance.trial import Trial

_RUN = Path(__file__).with_name("run.py")


class RankFailed(Exception):
    """A rank or a node has failed; which one, and how."""


@dataclass(frozen=True)
class Launch:
    """What is to be run. name: of the part, for people. processes: ranks on this machine, as many as on the others."""

    name: str
    task: Task
    processes: int
    nodes: Nodes

    @property
    def world(self) -> int:
        """The number of all ranks."""
        return self.processes * self.nodes.count

    @property
    def here(self) -> range:
        """The ranks on this machine."""
        return range(self.nodes.rank * self.processes, (self.nodes.rank + 1) * self.processes)


@dataclass(frozen=True)
class Launched:
    """A torchrun that runs. folder: what its ranks write."""

    launch: Launch
    folder: Path
    process: subprocess.Popen[bytes]

    def wait(self) -> list[Said]:
        """What the ranks of this machine have said, once all have ended.

        Raises:
            RankFailed: one of them, or a node, did not do its work.
        """
        status = self.process.wait()
        said = [Said.read(self.folder, rank) for rank in self.launch.here]
        if status or not all(each.done for each in said):
            raise RankFailed(_failure(self.launch, said, torchrun.read(self.folder / "failures.json"), status))
        return said


@contextlib.contextmanager
def launched(trial: Trial, launch: Launch) -> Iterator[Launched]:
    """torchrun, begun; when the block is left by a failure, it is asked to end."""
    folder = trial.scratch / launch.name.replace(" ", "-").replace(",", "")
    folder.mkdir()
    launch.task.write(folder)
    host, port = _rendezvous(launch.nodes)
    words = [
        *("--nnodes", str(launch.nodes.count), "--node-rank", str(launch.nodes.rank)),
        *("--nproc-per-node", str(launch.processes), "--master-addr", host, "--master-port", str(port)),
        *("--rdzv-backend", "static", "--rdzv-conf", f"timeout={SIZES['distributed.join_s']}"),
        *("--max-restarts", "0", str(_RUN), "--rank"),
    ]
    command = [sys.executable, str(_RUN), "--torchrun", str(os.getpid()), str(folder / "failures.json"), *words]
    process = subprocess.Popen(command, env=_environ(launch, host, port))  # noqa: S603 (this Python and this suite)
    try:
        yield Launched(launch, folder, process)
    finally:
        _end(process)


def _rendezvous(nodes: Nodes) -> tuple[str, int]:
    if nodes.count == 1:
        return network.LOOPBACK, network.free_port()
    if nodes.rendezvous is None:
        raise ValueError(f"{nodes.count} nodes need a rendezvous")
    return network.endpoint(nodes.rendezvous)


def _environ(launch: Launch, host: str, port: int) -> dict[str, str]:
    # torchrun forces one thread where nothing is said.
    threads = max(1, len(os.sched_getaffinity(0)) // launch.processes)
    chosen = {"OMP_NUM_THREADS": str(threads)}
    interface = "lo" if launch.nodes.count == 1 else network.interface_towards(host, port)
    if interface:
        chosen |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    hidden = {} if launch.task.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    return {**chosen, **os.environ, **hidden}


def _end(process: subprocess.Popen[bytes]) -> None:
    """On SIGTERM torchrun ends its ranks; what stays all the same is ended by the suite."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def _failure(launch: Launch, said: list[Said], failures: torchrun.Failures, status: int) -> str:
    """Who failed and how: nodes first, then ranks that ended without a word, then those that could say why."""
    lost = {node: what for each in said for node, what in each.lost.items()}
    told = [f"node {node} is lost: {what}" for node, what in sorted(lost.items())]
    told += [
        _silent(each, failures.ranks[each.rank]) for each in said if each.rank in failures.ranks and not each.raised
    ]
    told += [f"rank {each.rank} raised in the phase {each.place!r}: {each.raised}" for each in said if each.raised]
    ended = {each.rank for each in said if each.raised or each.done} | set(failures.ranks)
    told += [f"rank {each.rank} was in the phase {each.place!r}" for each in said if told and each.rank not in ended]
    if failures.raised and not any(each.phases for each in said) and launch.nodes.count > 1:
        told.append(f"not every node joined within {SIZES['distributed.join_s']} s: {failures.raised}")
    elif failures.raised:
        told.append(f"torchrun raised {failures.raised}")
    return "; ".join(told) or f"torchrun ended with status {status} and without a word"


def _silent(said: Said, status: int) -> str:
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        return f"rank {said.rank} was killed by signal {number} ({name}) in the phase {said.place!r}"
    return f"rank {said.rank} ended in the phase {said.place!r} with status {status} and without a word"
