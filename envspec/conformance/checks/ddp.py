"""DistributedDataParallel over all GPUs, over gloo on the CPU: ranks agree bit by bit, and with one process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.launch import Launched, launched, parts
from envspec.conformance.distributed.messages import Said
from envspec.conformance.distributed.training import judge, one_process
from envspec.conformance.events import Trial
from envspec.conformance.results import Level


def check(trial: Trial) -> None:
    """Run every part at once: most of their time is that of imports."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(launched(trial, each)) for each in parts(trial, "ddp")]
        torch = imports.torch(trial)
        for each in running:
            task, world = each.launch.task, each.launch.world
            with trial.phase(f"ranks of {each.launch.name}"):
                said = each.wait()
            # After them: a GPU may be set to take one process at a time.
            one = one_process(torch, trial, task.device, world)
            _integers(trial, each, said)
            judge(torch, trial, each, said, one)
            _bandwidth(trial, each, said)


def _integers(trial: Trial, part: Launched, said: Sequence[Said]) -> None:
    name = part.launch.name
    wrong = [f"{what} at rank {each.rank}" for each in said for what, ok in each.values["integers"].items() if not ok]
    told = ", ".join(wrong) if wrong else ", ".join(said[0].values["integers"])
    trial.exact(f"{name}: collectives of integers are exact", ok=not wrong, told=told)
    # Which sum that is depends on how many ranks add to it.
    sums = f"sum of integers over {part.launch.world} ranks"
    trial.fingerprint(sums, [said[0].values["sum"].encode()], Level.UNIVERSAL)
    for each in said:
        if "NCCL" in each.values:
            trial.ran("NCCL", each.values["NCCL"])


def _bandwidth(trial: Trial, part: Launched, said: Sequence[Said]) -> None:
    name = part.launch.name
    if "bus" not in said[0].values:
        trial.not_run(f"{name}: bandwidth", "one rank sends nothing")
        return
    for what in said[0].values["bus"]:
        slowest = min(each.values["bus"][what] for each in said)
        trial.inform(
            f"{name}: bus bandwidth of {what}",
            slowest / 1e9,
            "GB/s",
            f"the best of {SIZES['distributed.repeats']}, the slowest rank's",
        )
