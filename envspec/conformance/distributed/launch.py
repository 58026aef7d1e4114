"""torchrun, and the network that its ranks use.

torchrun reports a rank that was ended by a signal only in its log; its function raises the exit statuses.
Source: `torch.distributed.elastic.multiprocessing.errors.ChildFailedError`, torch 2.4 to 2.9.

The rendezvous is torchrun's static one, on one machine and on several: ranks follow from the nodes' own numbers, so
that a missing rank names its node, and the host is the requested one. torchrun's other one (c10d) numbers nodes by
their host names, compares names to find the host, which fails if a name does not resolve, and detects a lost
node only for a restart, which no check uses.
Source: `torch.distributed.elastic.rendezvous`, torch 2.4 to 2.9.

Sources: netdevice(7) for SIOCGIFADDR; /proc/net/if_inet6 in the kernel's `net/ipv6/addrconf.c`. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import ipaddress
import json
import math
import os
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.cputime import slowdown
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.processes import GRACE_S, RUN, die_with_parent, signal_name
from envspec.conformance.request import Nodes
from envspec.conformance.results import Cause, NotRun, dumps
from envspec.conformance.text import counted

_FAILURES, _LAUNCH = "failures.json", "launch.json"
_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
#: Of struct ifreq: the IPv4 address within the sockaddr after the name.
_ADDRESS = slice(20, 24)


def main(parent: int, path: Path, arguments: list[str]) -> int:
    """Run torchrun. parent: PID of the check. path: file for its failures. arguments: up to the script's `--rank`."""
    die_with_parent(parent)
    child_failed: Any = ()
    try:
        # torch 2.6 on Python 3.9 imports importlib_metadata here, and does not require it.
        run: Any = importlib.import_module("torch.distributed.run")
        child_failed = importlib.import_module("torch.distributed.elastic.multiprocessing.errors").ChildFailedError
        run.main([*arguments, str(os.getpid()), str(path.parent)])
    except child_failed as error:
        # The ranks that failed first; a status is negative for a signal.
        failures: dict[str, Any] = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
    except Exception as error:
        traceback.print_exc()
        failures = {"torchrun": f"{type(error).__name__}: {error}"}
    else:
        return 0
    path.write_text(json.dumps(failures), encoding="utf-8")
    return 1


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind((_LOOPBACK, 0))
        return int(one.getsockname()[1])


def interface_towards(host: str, port: int) -> str:
    """The network interface from which this machine reaches `host`; empty if it is unknown.

    Empty for a name that resolves to this machine's own loopback, too: no other machine reaches that.
    """
    with contextlib.suppress(OSError):
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as one:
            # Connecting a datagram socket sends nothing: the system only chooses the route.
            one.connect(target)
            address = ipaddress.ip_address(one.getsockname()[0].partition("%")[0])
        if not address.is_loopback:
            return _interface_of(address)
    return ""


def _interface_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.version == 6:
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if int(fields[0], 16) == int(address):
                return fields[-1]
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack(f"{_NAME_BYTES}s{_NAME_BYTES + 8}x", name.encode()[: _NAME_BYTES - 1])
                if fcntl.ioctl(one, _SIOCGIFADDR, request)[_ADDRESS] == address.packed:
                    return name
    return ""


def rank_names(ranks: Sequence[int]) -> str:
    """`rank 0`, or `ranks 0, 1`."""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, ranks))}"


class RankFailed(Exception):
    """A rank or a node failed; which one, and how."""


class RankOutOfMemory(RankFailed, MemoryError):
    """A rank failed since memory of its machine or GPU ran out."""


@dataclass(frozen=True)
class Launch:
    """A torchrun to be started, whose ranks read this too.

    name: for people.
    program: `ddp` or `fsdp`.
    device: `cuda` or `cpu`.
    backend: `nccl` or `gloo`.
    processes: ranks on this machine, the same number on each.
    timeout_s: how long a rank waits for another one.
    join_s: how long a node waits for the others to join.
    sharding: `fsdp2` or `fsdp1`, of the program `fsdp`.
    """

    name: str
    program: str
    device: str
    backend: str
    processes: int
    seed: int
    nodes: Nodes
    timeout_s: int = SIZES["distributed.timeout_s"]
    join_s: int = SIZES["distributed.join_s"]
    sharding: str = ""

    @property
    def world(self) -> int:
        return self.processes * self.nodes.count

    @property
    def local(self) -> range:
        """The ranks on this machine."""
        return range(self.nodes.rank * self.processes, (self.nodes.rank + 1) * self.processes)

    @staticmethod
    def read(folder: Path) -> Launch:
        data = json.loads((folder / _LAUNCH).read_text(encoding="utf-8"))
        return Launch(**{**data, "nodes": Nodes(**data["nodes"])})


def events_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.jsonl"


#: NCCL's log of a process: `%p` is its PID.
_NCCL_LOG = "nccl-%p.log"


def nccl_logs(folder: Path) -> list[str]:
    """The texts of the logs that NCCL has written, one for each process."""
    paths = sorted(folder.glob(_NCCL_LOG.replace("%p", "*")))
    return [each.read_text(encoding="utf-8", errors="replace") for each in paths]


@dataclass(frozen=True)
class Launched:
    """A running torchrun. folder: with the output of its ranks."""

    launch: Launch
    folder: Path
    process: subprocess.Popen[bytes]

    def wait(self) -> dict[int, ProcessEvents]:
        """The events of this machine's ranks, after all have ended.

        Raises:
            RankFailed: one of them, or a node, failed.
        """
        status = self.process.wait()
        ranks = {rank: ProcessEvents.read(events_of(self.folder, rank)) for rank in self.launch.local}
        if not status and all(each.done for each in ranks.values()):
            return ranks
        failures: dict[str, Any] = {}
        # A torchrun that was killed leaves no file.
        with contextlib.suppress(OSError, ValueError):
            failures = json.loads((self.folder / _FAILURES).read_text(encoding="utf-8"))
        # The folder does not outlive the check, its output does.
        lines = "\n".join(nccl_logs(self.folder)).splitlines()
        print("\n".join(line for line in lines if "NCCL WARN" in line))
        failed = RankFailed
        if any(each.raised and each.raised[0] == Cause.OUT_OF_MEMORY.value for each in ranks.values()):
            failed = RankOutOfMemory
        raise failed(_failure(self.launch, ranks, failures, status))


@contextlib.contextmanager
def launched(context: CheckContext, launch: Launch) -> Iterator[Launched]:
    """torchrun, started; ended by SIGTERM if the block fails before it ends."""
    folder = context.scratch / launch.name.replace(" ", "-").replace(",", "")
    folder.mkdir()
    (folder / _LAUNCH).write_text(dumps(launch), encoding="utf-8")
    for rank in launch.local:
        events_of(folder, rank).touch()
    nodes = launch.nodes
    if nodes.count == 1:
        host, port = _LOOPBACK, _free_port()
    else:
        # envspec has checked its form: HOST:PORT, with an IPv6 address in brackets.
        name, _, number = (nodes.rendezvous or "").rpartition(":")
        host, port = name.strip("[]"), int(number)
    arguments = [
        *("--nnodes", str(nodes.count), "--node-rank", str(nodes.rank)),
        *("--nproc-per-node", str(launch.processes), "--master-addr", host, "--master-port", str(port)),
        *("--rdzv-backend", "static", "--rdzv-conf", f"timeout={launch.join_s}"),
        *("--max-restarts", "0", str(RUN), "--rank"),
    ]
    command = [sys.executable, str(RUN), "--torchrun", str(os.getpid()), str(folder / _FAILURES), *arguments]
    process = subprocess.Popen(command, env=_environ(launch, folder, host, port))  # noqa: S603 (this Python and this suite)
    try:
        yield Launched(launch, folder, process)
    finally:
        # On SIGTERM torchrun ends its ranks; the suite ends what is left.
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)


def _environ(launch: Launch, folder: Path, host: str, port: int) -> dict[str, str]:
    # torchrun sets one thread by default.
    threads = max(1, len(os.sched_getaffinity(0)) // launch.processes)
    chosen = {"OMP_NUM_THREADS": str(threads)}
    interface = "lo" if launch.nodes.count == 1 else interface_towards(host, port)
    if interface:
        chosen |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    if launch.backend == "nccl":
        chosen |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}
        chosen |= {"NCCL_DEBUG_FILE": f"{str(folder).replace('%', '%%')}/{_NCCL_LOG}"}
    environ = {**chosen, **os.environ}
    if launch.device != "cuda":
        environ["CUDA_VISIBLE_DEVICES"] = ""
    return environ


def _failure(launch: Launch, ranks: Mapping[int, ProcessEvents], failures: Mapping[str, Any], status: int) -> str:
    """Which ranks failed and how: lost nodes first, then ranks that ended without output, then errors."""
    reasons = [*_lost_nodes(ranks), *_silent_ends(ranks, failures), *_errors(ranks)]
    if reasons:
        for rank, each in ranks.items():
            if not (each.raised or each.done or str(rank) in failures):
                reasons.append(f"rank {rank} was in the phase {each.current!r}")
    error = failures.get("torchrun")
    if error:
        has_begun = any(each.phases for each in ranks.values())
        if has_begun or launch.nodes.count == 1:
            reasons.append(f"torchrun raised {error}")
        else:
            reasons.append(f"not every node joined within {launch.join_s} s: {error}")
    return "; ".join(reasons) or f"torchrun exited with status {status} without output"


def _lost_nodes(ranks: Mapping[int, ProcessEvents]) -> list[str]:
    lost: dict[str, str] = {}
    for each in ranks.values():
        lost.update(each.lost)
    return [f"node {node} is lost: {lost[node]}" for node in sorted(lost, key=int)]


def _silent_ends(ranks: Mapping[int, ProcessEvents], failures: Mapping[str, Any]) -> list[str]:
    """Of ranks that did not report an error of their own."""
    reasons = []
    for rank, each in ranks.items():
        status = failures.get(str(rank))
        if status is None or each.raised:
            continue
        how = f"exited with status {status} without output"
        if status < 0:
            how = f"was killed by {signal_name(-status)}"
        reasons.append(f"rank {rank} {how} in the phase {each.current!r}")
    return reasons


def _errors(ranks: Mapping[int, ProcessEvents]) -> list[str]:
    """The errors that ranks reported, each once."""
    by_error: dict[str, list[int]] = {}
    for rank, each in ranks.items():
        if each.raised:
            by_error.setdefault(f"raised in the phase {each.current!r}: {each.raised[1]}", []).append(rank)
    return [f"{rank_names(raised)} {error}" for error, raised in by_error.items()]


def launches(context: CheckContext, program: str) -> list[Launch]:
    """The requested launch; for a single rank of NCCL, which exchanges nothing, also two ranks of gloo.

    Raises:
        NotRun: more ranks are requested than there are GPUs.
    """
    request = context.request
    if not request.cuda:
        return [_launch(context, program, "cpu", request.world_size or SIZES["distributed.ranks.cpu"])]
    gpus = len(request.gpus)
    processes = request.world_size or gpus
    if processes > gpus:
        raise NotRun(f"{processes} ranks are requested, and there are {gpus} GPUs", "--world-size all")
    found = [_launch(context, program, "cuda", processes)]
    if found[0].world == 1:
        reason = "there is one GPU" if gpus == 1 else "one rank is requested"
        context.not_run("NCCL between ranks", f"{reason}: NCCL runs with one rank, and gloo with two ranks on the CPU")
        found.append(_launch(context, program, "cpu", SIZES["distributed.ranks.cpu"]))
    return found


def _launch(context: CheckContext, program: str, device: str, processes: int) -> Launch:
    nodes = context.request.nodes
    backend = "nccl" if device == "cuda" else "gloo"
    name = f"{backend}, {counted(processes * nodes.count, 'rank')}"
    slow = context.request.limit_factor
    if nodes.count > 1:
        name = f"{name} on {nodes.count} nodes"
    else:
        # What a busy machine needs longer is no fault of another rank. Waiting for a node uses no CPU of this one, so
        # that the check's limit counts it: longer, and the limit would end the check without a cause.
        slow *= slowdown()
    timeout_s = math.ceil(slow * SIZES["distributed.timeout_s"])
    join_s = math.ceil(slow * SIZES["distributed.join_s"])
    return Launch(name, program, device, backend, processes, context.request.seed, nodes, timeout_s, join_s)
