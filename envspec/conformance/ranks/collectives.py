"""Collectives of integers, which must be exact in any order of the sums, and how fast large ones are."""

from __future__ import annotations

import math
import time
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.ranks.process import Rank
from envspec.conformance.ranks.training import digest
from envspec.conformance.tensors import wait


def integers(torch: Any, dist: Any, rank: Rank) -> None:
    """Tell which collectives gave what every rank can compute by itself from the seeds."""
    types = [torch.int64, torch.int32, torch.float32]
    if rank.device.type == "cuda":
        types += [torch.float16, torch.bfloat16]
    exact: dict[str, bool] = {}
    for kind in types:
        name = str(kind).rpartition(".")[2]
        for collective, is_exact in _of_type(torch, dist, rank, kind).items():
            exact[f"{collective} of {name}"] = is_exact
    rank.words.value("integers", exact)


def _of_type(torch: Any, dist: Any, rank: Rank, kind: Any) -> dict[str, bool]:
    given = [_given(torch, rank.task.seed + each, rank.world).to(kind) for each in range(rank.world)]
    total = torch.stack([each.to(torch.int64) for each in given]).sum(0)
    mine = given[rank.number].to(rank.device)
    results: dict[str, tuple[Any, Any]] = {}

    reduced = mine.clone()
    dist.all_reduce(reduced)
    results["all-reduce"] = (reduced, total)
    if kind == torch.int64:
        rank.words.value("sum", digest(reduced.cpu()))

    sent = mine.clone()
    dist.broadcast(sent, src=rank.world - 1)
    results["broadcast"] = (sent, given[-1])

    gathered = torch.empty(rank.world * mine.numel(), dtype=kind, device=rank.device)
    dist.all_gather_into_tensor(gathered, mine)
    results["all-gather"] = (gathered, torch.cat(given))

    chunk = mine.numel() // rank.world
    scattered = torch.empty(chunk, dtype=kind, device=rank.device)
    dist.reduce_scatter_tensor(scattered, mine[: chunk * rank.world].clone())
    results["reduce-scatter"] = (scattered, total[rank.number * chunk : (rank.number + 1) * chunk])
    return {
        name: bool(torch.equal(got.cpu().to(torch.int64), asked.to(torch.int64)))
        for name, (got, asked) in results.items()
    }


def _given(torch: Any, seed: int, world: int) -> Any:
    largest = max(1, SIZES["distributed.largest_sum"] // world)
    count = SIZES["distributed.integers"]
    return torch.randint(-largest, largest + 1, (count,), generator=torch.Generator().manual_seed(seed))


def bandwidth(torch: Any, dist: Any, rank: Rank) -> None:
    """Tell the bus bandwidth of large collectives, in bytes a second: the best of several.

    It is bytes/time x 2(n-1)/n for all-reduce, (n-1)/n for the two others, with the bytes of the whole buffer.
    Source: nccl-tests, `doc/PERFORMANCE.md`.
    """
    world = rank.world
    count = math.ceil(SIZES[f"distributed.bytes.{rank.device.type}"] / 4 / world) * world
    whole = torch.ones(count, device=rank.device)
    part = torch.ones(count // world, device=rank.device)
    moves: dict[str, tuple[Callable[[], object], float]] = {
        "all-reduce": (lambda: dist.all_reduce(whole), 2.0),
        "all-gather": (lambda: dist.all_gather_into_tensor(whole, part), 1.0),
        "reduce-scatter": (lambda: dist.reduce_scatter_tensor(part, whole), 1.0),
    }
    best = {name: _best_s(torch, dist, rank, move) for name, (move, _) in moves.items()}
    speeds = {name: 4 * count / best[name] * factor * (world - 1) / world for name, (_, factor) in moves.items()}
    rank.words.value("bus", speeds)


def _best_s(torch: Any, dist: Any, rank: Rank, move: Callable[[], object]) -> float:
    times = []
    # The first one sets up connections.
    for _ in range(1 + SIZES["distributed.repeats"]):
        dist.barrier()
        wait(torch, rank.device.type)
        began = time.perf_counter()
        move()
        wait(torch, rank.device.type)
        times.append(time.perf_counter() - began)
    return min(times[1:])
