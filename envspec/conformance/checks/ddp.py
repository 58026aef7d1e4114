"""DistributedDataParallel over all GPUs, or over gloo on the CPU: ranks agree bit by bit, and with one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.launch import Launch, Launched, launches
from envspec.conformance.distributed.training import Trained, compare, train_each
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.results import Level


def check(context: CheckContext) -> None:
    """Collectives of integers, training, and bandwidths."""

    def examine(torch: Any, running: Launched, ranks: Mapping[int, ProcessEvents], one: Trained) -> None:
        _integers(context, running.launch, ranks)
        compare(torch, context, running, ranks, one)
        _bandwidth(context, running.launch.name, list(ranks.values()))

    train_each(context, launches(context, "ddp"), examine)


def _integers(context: CheckContext, launch: Launch, ranks: Mapping[int, ProcessEvents]) -> None:
    wrong = [
        f"{what} at rank {rank}"
        for rank, each in ranks.items()
        for what, ok in each.values["integers"].items()
        if not ok
    ]
    first = next(iter(ranks.values())).values
    detail = ", ".join(wrong or first["integers"])
    context.exact(f"{launch.name}: collectives of integers are exact", ok=not wrong, detail=detail)
    # The sum depends on the number of ranks.
    sums = f"sum of integers over {launch.world} ranks"
    context.fingerprint(sums, [first["sum"].encode()], Level.UNIVERSAL)
    if "NCCL" in first:
        context.ran("NCCL", first["NCCL"])


def _bandwidth(context: CheckContext, name: str, ranks: list[ProcessEvents]) -> None:
    if "bus" not in ranks[0].values:
        context.not_run(f"{name}: bandwidth", "one rank sends nothing")
        return
    detail = f"the best of {SIZES['distributed.repeats']}, of the slowest rank"
    for what in ranks[0].values["bus"]:
        slowest = min(each.values["bus"][what] for each in ranks)
        context.measure(f"{name}: bus bandwidth of {what}", slowest / 1e9, "GB/s", detail)
