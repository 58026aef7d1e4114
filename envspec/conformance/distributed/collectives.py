"""Collectives of integers, compared with what every rank computes by itself; the bandwidth of large ones.

NCCL's algorithm and protocol depend on the size, and so do its faults: wrong sums from some size on (nccl-tests#167,
NVLSTree), mostly at 1 MiB (nccl#2001), by one protocol only (nccl#596, LL128). So several sizes are compared.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed.training import digest
from envspec.conformance.text import counted

#: Elements whose right values are computed at the same time, each by some int64: a large buffer is compared in chunks.
_CHUNK = 2**20
_MASK = 2**31 - 1


def integer(index: Any, rank: Any, world: int) -> Any:
    """The element `index` of the input of a rank; both are ints, or tensors of int64 for elements of several.

    The sum over all ranks is at most `distributed.largest_sum` away from 0, in any order, for as many ranks. Other
    indices and ranks have unrelated values: an element at a wrong place differs.
    """
    largest = max(1, SIZES["distributed.largest_sum"] // world)
    mixed = (index + rank * 2_654_435_769) & _MASK
    for _ in range(2):
        # Less than 2^62.
        mixed = (mixed * 1_540_483_477) & _MASK
        mixed = mixed ^ (mixed >> 15)
    return mixed % (2 * largest + 1) - largest


def verify(torch: Any, dist: Any, device: Any, rank: int, world: int) -> tuple[list[list[Any]], str]:
    """Run each collective in several types and sizes.

    Returns: for each the collective, the type, the bytes of the whole buffer, the number of wrong elements, the index
    of the first one and the number of elements; and the digest of a sum.
    """
    types = [torch.int64, torch.int32, torch.float32]
    large = [torch.float32]
    if device.type == "cuda":
        types += [torch.float16, torch.bfloat16]
        large += [torch.bfloat16]
    sizes = sorted({SIZES[f"distributed.bytes.{name}"] for name in ("small", "medium", device.type)})
    cases = [(dtype, SIZES["distributed.integers"]) for dtype in types]
    for dtype in large:
        cases += [(dtype, size // dtype.itemsize) for size in sizes]
    outcomes: list[list[Any]] = []
    total = ""
    for dtype, count in cases:
        own = _input(torch, device, dtype, count, rank, world)
        for name, found, right in _collectives(dist, own, rank, world):
            wrong, first = _wrong(torch, found, right)
            outcomes.append([name, str(dtype).rpartition(".")[2], count * dtype.itemsize, wrong, first, found.numel()])
            total = total or digest(found)
    return outcomes, total


def _input(torch: Any, device: Any, dtype: Any, count: int, rank: int, world: int) -> Any:
    buffer = torch.empty(count, dtype=dtype, device=device)
    for start in range(0, count, _CHUNK):
        chunk = buffer[start : start + _CHUNK]
        chunk.copy_(integer(torch.arange(start, start + chunk.numel(), device=device), rank, world))
    return buffer


def _collectives(dist: Any, own: Any, rank: int, world: int) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Each collective, its result, and the right value of the result's elements, by their indices.

    The next one overwrites the result: large buffers are few. The size is that of the whole buffer, of which each rank
    has a part, as in nccl-tests.
    """
    part = own.numel() // world
    result = own.clone()

    def total(index: Any) -> Any:
        return sum(integer(index, each, world) for each in range(world))

    dist.all_reduce(result)
    yield "all-reduce", result, total

    result.copy_(own)
    dist.broadcast(result, src=world - 1)
    yield "broadcast", result, lambda index: integer(index, world - 1, world)

    # No input and no sum: an element that is not written is wrong.
    result.fill_(2 * SIZES["distributed.largest_sum"])
    dist.all_gather_into_tensor(result[: part * world], own[:part])
    yield "all-gather", result[: part * world], lambda index: integer(index % part, index // part, world)

    result.fill_(2 * SIZES["distributed.largest_sum"])
    dist.reduce_scatter_tensor(result[:part], own[: part * world])
    yield "reduce-scatter", result[:part], lambda index: total(rank * part + index)


def _wrong(torch: Any, found: Any, right: Callable[[Any], Any]) -> tuple[int, int | None]:
    """How many elements are wrong, and the index of the first one."""
    wrong, first = 0, None
    for start in range(0, found.numel(), _CHUNK):
        chunk = found[start : start + _CHUNK]
        index = torch.arange(start, start + chunk.numel(), device=found.device)
        differs = chunk != right(index).to(chunk.dtype)
        if number := int(differs.sum()):
            if first is None:
                first = start + int(differs.nonzero()[0])
            wrong += number
    return wrong, first


def bandwidth(
    torch: Any, dist: Any, device: Any, world: int, agree: Callable[[str, int], int]
) -> dict[str, tuple[float, float, int]]:
    """Measure the bus bandwidth of large collectives.

    It is bytes/time x 2(n-1)/n for all-reduce, (n-1)/n for the two others, with the bytes of the whole buffer.
    Source: nccl-tests, `doc/PERFORMANCE.md`.

    agree: a key and a number of calls -> the same number for all ranks.
    Returns: collective -> bytes per second of the best block of calls, the distance of the median block as a fraction
    of that, and the calls of a block.
    """
    count = math.ceil(SIZES[f"distributed.bytes.{device.type}"] / 4 / world) * world
    whole = torch.ones(count, device=device)
    part = torch.ones(count // world, device=device)
    collectives: dict[str, tuple[Callable[[], object], float]] = {
        "all-reduce": (lambda: dist.all_reduce(whole), 2.0),
        "all-gather": (lambda: dist.all_gather_into_tensor(whole, part), 1.0),
        "reduce-scatter": (lambda: dist.reduce_scatter_tensor(part, whole), 1.0),
    }
    speeds = {}
    for name, (collective, factor) in collectives.items():
        times, calls = _times(torch, dist, device, collective, partial(agree, name))
        best = min(times)
        speeds[name] = (4 * count / best * factor * (world - 1) / world, 1 - best / statistics.median(times), calls)
    return speeds


def rank_times(
    torch: Any, dist: Any, device: Any, rank: int, world: int, agree: Callable[[str, int], int]
) -> dict[str, float]:
    """Seconds that one rank needs for a product, for collectives, and to send to and receive from others.

    The kinds and sizes are those of Megatron-LM#4662; the first names the GPU, the last ones the pair of ranks.
    """
    kind, seconds = device.type, {}

    def measure(name: str, work: Callable[[], object]) -> None:
        times, _ = _times(torch, dist, device, work, partial(agree, f"rank times, {name}"))
        seconds[name] = min(times)

    side = SIZES[f"distributed.product_side.{kind}"]
    matrix = torch.ones(side, side, device=device, dtype=torch.float16 if kind == "cuda" else torch.float32)
    measure("a product", partial(torch.matmul, matrix, matrix))
    del matrix
    for size in (SIZES[f"distributed.rank_bytes.large.{kind}"], SIZES[f"distributed.rank_bytes.small.{kind}"]):
        count = math.ceil(size / 4 / world) * world
        whole, other = torch.ones(count, device=device), torch.ones(count, device=device)
        of = f"of {size >> 10} KiB"
        measure(f"all-reduce {of}", partial(dist.all_reduce, whole))
        measure(f"reduce-scatter {of}", partial(dist.reduce_scatter_tensor, other[: count // world], whole))
        measure(f"all-to-all {of}", partial(dist.all_to_all_single, other, whole))
        for stride in sorted({1, world // 2}):
            exchange = partial(_exchange, dist, whole, other, ((rank + stride) % world, (rank - stride) % world))
            measure(f"send/recv {of} over {counted(stride, 'rank')}", exchange)
    return seconds


def _exchange(dist: Any, own: Any, other: Any, ranks: tuple[int, int]) -> None:
    """Send to the first rank, receive from the second."""
    operations = dist.P2POp(dist.isend, own, ranks[0]), dist.P2POp(dist.irecv, other, ranks[1])
    for each in dist.batch_isend_irecv(list(operations)):
        each.wait()


def _times(
    torch: Any, dist: Any, device: Any, work: Callable[[], object], agree: Callable[[int], int]
) -> tuple[list[float], int]:
    """Seconds of a call in each block, and the calls of a block, on which all ranks agree."""
    blocks = SIZES[f"distributed.blocks.{device.type}"]
    block_s = SIZES[f"distributed.speed_ms.{device.type}"] / 1000 / blocks
    # Sets up connections.
    work()
    times = [_seconds(torch, dist, device, work, 1)]
    calls = agree(max(1, math.ceil(block_s / times[0])))
    if calls > 1:
        times.clear()
    while len(times) < blocks:
        times.append(_seconds(torch, dist, device, work, calls) / calls)
    return times, calls


def _seconds(torch: Any, dist: Any, device: Any, collective: Callable[[], object], calls: int) -> float:
    """The time of some calls. On a GPU between two events in its stream, which waits for NCCL's."""
    dist.barrier()
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            collective()
        return time.perf_counter() - began
    torch.cuda.synchronize()
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        collective()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
