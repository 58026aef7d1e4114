"""A sharded step, by FSDP2: ranks agree bit by bit, and with one process. On the CPU only where torch does it right."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from importlib.metadata import distributions

from envspec.conformance import imports
from envspec.conformance.distributed.launch import Launch, launched, parts
from envspec.conformance.distributed.training import judge, one_process
from envspec.conformance.events import Trial


@dataclass(frozen=True)
class Gloo:
    """What FSDP2 does over gloo on the CPU from a release of torch on. wrong: why it can't be tested; empty where it is
    right.
    """

    since: tuple[int, int]
    wrong: str
    source: str


#: To extend: run the check on the CPU with the row taken out.
GLOO = (
    Gloo((2, 4), "it asks for NVIDIA's driver", "torch 2.4.1 on two CPU cores, 2026-11"),
    Gloo((2, 6), "it asks for streams, which the CPU has not, and raises", "torch 2.6.0 on two CPU cores, 2026-11"),
    Gloo(
        (2, 7), "it is silently wrong: the gradient's norm is doubled", "pytorch#162338; torch 2.7.1 and 2.8.0, 2026-11"
    ),
    Gloo((2, 9), "", "torch 2.9.1 and 2.15.0 on two CPU cores, 2026-11"),
)


def check(trial: Trial) -> None:
    """Run every part at once: most of their time is that of imports."""
    release = _torch_release(trial)
    launches = [_sharding(trial, each, release) for each in parts(trial, "fsdp")]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(launched(trial, each)) for each in launches]
        torch = imports.torch(trial)
        for each in running:
            with trial.phase(f"ranks of {each.launch.name}"):
                said = each.wait()
            # After them: a GPU may be set to take one process at a time.
            one = one_process(torch, trial, each.launch.task.device, each.launch.world)
            for rank in said:
                held, whole = rank.values["share"]
                told = f"{held} of {whole} parameters"
                # Shards are padded, and the smallest tensor has fewer rows than many ranks.
                asked = held == whole if each.launch.world == 1 else held < whole
                trial.exact(f"{each.launch.name}: rank {rank.rank} holds its share", ok=asked, told=told)
            judge(torch, trial, each, said, one)


def _torch_release(trial: Trial) -> tuple[int, int]:
    """By its metadata: the ranks are to be on their way before torch is imported.

    Raises:
        ImportError: torch is not there.
    """
    known = [each.version for each in distributions(name="torch")]
    # Not every torch has some: one that was built by hand, and one that is locked and not there.
    told = known[0] if known else str(imports.torch(trial).__version__)
    major, minor = told.split(".")[:2]
    return int(major), int(minor)


def _sharding(trial: Trial, launch: Launch, release: tuple[int, int]) -> Launch:
    row = next((each for each in reversed(GLOO) if each.since <= release), GLOO[0])
    kind = "fsdp1" if launch.task.device == "cpu" and row.wrong else "fsdp2"
    name = f"{kind.upper()}, {launch.name}"
    if kind == "fsdp1":
        told = f"FSDP2 on the CPU with torch {release[0]}.{release[1]}: {row.wrong} ({row.source})"
        trial.not_run(f"FSDP2, {launch.name}", f"{told}. FSDP1 is run instead")
    return replace(launch, name=name, task=replace(launch.task, sharding=kind))
