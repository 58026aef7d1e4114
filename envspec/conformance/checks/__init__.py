"""The checks: one file each, and one line in this table, in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from envspec.conformance.events import CheckContext
    from envspec.conformance.request import SuiteRequest


@dataclass(frozen=True)
class CheckDefinition:
    """A line of the table.

    limit_s: enough on the slowest supported machine.
    proves: a description.
    needs: it is not run unless the stack has one of these modules.
    preimports: modules imported before its turn, in this order.
    alone: whether no other check imports while it runs.
    each_gpu: whether it runs in one process for each GPU, at the same time, each of which sees no other GPU.
    limit_s_per_gpu: seconds more for each further GPU.
    limit_s_per_gb: seconds more for each GB of wheels in the lock.
    limit_s_per_burn_s: seconds more for each second of `--burn`.
    advice: its hint if it fails without a better one.
    """

    limit_s: float
    proves: str
    needs: tuple[str, ...] = ("torch",)
    preimports: tuple[str, ...] = ("torch",)
    alone: bool = False
    each_gpu: bool = False
    limit_s_per_gpu: float = 0.0
    limit_s_per_gb: float = 0.0
    limit_s_per_burn_s: float = 0.0
    advice: str = ""

    @staticmethod
    def function(name: str) -> Callable[[CheckContext], None]:
        """The check's code, imported late: an import that fails affects no other check."""
        found: Callable[[CheckContext], None] = import_module(f"{__name__}.{name}").check
        return found


#: Imported by an optimizer's first step and by torch.compile; takes as long as torch itself (2.9).
_OPTIMIZING = ("torch", "torch._dynamo")

#: coldstart is first: after any other check nothing is cold. ddp, fsdp and extensions do not preimport, since their
#: processes import torch themselves; nor does lock, which needs no torch.
CHECKS: Mapping[str, CheckDefinition] = {
    "coldstart": CheckDefinition(
        120, "the time from container start to the first finished kernel, in parts", preimports=(), alone=True
    ),
    "device": CheckDefinition(
        60, "the GPUs, their driver and the CUDA libraries that run are those of the lock", limit_s_per_gpu=15
    ),
    "family": CheckDefinition(
        90,
        "torch's own companions import, and their operators run",
        needs=("torchvision", "torchaudio"),
        # torchaudio's own import is short, and follows torchvision's operator.
        preimports=("torch", "torchvision"),
        advice="install torch and its companions from one lock: each of them is built for one torch release",
    ),
    "matmul": CheckDefinition(
        120, "products are exact for integers, and within the bounds of each type", each_gpu=True, limit_s_per_gpu=10
    ),
    "amp": CheckDefinition(
        120,
        "training in mixed precision follows fp32, and an overflow is skipped",
        preimports=_OPTIMIZING,
        each_gpu=True,
        limit_s_per_gpu=10,
    ),
    "ddp": CheckDefinition(120, "ranks agree bit by bit, and with one process", preimports=(), limit_s_per_gpu=15),
    "fsdp": CheckDefinition(120, "a sharded step is the step of one process", preimports=(), limit_s_per_gpu=15),
    "dataloader": CheckDefinition(
        120, "workers, pinned memory and prefetching keep up with the device", each_gpu=True, limit_s_per_gpu=10
    ),
    "transformer": CheckDefinition(
        180,
        "attention's kernels and torch.compile run and agree",
        preimports=_OPTIMIZING,
        each_gpu=True,
        limit_s_per_gpu=15,
    ),
    "inference": CheckDefinition(
        120, "greedy decoding with a cache, without one and in a batch is the same", each_gpu=True, limit_s_per_gpu=10
    ),
    "runtime": CheckDefinition(
        60,
        "a kernel compiled by NVRTC is exact, and a CUDA graph's replay equals eager",
        each_gpu=True,
        limit_s_per_gpu=5,
        advice="install torch with the CUDA packages that it requires: libnvrtc and libnvrtc-builtins are two files",
    ),
    "bandwidth": CheckDefinition(
        90,
        "copies from and to pinned memory, on each card and between GPUs are exact; their GB/s",
        # Of all ordered pairs: with 16 GPUs 240, a second and a half each.
        limit_s_per_gpu=30,
    ),
    "pyg": CheckDefinition(
        90, "torch_geometric imports, and a GCN learns a small graph", preimports=("torch", "torch_geometric")
    ),
    "widedeep": CheckDefinition(
        120, "pytorch_widedeep imports, and Wide & Deep learns a small table", preimports=("torch", "pytorch_widedeep")
    ),
    "extensions": CheckDefinition(
        1200,
        "an operator of each compiled extension agrees with plain torch",
        preimports=(),
        advice="its kernels for this device are wrong: lock another release of it, or build it for this GPU",
    ),
    "lock": CheckDefinition(
        120,
        "every file is the locked one",
        needs=(),
        preimports=(),
        # 3 GB of wheels are 7 GB of files: 70 MB/s.
        limit_s_per_gb=40,
    ),
    "libraries": CheckDefinition(
        180, "after real work, each CUDA library is in memory once, of an installed package, and of torch's version"
    ),
    "memory": CheckDefinition(
        60,
        "what the checks needed, and what a model of N parameters needs",
        preimports=_OPTIMIZING,
        each_gpu=True,
        limit_s_per_gpu=10,
    ),
    "sustained": CheckDefinition(
        180,
        "products that fill the device for a while are exact, each of them",
        each_gpu=True,
        # A turn ends when its last block does.
        limit_s_per_burn_s=1.2,
        advice="the device computes wrong results under load: check its cooling and power, or replace it",
    ),
    # The last one: after all work.
    "health": CheckDefinition(
        60,
        "NVML reports no fault of a GPU: memory, PCIe, NVLinks, fabric, Xid errors, clocks",
        needs=(),
        preimports=(),
        limit_s_per_gpu=5,
    ),
}


def limit_of(check: str, request: SuiteRequest) -> float:
    """Seconds that a check may take: the requested limit, else its own for so many GPUs and bytes; times the factor."""
    if check in request.limits:
        return request.limits[check] * request.limit_factor
    definition = CHECKS[check]
    size_gb = request.reference_or_empty.size_bytes / 1e9
    further = max(0, len(request.gpus) - 1)
    grown = definition.limit_s_per_gpu * further + definition.limit_s_per_gb * size_gb
    return (definition.limit_s + grown + definition.limit_s_per_burn_s * request.burn_s) * request.limit_factor
