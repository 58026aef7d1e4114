"""DistributedDataParallel over all GPUs, or over gloo on the CPU: ranks agree bit by bit, and with one process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.launch import Launched, launched, launches
from envspec.conformance.distributed.messages import RankOutput
from envspec.conformance.distributed.training import compare, one_process
from envspec.conformance.events import CheckContext
from envspec.conformance.results import Level


def check(context: CheckContext) -> None:
    """Run every launch at the same time: most of their time is that of imports."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(launched(context, each)) for each in launches(context, "ddp")]
        torch = context.load("torch")
        for each in running:
            with context.phase(f"ranks of {each.launch.name}"):
                outputs = each.wait()
            # Not before the ranks end: a GPU may allow one process at a time.
            reference = one_process(torch, context, each.launch)
            _integers(context, each, outputs)
            compare(torch, context, each, outputs, reference)
            _bandwidth(context, each, outputs)


def _integers(context: CheckContext, part: Launched, outputs: Sequence[RankOutput]) -> None:
    name, first = part.launch.name, outputs[0].values
    wrong = [
        f"{what} at rank {each.rank}" for each in outputs for what, ok in each.values["integers"].items() if not ok
    ]
    detail = ", ".join(wrong) if wrong else ", ".join(first["integers"])
    context.exact(f"{name}: collectives of integers are exact", ok=not wrong, detail=detail)
    # The sum depends on the number of ranks.
    sums = f"sum of integers over {part.launch.world} ranks"
    context.fingerprint(sums, [first["sum"].encode()], Level.UNIVERSAL)
    for each in outputs:
        if "NCCL" in each.values:
            context.ran("NCCL", each.values["NCCL"])


def _bandwidth(context: CheckContext, part: Launched, outputs: Sequence[RankOutput]) -> None:
    name = part.launch.name
    if "bus" not in outputs[0].values:
        context.not_run(f"{name}: bandwidth", "one rank sends nothing")
        return
    detail = f"the best of {SIZES['distributed.repeats']}, of the slowest rank"
    for what in outputs[0].values["bus"]:
        slowest = min(each.values["bus"][what] for each in outputs)
        context.measure(f"{name}: bus bandwidth of {what}", slowest / 1e9, "GB/s", detail)
