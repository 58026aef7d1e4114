"""A sharded step by FSDP2: ranks agree bit by bit, and with one process. On the CPU only where torch does it right."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from importlib.metadata import distributions

from envspec.conformance.distributed.launch import Launch, launched, launches
from envspec.conformance.distributed.training import compare, one_process
from envspec.conformance.events import CheckContext

#: FSDP2 over gloo on the CPU: (since this release of torch, why it can't be tested or "", source). To extend: run the
#: check on the CPU without the last line.
GLOO = (
    ((2, 4), "it requires NVIDIA's driver", "torch 2.4.1 on two CPU cores, 2026-11"),
    ((2, 6), "it requires streams, which the CPU lacks, and raises", "torch 2.6.0 on two CPU cores, 2026-11"),
    ((2, 7), "it is silently wrong: the gradient's norm is doubled", "pytorch#162338; torch 2.7.1 and 2.8.0, 2026-11"),
    ((2, 9), "", "torch 2.9.1 and 2.15.0 on two CPU cores, 2026-11"),
)


def check(context: CheckContext) -> None:
    """Run every launch at the same time: most of their time is that of imports."""
    release = _torch_release(context)
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(launched(context, _sharding(context, each, release)))
            for each in launches(context, "fsdp")
        ]
        torch = context.load("torch")
        for each in running:
            name, world = each.launch.name, each.launch.world
            with context.phase(f"ranks of {name}"):
                outputs = each.wait()
            # Not before the ranks end: a GPU may allow one process at a time.
            reference = one_process(torch, context, each.launch)
            for rank in outputs:
                held, whole = rank.values["share"]
                # Shards are padded, and the smallest tensor has fewer rows than there may be ranks.
                ok = held == whole if world == 1 else held < whole
                context.exact(
                    f"{name}: rank {rank.rank} holds its share", ok=ok, detail=f"{held} of {whole} parameters"
                )
            compare(torch, context, each, outputs, reference)


def _torch_release(context: CheckContext) -> tuple[int, int]:
    """From its metadata, since the ranks are to start before torch is imported.

    Raises:
        ImportError: torch is not installed.
    """
    versions = [each.version for each in distributions(name="torch")]
    # A torch that was built by hand, or that is locked and not installed, has no metadata.
    version = versions[0] if versions else str(context.load("torch").__version__)
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _sharding(context: CheckContext, launch: Launch, release: tuple[int, int]) -> Launch:
    _, wrong, source = next((each for each in reversed(GLOO) if each[0] <= release), GLOO[0])
    kind = "fsdp1" if launch.task.device == "cpu" and wrong else "fsdp2"
    if kind == "fsdp1":
        reason = f"FSDP2 on the CPU with torch {release[0]}.{release[1]}: {wrong} ({source}). FSDP1 is run instead"
        context.not_run(f"FSDP2, {launch.name}", reason)
    return replace(launch, name=f"{kind.upper()}, {launch.name}", task=replace(launch.task, sharding=kind))
