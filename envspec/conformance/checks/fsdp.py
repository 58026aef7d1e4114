"""A sharded step by FSDP2: ranks agree bit by bit, and with one process. On the CPU only where torch does it right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import distributions
from typing import Any

from envspec.conformance.distributed.launch import Launch, Launched, launches
from envspec.conformance.distributed.training import Trained, compare, train_each
from envspec.conformance.events import CheckContext, ProcessEvents

#: FSDP2 over gloo on the CPU: (since this release of torch, why it can't be tested or "", source). To extend: run the
#: check on the CPU without the last line.
GLOO = (
    ((2, 4), "it requires NVIDIA's driver", "torch 2.4.1 on two CPU cores, 2026-11"),
    ((2, 6), "it requires streams, which the CPU lacks, and raises", "torch 2.6.0 on two CPU cores, 2026-11"),
    ((2, 7), "it is silently wrong: the gradient's norm is doubled", "pytorch#162338; torch 2.7.1 and 2.8.0, 2026-11"),
    ((2, 9), "", "torch 2.9.1 and 2.15.0 on two CPU cores, 2026-11"),
)


def check(context: CheckContext) -> None:
    """Every rank has a part of the parameters, and trains as one process does."""
    release = _torch_release(context)

    def examine(torch: Any, running: Launched, ranks: Mapping[int, ProcessEvents], one: Trained) -> None:
        for rank, each in ranks.items():
            held, whole = each.values["share"]
            # Shards are padded, and the smallest tensor has fewer rows than there may be ranks.
            ok = held == whole if running.launch.world == 1 else held < whole
            name = f"{running.launch.name}: rank {rank} has its share"
            context.exact(name, ok=ok, detail=f"{held} of {whole} parameters")
        compare(torch, context, running, ranks, one)

    train_each(context, [_sharding(context, each, release) for each in launches(context, "fsdp")], examine)


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
    kind = "fsdp2"
    if launch.device == "cpu" and wrong:
        kind = "fsdp1"
        reason = f"FSDP2 on the CPU with torch {release[0]}.{release[1]}: {wrong} ({source}). FSDP1 is run instead"
        context.not_run(f"FSDP2, {launch.name}", reason)
    return replace(launch, name=f"{kind.upper()}, {launch.name}", sharding=kind)
