"""The process of a rank, and the programs that ranks run.

An error of a collective names at most an address, and NCCL's watchdog ends a rank by a signal. So every node writes a
heartbeat with its phase to the rendezvous' store each second, and every rank reports the nodes whose heartbeat stopped.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NoReturn

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed import collectives, nccl, training
from envspec.conformance.distributed.launch import Launch, events_of
from envspec.conformance.distributed.training import Trainee, digest
from envspec.conformance.events import EventWriter
from envspec.conformance.numerics import elements
from envspec.conformance.processes import die_with_parent, exit_now
from envspec.conformance.results import Cause, error_text, is_out_of_memory

_BEAT_S = 1.0
#: Without a new heartbeat for this long a node counts as lost.
_SILENT_S = 3.5
_FAILED = 70


def connect(timeout_s: float) -> tuple[Any, int, int]:
    """A new connection to the store of torchrun's rendezvous, this rank, and the number of all ranks."""
    dist: Any = importlib.import_module("torch.distributed")
    store, rank, world = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout_s)))
    return dist.PrefixStore("envspec", store), rank, world


class Heartbeat:
    """Nodes that respond, as one rank sees them.

    A thread of its own uses the store: over a link that is down a request would block for many minutes.
    """

    def __init__(self, store: Any, node: int, others: Iterable[int], log: EventWriter) -> None:
        self._store = store
        self._node = node
        self._log = log
        self._answered_s = time.monotonic()
        #: node -> its last heartbeat, and when that was read first.
        self._beats = dict.fromkeys(others, ("", self._answered_s))
        self._errors: dict[int, str] = {}
        self._error = ""

    def start(self) -> None:
        """Until the process ends, write heartbeats, and log which nodes are lost whenever that changes."""
        threading.Thread(target=self._beat, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def fail(self, error: str) -> None:
        """Send this rank's error to the other nodes, wait until ended nodes are silent, and log the lost ones."""
        self._error = error
        time.sleep(_SILENT_S + 2 * _BEAT_S)
        self._log.write("lost", self._lost())

    def _lost(self) -> dict[int, str]:
        now = time.monotonic()
        if self._node and now - self._answered_s > _SILENT_S:
            return {0: "the rendezvous, which runs on it, does not respond any more"}
        return {node: self._state(node, beat) for node, (beat, since) in self._beats.items() if now - since > _SILENT_S}

    def _state(self, node: int, beat: str) -> str:
        if node in self._errors:
            return f"it has ended: {self._errors[node]}"
        if not beat:
            return "it never responded"
        return f"no response for {_SILENT_S:g} s, the last in the phase {beat.partition(' ')[2]!r}"

    def _beat(self) -> None:
        number = 0
        try:
            while True:
                self._store.set(f"alive/{self._node}", f"{number} {self._log.current}")
                if self._error:
                    self._store.set(f"ended/{self._node}", self._error)
                for node in self._beats:
                    self._read(node)
                self._answered_s = time.monotonic()
                number += 1
                time.sleep(_BEAT_S)
        except Exception as error:
            # A store that is gone: `_lost` reports it.
            print(f"heartbeat: {type(error).__name__}: {error}", flush=True)

    def _read(self, node: int) -> None:
        alive, ended = f"alive/{node}", f"ended/{node}"
        beat = self._store.get(alive).decode() if self._store.check([alive]) else ""
        if beat != self._beats[node][0]:
            self._beats[node] = (beat, time.monotonic())
        if node not in self._errors and self._store.check([ended]):
            self._errors[node] = self._store.get(ended).decode()

    def _watch(self) -> None:
        logged: dict[int, str] = {}
        while True:
            time.sleep(_BEAT_S)
            if (lost := self._lost()) != logged:
                logged = lost
                self._log.write("lost", lost)


@dataclass(frozen=True)
class Process:
    """local: its number on its own machine. device: torch's. folder: of the launch. store: of torchrun's rendezvous."""

    launch: Launch
    number: int
    local: int
    world: int
    device: Any
    folder: Path
    store: Any
    log: EventWriter

    def value(self, name: str, value: Any) -> None:
        """A result for the check; JSON."""
        self.log.write("values", [name, value])

    def exchanged(self, key: str, value: Any) -> list[Any]:
        """The values that all ranks have under this key, by rank; JSON."""
        self.store.set(f"{key}/{self.number}", json.dumps(value))
        return [json.loads(self.store.get(f"{key}/{each}")) for each in range(self.world)]

    def first_ranks(self, key: str, number: int) -> int:
        """The number that the first rank has under this key."""
        if self.number == 0:
            self.store.set(key, str(number))
        return int(self.store.get(key))


def main(parent: int, folder: Path) -> NoReturn:
    """Run a rank. parent: PID of torchrun. folder: of the launch, with its task."""
    die_with_parent(parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with events_of(folder, int(os.environ["RANK"])).open("a", encoding="utf-8") as lines:
        log = EventWriter(lines)
        log.write("turn", time.monotonic())
        status = _run(Launch.read(folder), folder, log)
    exit_now(status)


def _run(launch: Launch, folder: Path, log: EventWriter) -> int:
    heartbeat: Heartbeat | None = None
    try:
        with log.phase("import torch"):
            torch: Any = importlib.import_module("torch")
            dist: Any = importlib.import_module("torch.distributed")
        with log.phase("join"):
            if launch.nodes.count > 1:
                node = int(os.environ["GROUP_RANK"])
                store, _, _ = connect(launch.timeout_s)
                others = set(range(launch.nodes.count)) - {node}
                heartbeat = Heartbeat(store, node, others, log)
                heartbeat.start()
            rank = _join(torch, dist, launch, folder, log)
        _PROGRAMS[launch.program](torch, dist, rank)
        if rank.device.type == "cuda":
            rank.value("peak", [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
        with log.phase("leave"):
            dist.barrier()
            dist.destroy_process_group()
    except Exception as error:
        traceback.print_exc()
        text = error_text(error)
        cause = Cause.OUT_OF_MEMORY if is_out_of_memory(error) else Cause.RAISED
        log.write("raised", [cause, text])
        if heartbeat:
            heartbeat.fail(f"rank {os.environ['RANK']} raised in the phase {log.current!r}: {text}")
        return _FAILED
    log.write("done", value=True)
    return 0


def _join(torch: Any, dist: Any, launch: Launch, folder: Path, log: EventWriter) -> Process:
    local = int(os.environ["LOCAL_RANK"])
    store, number, world = connect(launch.timeout_s)
    device = torch.device(launch.device, local) if launch.device == "cuda" else torch.device("cpu")
    options = {}
    if launch.backend == "nccl":
        version = nccl.version(torch)
        log.write("values", ["NCCL", version])
        nccl.agree(store, launch, number, version)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options["device_id"] = device
    dist.init_process_group(launch.backend, timeout=datetime.timedelta(seconds=launch.timeout_s), **options)
    return Process(launch, number, local, world, device, folder, store, log)


def _train(torch: Any, rank: Process, trainee: Trainee) -> None:
    """Train, and report. Hashes are exchanged by the store: the collectives themselves are under test."""
    own = range(rank.number, rank.number + 1)
    trained = training.train(torch, trainee, rank.launch.seed, own, rank.world, rank.log.phase)
    with rank.log.phase("compare"):
        digests = {"gradients": [digest(each) for each in trained.gradients], "parameters": digest(trained.parameters)}
        rank.value("digests", rank.exchanged("digests", digests))
        rank.value("norms", trained.norms)
        if rank.local == 0:
            torch.save([*trained.gradients, trained.parameters], rank.folder / "trained.pt")


def run_ddp(torch: Any, dist: Any, rank: Process) -> None:
    """Collectives of integers, the training, then bandwidth."""
    training.prepare(torch)
    with rank.log.phase("integers"):
        outcomes, total = collectives.verify(torch, dist, rank.device, rank.number, rank.world)
        rank.value("integers", outcomes)
        rank.value("sum", total)
    with rank.log.phase("wrap"):
        module = training.model(torch, rank.launch.seed, rank.device)
        bucket_mb = SIZES["distributed.bucket_bytes"] / 2**20
        devices = [rank.device] if rank.device.type == "cuda" else None
        replica = torch.nn.parallel.DistributedDataParallel(module, device_ids=devices, bucket_cap_mb=bucket_mb)
    _train(torch, rank, training.alone(torch, replica, training.by_sgd(torch, replica)))
    if rank.world > 1:
        with rank.log.phase("bandwidth"):
            rank.value("bus", collectives.bandwidth(torch, dist, rank.device, rank.world, rank.first_ranks))
    if rank.world >= SIZES["distributed.fewest_ranks"]:
        with rank.log.phase("times of each rank"):
            own = collectives.rank_times(torch, dist, rank.device, rank.number, rank.world, rank.first_ranks)
            rank.value("times", rank.exchanged("times", own))


def run_fsdp(torch: Any, _dist: Any, rank: Process) -> None:
    """Shard the model, then train."""
    training.prepare(torch)
    with rank.log.phase("shard"):
        module = training.model(torch, rank.launch.seed, rank.device)
        trainee = {"fsdp2": _fsdp2, "fsdp1": _fsdp1}[rank.launch.sharding](torch, rank, module)
    _train(torch, rank, trainee)


_PROGRAMS: dict[str, Callable[[Any, Any, Process], None]] = {"ddp": run_ddp, "fsdp": run_fsdp}


def _fsdp2(torch: Any, rank: Process, module: Any) -> Trainee:
    whole = elements(module.parameters())
    mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh(rank.device.type, (rank.world,))
    # Public from torch 2.6 on.
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        fsdp = importlib.import_module("torch.distributed._composable.fsdp")
    for layer in module:
        if isinstance(layer, torch.nn.Linear):
            fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(module, mesh=mesh)
    parameters = list(module.parameters())
    rank.value("share", [elements(each.to_local() for each in parameters), whole])
    return Trainee(
        module,
        training.by_sgd(torch, module),
        lambda: training.flat(torch, [each.grad.full_tensor() for each in parameters]),
        lambda: training.flat(torch, [each.detach().full_tensor() for each in parameters]),
        lambda: float(torch.nn.utils.clip_grad_norm_(parameters, float("inf")).full_tensor()),
    )


def _fsdp1(torch: Any, rank: Process, module: Any) -> Trainee:
    whole = elements(module.parameters())
    fsdp: Any = importlib.import_module("torch.distributed.fsdp").FullyShardedDataParallel
    policy = importlib.import_module("torch.distributed.fsdp.wrap").ModuleWrapPolicy({torch.nn.Linear})
    # Sharded parameters keep their names, without which their gradients can't be gathered.
    sharded = fsdp(module, auto_wrap_policy=policy, use_orig_params=True, device_id=rank.device)
    rank.value("share", [elements(sharded.parameters()), whole])

    def gathered(flat: Callable[[Any, list[Any]], Any]) -> Any:
        with fsdp.summon_full_params(sharded, with_grads=True):
            return flat(torch, list(sharded.parameters()))

    return Trainee(
        sharded,
        training.by_sgd(torch, sharded),
        lambda: gathered(training.flat_gradients),
        lambda: gathered(training.flat),
        lambda: float(sharded.clip_grad_norm_(float("inf"))),
    )
