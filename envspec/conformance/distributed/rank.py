"""The process of a rank.

A collective that fails names at most an address, and NCCL's watchdog ends a rank by a signal. So every node says each
second in the rendezvous' store that it is there and what it does, and every rank notes whose word no longer changes.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.messages import Task, Words, path_of
from envspec.conformance.distributed.training import Trained, digest
from envspec.conformance.processes import die_with_parent

_BEAT_S = 1.0
#: Without a new word for this long a node counts as lost.
_SILENT_S = 3.5


def connect(timeout_s: float) -> tuple[Any, int, int]:
    """A connection of its own to the store of torchrun's rendezvous, this rank, and the number of all ranks."""
    dist: Any = importlib.import_module("torch.distributed")
    store, rank, world = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=timeout_s)))
    return dist.PrefixStore("envspec", store), rank, world


class Roll:
    """Who is there, as one rank hears it. The store is asked by a thread of its own: over a link that is down an answer
    would be waited for for many minutes.
    """

    def __init__(self, store: Any, node: int, others: Iterable[int]) -> None:
        self._store = store
        self._node = node
        self._answered_s = time.monotonic()
        #: node -> its last word, and when it was heard first.
        self._heard = dict.fromkeys(others, ("", self._answered_s))
        self._ended: dict[int, str] = {}
        self._why = ""

    def keep(self, place: Callable[[], str], note: Callable[[Mapping[int, str]], None]) -> None:
        """From now on say where this node is, and note who is lost whenever that changes, until the process ends."""
        threading.Thread(target=self._say, args=(place,), daemon=True).start()
        threading.Thread(target=self._watch, args=(note,), daemon=True).start()

    def failed(self, why: str) -> dict[int, str]:
        """Let the others read why this rank fails, and tell who is lost: after a wait in which a node that has ended
        falls silent.
        """
        self._why = why
        time.sleep(_SILENT_S + 2 * _BEAT_S)
        return self.lost()

    def lost(self) -> dict[int, str]:
        """The nodes without a sign of life, and what is known of each."""
        now = time.monotonic()
        if self._node and now - self._answered_s > _SILENT_S:
            return {0: "the rendezvous, which it holds, does not answer any more"}
        return {node: self._known(node, word) for node, (word, since) in self._heard.items() if now - since > _SILENT_S}

    def _known(self, node: int, word: str) -> str:
        if node in self._ended:
            return f"it has ended: {self._ended[node]}"
        place = word.partition(" ")[2]
        return (
            f"no word from it for {_SILENT_S:g} s, the last in the phase {place!r}" if word else "never a word from it"
        )

    def _say(self, place: Callable[[], str]) -> None:
        beat = 0
        try:
            while True:
                self._store.set(f"alive/{self._node}", f"{beat} {place()}")
                if self._why:
                    self._store.set(f"ended/{self._node}", self._why)
                for node in self._heard:
                    self._hear(node)
                self._answered_s = time.monotonic()
                beat += 1
                time.sleep(_BEAT_S)
        except Exception as error:
            # A store that is gone answers nobody: that is what `lost` tells.
            print(f"the roll of the nodes: {type(error).__name__}: {error}", flush=True)

    def _hear(self, node: int) -> None:
        alive, ended = f"alive/{node}", f"ended/{node}"
        word = self._store.get(alive).decode() if self._store.check([alive]) else ""
        if word != self._heard[node][0]:
            self._heard[node] = (word, time.monotonic())
        if node not in self._ended and self._store.check([ended]):
            self._ended[node] = self._store.get(ended).decode()

    def _watch(self, note: Callable[[Mapping[int, str]], None]) -> None:
        noted: dict[int, str] = {}
        while True:
            time.sleep(_BEAT_S)
            if (lost := self.lost()) != noted:
                noted = lost
                note(noted)


DONE, FAILED = 0, 70


@dataclass(frozen=True)
class Rank:
    """One rank of many. local: its number on its own machine. device: torch's. folder: of the launch. store: for words
    that take no collective.
    """

    task: Task
    number: int
    local: int
    world: int
    device: Any
    folder: Path
    store: Any
    words: Words

    @staticmethod
    def program(name: str) -> Callable[[Rank], None]:
        """What every rank runs."""
        found: Callable[[Rank], None] = getattr(
            importlib.import_module("envspec.conformance.distributed.programs"), f"run_{name}"
        )
        return found


def main(parent: int, folder: Path) -> int:
    """Run a rank. parent: torchrun's process. folder: of the launch, with its task."""
    die_with_parent(parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with path_of(folder, int(os.environ["RANK"])).open("a", encoding="utf-8") as lines:
        code = _run(Task.read(folder), folder, Words(lines))
    sys.stdout.flush()
    sys.stderr.flush()
    # As in `child`: what crashes while it is taken down has done its work.
    os._exit(code)


def _run(task: Task, folder: Path, words: Words) -> int:
    roll: Roll | None = None
    try:
        with words.phase("import torch"):
            torch: Any = importlib.import_module("torch")
            dist: Any = importlib.import_module("torch.distributed")
        with words.phase("join"):
            roll = _roll(task, words)
            rank = _join(torch, dist, task, folder, words)
        Rank.program(task.program)(rank)
        if rank.device.type == "cuda":
            words.value("peak", [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
        with words.phase("leave"):
            dist.barrier()
            dist.destroy_process_group()
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
        words.raised(why)
        if roll:
            words.lost(roll.failed(f"rank {os.environ['RANK']} raised in the phase {words.place!r}: {why}"))
        return FAILED
    words.done()
    return DONE


def _roll(task: Task, words: Words) -> Roll | None:
    if task.nodes == 1:
        return None
    node = int(os.environ["GROUP_RANK"])
    store, _, _ = connect(SIZES["distributed.timeout_s"])
    roll = Roll(store, node, [each for each in range(task.nodes) if each != node])
    roll.keep(lambda: words.place, words.lost)
    return roll


def _join(torch: Any, dist: Any, task: Task, folder: Path, words: Words) -> Rank:
    local = int(os.environ["LOCAL_RANK"])
    timeout_s = SIZES["distributed.timeout_s"]
    store, number, world = connect(timeout_s)
    device = torch.device(task.device, local) if task.device == "cuda" else torch.device("cpu")
    options = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options["device_id"] = device
    dist.init_process_group(task.backend, timeout=datetime.timedelta(seconds=timeout_s), **options)
    return Rank(task, number, local, world, device, folder, store, words)


def tell(torch: Any, rank: Rank, trained: Trained) -> None:
    """Tell it. The hashes go through the store: what compares ranks must not be the collectives that are tested."""
    mine = {"gradients": [digest(each) for each in trained.gradients], "parameters": digest(trained.parameters)}
    rank.store.set(f"digests/{rank.number}", json.dumps(mine))
    everyone = [json.loads(rank.store.get(f"digests/{each}")) for each in range(rank.world)]
    rank.words.value("digests", everyone)
    rank.words.value("norms", trained.norms)
    if rank.local == 0:
        torch.save([*trained.gradients, trained.parameters], rank.folder / "trained.pt")
