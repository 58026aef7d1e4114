"""The process of one rank, which torchrun starts."""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.processes import die_with_parent
from envspec.conformance.ranks import nodes
from envspec.conformance.ranks.said import Task, Words, path_of

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
        found: Callable[[Rank], None] = importlib.import_module(f"envspec.conformance.ranks.{name}").run
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
    roll: nodes.Roll | None = None
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


def _roll(task: Task, words: Words) -> nodes.Roll | None:
    if task.nodes == 1:
        return None
    node = int(os.environ["GROUP_RANK"])
    store, _, _ = nodes.connect(SIZES["distributed.timeout_s"])
    roll = nodes.Roll(store, node, [each for each in range(task.nodes) if each != node])
    roll.keep(lambda: words.place, words.lost)
    return roll


def _join(torch: Any, dist: Any, task: Task, folder: Path, words: Words) -> Rank:
    local = int(os.environ["LOCAL_RANK"])
    timeout_s = SIZES["distributed.timeout_s"]
    store, number, world = nodes.connect(timeout_s)
    device = torch.device(task.device, local) if task.device == "cuda" else torch.device("cpu")
    options = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options["device_id"] = device
    dist.init_process_group(task.backend, timeout=datetime.timedelta(seconds=timeout_s), **options)
    return Rank(task, number, local, world, device, folder, store, words)
