"""The checks: one file each, and one line in this table, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Callable

from envspec.conformance.trial import Trial


@dataclass(frozen=True)
class Check:
    """A row of the table.

    limit_s: seconds that it may take on the slowest machine that counts. proves: for people. needs: the module without
    which there is nothing to test, and then its names in locks; empty for none.
    """

    limit_s: float
    proves: str
    needs: tuple[str, ...] = ("torch", "torch", "pytorch")

    @staticmethod
    def function(name: str) -> Callable[[Trial], None]:
        """What runs. Its module is imported here: a check that can't be imported is no other check's matter."""
        found: Callable[[Trial], None] = import_module(f"{__name__}.{name}").check
        return found


#: coldstart is the first: after any other check nothing is cold.
CHECKS: Mapping[str, Check] = {
    "coldstart": Check(120, "the time from container start to the first finished kernel, in parts"),
    "device": Check(60, "the GPUs, their driver and the CUDA libraries that run are those of the lock"),
    "family": Check(90, "torch's own companions import, and their operators run"),
    "matmul": Check(120, "products are exact for integers, and within the bounds of each type"),
    "amp": Check(120, "training in mixed precision follows fp32, and an overflow is skipped"),
    "ddp": Check(120, "ranks agree bit by bit, and with one process"),
    "fsdp": Check(120, "a sharded step is the step of one process"),
    "dataloader": Check(120, "workers, pinned memory and prefetching keep up with the device"),
    "transformer": Check(180, "attention's kernels and torch.compile run and agree"),
    "pyg": Check(90, "torch_geometric imports, and a GCN learns a small graph"),
    "widedeep": Check(120, "pytorch_widedeep imports, and Wide & Deep learns a small table"),
    "lock": Check(120, "every file is the locked one, and so are the CUDA libraries in memory", needs=()),
    "memory": Check(60, "what the checks needed, and what a model of N parameters needs"),
}
