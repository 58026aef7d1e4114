"""The checks: one file each, and one line in this table, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Callable

from envspec.conformance.events import Trial


@dataclass(frozen=True)
class Check:
    """A row of the table.

    limit_s: seconds that it may take on the slowest machine that counts. proves: for people. needs: modules without any
    of which there is nothing to test; empty for none. ahead: modules that are imported before its turn, in this order,
    as far as they are to run. alone: whether nothing is imported for others while it runs. advice: what to do if it
    fails and says nothing better.
    """

    limit_s: float
    proves: str
    needs: tuple[str, ...] = ("torch",)
    ahead: tuple[str, ...] = ("torch",)
    alone: bool = False
    advice: str = ""

    @staticmethod
    def function(name: str) -> Callable[[Trial], None]:
        """What runs. Its module is imported here: a check that can't be imported is no other check's matter."""
        found: Callable[[Trial], None] = import_module(f"{__name__}.{name}").check
        return found


#: An optimizer's first step and torch.compile import this part of torch, which takes as long as torch itself (2.9).
_OPTIMIZING = ("torch", "torch._dynamo")

#: coldstart is the first: after any other check nothing is cold. Ranks of ddp and fsdp import torch while their check
#: does, and take longer; lock is to hash files before it works with them.
CHECKS: Mapping[str, Check] = {
    "coldstart": Check(
        120, "the time from container start to the first finished kernel, in parts", ahead=(), alone=True
    ),
    "device": Check(60, "the GPUs, their driver and the CUDA libraries that run are those of the lock"),
    "family": Check(
        90,
        "torch's own companions import, and their operators run",
        needs=("torchvision", "torchaudio"),
        # torchaudio's own import is short, and comes after torchvision's operator.
        ahead=("torch", "torchvision"),
        advice="take torch and its companions from one lock: each of them is built for one torch alone",
    ),
    "matmul": Check(120, "products are exact for integers, and within the bounds of each type"),
    "amp": Check(120, "training in mixed precision follows fp32, and an overflow is skipped", ahead=_OPTIMIZING),
    "ddp": Check(120, "ranks agree bit by bit, and with one process", ahead=()),
    "fsdp": Check(120, "a sharded step is the step of one process", ahead=()),
    "dataloader": Check(120, "workers, pinned memory and prefetching keep up with the device"),
    "transformer": Check(180, "attention's kernels and torch.compile run and agree", ahead=_OPTIMIZING),
    "pyg": Check(90, "torch_geometric imports, and a GCN learns a small graph", ahead=("torch", "torch_geometric")),
    "widedeep": Check(
        120, "pytorch_widedeep imports, and Wide & Deep learns a small table", ahead=("torch", "pytorch_widedeep")
    ),
    "lock": Check(120, "every file is the locked one, and so are the CUDA libraries in memory", needs=(), ahead=()),
    "memory": Check(60, "what the checks needed, and what a model of N parameters needs", ahead=_OPTIMIZING),
}
