"""Torchrun and its network.

torchrun tells a rank's end by a signal only in its log. Its own function raises that with the exit statuses.
Source: `torch.distributed.elastic.multiprocessing.errors.ChildFailedError`, torch 2.4 to 2.9.

Source: netdevice(7) for SIOCGIFADDR; /proc/net/if_inet6 in the kernel's `net/ipv6/addrconf.c`. Read 2026-11.

The rendezvous is torchrun's static one, on one machine and on several. Its ranks follow from the nodes' own numbers, so
that a rank that is missing names its node, and the host of the rendezvous is the one that was asked for. torchrun's
other one (c10d) numbers nodes by their host names, takes a node for the host by comparing names, which fails where a
name does not resolve, and would notice a lost node only for the sake of a restart, which no check wants.
Source: `torch.distributed.elastic.rendezvous`, torch 2.4 to 2.9.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envspec.conformance import hardware
from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.messages import Said, Task
from envspec.conformance.events import Trial
from envspec.conformance.processes import GRACE_S, die_with_parent
from envspec.conformance.request import Nodes
from envspec.conformance.results import NotRun

FAILED = 1


@dataclass(frozen=True)
class Failures:
    """How a torchrun ended. ranks: of those that failed first -> exit status, negative for a signal. raised: what ended
    torchrun itself; empty where nothing did.
    """

    ranks: dict[int, int] = field(default_factory=dict)
    raised: str = ""


def main(parent: int, path: Path, words: list[str]) -> int:
    """Run torchrun. parent: the check's process. path: where the failures go. words: torchrun's, up to its script, to
    whose words this process adds its own number at the end.
    """
    die_with_parent(parent)
    run: Any = importlib.import_module("torch.distributed.run")
    errors: Any = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    try:
        run.main([*words, str(os.getpid()), str(path.parent)])
    except errors.ChildFailedError as error:
        _write(path, Failures(ranks={rank: failure.exitcode for rank, failure in error.failures.items()}))
        return FAILED
    except Exception as error:
        traceback.print_exc()
        _write(path, Failures(raised=f"{type(error).__name__}: {error}"))
        return FAILED
    return 0


def read(path: Path) -> Failures:
    """The failures in a file; none where there is no file, as after a torchrun that was killed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Failures()
    return Failures({int(rank): status for rank, status in data["ranks"].items()}, data["raised"])


def _write(path: Path, failures: Failures) -> None:
    path.write_text(json.dumps(asdict(failures)), encoding="utf-8")


LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
#: Of struct ifreq: the IPv4 address within the sockaddr behind the name.
_ADDRESS = slice(20, 24)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


def endpoint(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, of `[ADDRESS]:PORT` too.

    Raises:
        ValueError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"the rendezvous {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def interface_towards(host: str, port: int) -> str:
    """The name of the interface from which this machine reaches `host`; empty where that can't be known.

    A name that leads to this machine's own loopback leads no other machine here: nothing is said then.
    """
    with contextlib.suppress(OSError):
        family, kind, protocol, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as one:
            # A datagram socket is connected without a packet: the system only chooses the route.
            one.connect(there)
            address = ipaddress.ip_address(one.getsockname()[0].partition("%")[0])
        if not address.is_loopback:
            return _interface_of(address)
    return ""


def _interface_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.version == 6:
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            words = line.split()
            if int(words[0], 16) == int(address):
                return words[-1]
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack(f"{_NAME_BYTES}s{_NAME_BYTES + 8}x", name.encode()[: _NAME_BYTES - 1])
                if fcntl.ioctl(one, _SIOCGIFADDR, asked)[_ADDRESS] == address.packed:
                    return name
    return ""


_RUN = Path(__file__).resolve().parent.with_name("run.py")


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
            raise RankFailed(_failure(self.launch, said, read(self.folder / "failures.json"), status))
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
        return LOOPBACK, free_port()
    if nodes.rendezvous is None:
        raise ValueError(f"{nodes.count} nodes need a rendezvous")
    return endpoint(nodes.rendezvous)


def _environ(launch: Launch, host: str, port: int) -> dict[str, str]:
    # torchrun forces one thread where nothing is said.
    threads = max(1, len(os.sched_getaffinity(0)) // launch.processes)
    chosen = {"OMP_NUM_THREADS": str(threads)}
    interface = "lo" if launch.nodes.count == 1 else interface_towards(host, port)
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


def _failure(launch: Launch, said: list[Said], failures: Failures, status: int) -> str:
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


def parts(trial: Trial, program: str) -> list[Launch]:
    """The launches of a check: one over what is asked for, and where that is one rank of NCCL, another over gloo.

    One rank proves no exchange between ranks.

    Raises:
        NotRun: more ranks are asked for than there are GPUs.
    """
    if not trial.order.cuda:
        return [_launch(trial, program, "cpu", trial.order.world_size or SIZES["distributed.ranks.cpu"])]
    gpus = hardware.devices()
    processes = trial.order.world_size or gpus
    if processes > gpus:
        raise NotRun(f"{processes} ranks are asked for, and there are {gpus} GPUs", "--world-size all")
    launches = [_launch(trial, program, "cuda", processes)]
    if launches[0].world == 1:
        reason = "there is one GPU" if gpus == 1 else "one rank is asked for"
        trial.not_run("NCCL between ranks", f"{reason}: NCCL runs with one rank, and two ranks of gloo on the CPU")
        launches.append(_launch(trial, program, "cpu", SIZES["distributed.ranks.cpu"]))
    return launches


def _launch(trial: Trial, program: str, device: str, processes: int) -> Launch:
    nodes = trial.order.nodes
    backend = "nccl" if device == "cuda" else "gloo"
    world = processes * nodes.count
    name = f"{backend}, {world} {'rank' if world == 1 else 'ranks'}"
    task = Task(program, device, backend, trial.order.seed, nodes.count)
    return Launch(name if nodes.count == 1 else f"{name} on {nodes.count} nodes", task, processes, nodes)
