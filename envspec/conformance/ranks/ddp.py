"""A rank of the check `ddp`."""

from __future__ import annotations

import importlib
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.ranks import collectives, training
from envspec.conformance.ranks.process import Rank
from envspec.conformance.ranks.telling import tell


def run(rank: Rank) -> None:
    """Collectives of integers, the steps, then bandwidth."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    training.prepare(torch)
    with rank.words.phase("integers"):
        collectives.integers(torch, dist, rank)
    with rank.words.phase("wrap"):
        module = training.model(torch, rank.task.seed, rank.device)
        bucket_mb = SIZES["distributed.bucket_bytes"] / 2**20
        devices = [rank.device] if rank.device.type == "cuda" else None
        replica = torch.nn.parallel.DistributedDataParallel(module, device_ids=devices, bucket_cap_mb=bucket_mb)
    share = training.Share(rank.number, 1, rank.world)
    step = training.by_sgd(torch, replica)
    trained = training.train(torch, training.alone(torch, replica), step, rank.task.seed, share, rank.words.phase)
    with rank.words.phase("compare"):
        tell(torch, rank, trained)
    if rank.world > 1:
        with rank.words.phase("bandwidth"):
            collectives.bandwidth(torch, dist, rank)
    if rank.task.backend == "nccl":
        rank.words.value("NCCL", ".".join(str(each) for each in torch.cuda.nccl.version()))
