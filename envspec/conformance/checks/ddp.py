"""DistributedDataParallel over all GPUs, or over gloo on the CPU: ranks agree bit by bit, and with one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.launch import Launch, Launched, launches
from envspec.conformance.distributed.training import Trained, compare, train_each
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.results import Level
from envspec.conformance.stragglers import described


def check(context: CheckContext) -> None:
    """Collectives of integers, training, bandwidths, and ranks that stand out."""

    def examine(torch: Any, running: Launched, ranks: Mapping[int, ProcessEvents], one: Trained) -> None:
        _integers(context, running.launch, ranks)
        compare(torch, context, running, ranks, one)
        _bandwidth(context, running.launch, list(ranks.values()))
        _stragglers(context, running.launch, next(iter(ranks.values())))

    train_each(context, launches(context, "ddp"), examine)


def _integers(context: CheckContext, launch: Launch, ranks: Mapping[int, ProcessEvents]) -> None:
    wrong = []
    for rank, each in ranks.items():
        for name, dtype, size, count, place, of in each.values["integers"]:
            if count:
                where = f"{name} of {dtype}, {size} bytes, at rank {rank}"
                wrong.append(f"{where}: {count} of {of} elements, the first is {place}")
    first = next(iter(ranks.values())).values
    names = dict.fromkeys(name for name, *_ in first["integers"])
    sizes: dict[str, dict[int, None]] = {}
    for _, dtype, size, *_ in first["integers"]:
        sizes.setdefault(dtype, {})[size] = None
    types = (f"{dtype} ({', '.join(map(str, found))} bytes)" for dtype, found in sizes.items())
    detail = "; ".join(wrong) or f"{', '.join(names)} of {', '.join(types)}"
    context.exact(f"{launch.name}: collectives of integers are exact", ok=not wrong, detail=detail)
    # The sum depends on the number of ranks.
    sums = f"sum of {SIZES['distributed.integers']} integers over {launch.world} ranks"
    context.fingerprint(sums, [first["sum"].encode()], Level.UNIVERSAL)


def _bandwidth(context: CheckContext, launch: Launch, ranks: list[ProcessEvents]) -> None:
    if "bus" not in ranks[0].values:
        context.not_run(f"{launch.name}: bandwidth", "one rank sends nothing")
        return
    blocks = SIZES[f"distributed.blocks.{launch.device}"]
    for what in ranks[0].values["bus"]:
        speed, spread, calls = min(each.values["bus"][what] for each in ranks)
        best = f"the best of {blocks}"
        if calls > 1:
            best += f" blocks of {calls} calls"
        # gloo's numbers depend on what else the CPU does.
        judged = spread if launch.backend == "nccl" else None
        detail = f"{best}, of the slowest rank"
        context.measure(f"{launch.name}: bus bandwidth of {what}", speed / 1e9, "GB/s", detail, judged)


def _stragglers(context: CheckContext, launch: Launch, first: ProcessEvents) -> None:
    """Ranks whose times stand out. first: a rank of this machine, which has the times of all."""
    name = f"{launch.name}: stragglers"
    if "times" not in first.values:
        context.not_run(name, f"there are fewer than {SIZES['distributed.fewest_ranks']} ranks")
        return
    ranges, odd = [], []
    for what in first.values["times"][0]:
        seconds = {f"rank {rank}": float(each[what]) for rank, each in enumerate(first.values["times"])}
        ranges.append(f"{what} {min(seconds.values()) * 1e3:.3g} to {max(seconds.values()) * 1e3:.3g} ms")
        odd += [f"{what}: {text}" for text in described(seconds)]
    context.note(f"{launch.name}: times of the ranks", "; ".join(ranges))
    detail = "; ".join(odd) or f"none of {launch.world} ranks in {len(ranges)} times"
    if launch.backend != "nccl":
        detail += " (the ranks share the CPU, and their times depend on what else it does)"
    context.note(name, detail)
