"""Products that fill the whole device for a while: each is exact, and the same bit by bit.

A GPU with a defect often computes a few small products correctly: only many products on all multiprocessors, on a card
that is warm, show one wrong bit.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import Mode, case, deterministic, disturbance, modes, raw, spread, wait
from envspec.conformance.nvml import UNITS, Sensors
from envspec.conformance.results import Level

#: Elements of a row of the left matrix that are not 0. They, and all elements of the right matrix, are -1 or 1: the sum
#: of any terms of a result, in any order, is at most 256 in magnitude, which is exact in bf16 (8 bits) and in fp8's
#: accumulators (14 bits).
_TERMS = 256
#: Vectors of Freivalds' test: odd integers from -255 to 255. None is 0, so a single wrong element of a row is always
#: found, several with all but 256^-4 probability. Sums are at most 8192 x 256 x 255: exact in fp64.
_VECTORS = 4


def check(context: CheckContext) -> None:
    """Share the time among the modes of the device."""
    torch = context.load("torch")
    deterministic(torch)
    run = modes(torch, context)
    with context.phase("inputs"):
        left, right, vectors = _inputs(torch, context)
        expected = left.double() @ (right.double() @ vectors)
    seconds = SIZES[f"sustained.seconds.{context.device}"] / len(run)
    with context.sensors() if context.request.cuda else nullcontext() as sensors:
        for mode in run:
            with context.phase(f"products in {mode.name}"), case(torch, context, f"products in {mode.name}"):
                factors = mode.left(left.float()), mode.right(right.float())
                first = mode.product(*factors)
                if _is_exact(torch, context, mode, first, vectors, expected):
                    _repeat(torch, context, mode, factors, first, seconds)
    if sensors:
        _report(context, sensors)


def _report(context: CheckContext, sensors: Sensors) -> None:
    """What the GPU's sensors showed meanwhile."""
    for name, unit in UNITS.items():
        values = sensors.samples.get(name)
        if values:
            context.measure(name, statistics.median(values), unit, f"the median; {min(values):g} to {max(values):g}")
        else:
            context.not_run(name, sensors.problems.get(name, "NVML returns no sample"))
    count = max(map(len, sensors.samples.values()), default=0)
    lowered = [f"{reason} in {times} of {count} samples" for reason, times in sensors.reasons.items()]
    if "reasons" in sensors.problems or not count:
        context.not_run("lowered clocks", sensors.problems.get("reasons", "NVML returns no sample"))
    else:
        context.note("lowered clocks", "; ".join(lowered) or f"in none of {count} samples")


def _inputs(torch: Any, context: CheckContext) -> tuple[Any, Any, Any]:
    """Both matrices in int8, and vectors in fp64 as columns; from a hash, the same with every torch on every device."""
    side = SIZES[f"sustained.side.{context.device}"]
    terms = min(_TERMS, side)
    width = side // terms

    def drawn(name: str, count: int) -> Any:
        digest = hashlib.shake_256(f"sustained {name} {context.request.seed}".encode()).digest(count)
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(context.device)

    # One element of each `width` neighbours in a row; the highest bit is its sign.
    places = drawn("left", side * terms).view(side, terms, 1)
    signs = 1 - 2 * (places // 128).to(torch.int8)
    left = (signs * (torch.arange(width, device=context.device) == places % width)).view(side, side)
    bits = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=context.device)
    right = (1 - 2 * ((drawn("right", side * side // 8).view(-1, 1) & bits) > 0).to(torch.int8)).view(side, side)
    vectors = 2 * drawn("vectors", side * _VECTORS).view(side, _VECTORS).double() - 255
    return left, right, vectors


def _is_exact(torch: Any, context: CheckContext, mode: Mode, first: Any, vectors: Any, expected: Any) -> bool:
    """Freivalds' test: a product is right if its products with some vectors are."""
    side = len(first)
    found = first.double() @ vectors
    rows = (found != expected).any(1).nonzero().flatten().tolist()
    largest = float(first.abs().max())
    words = f"of {side} x {side} x {side}: {len(rows)} of {side} rows differ from the product in integers"
    detail = ", the first is row ".join([words, *map(str, rows[:1])])
    is_exact = not rows and largest <= _TERMS
    context.exact(f"the first product in {mode.name}", ok=is_exact, detail=f"{detail}; the largest is {largest:g}")
    context.fingerprint(f"products in {mode.name}", [raw(found.to(torch.int64))], Level.UNIVERSAL)
    return is_exact


def _repeat(torch: Any, context: CheckContext, mode: Mode, factors: Sequence[Any], first: Any, seconds: float) -> None:
    """Compare each further product with the first, bit by bit, on the device; synchronise once for many products."""
    bits = {2: torch.int16, 4: torch.int32}[first.element_size()]
    right = first.view(bits)
    side, block = len(first), 1
    times: list[float] = []
    wrong: list[str] = []
    products, elements = 0, 0
    began, disturbed = time.perf_counter(), disturbance(context.device)
    while len(times) < 2 or time.perf_counter() - began < seconds:
        clock = _Clock(torch, context.device)
        results = []
        for _ in range(block):
            clock.mark()
            product = mode.product(*factors)
            clock.mark()
            differs = (product.view(bits) != right).flatten()
            # On a GPU the largest element of booleans can't be found.
            results.append(torch.stack([differs.sum(), differs.view(torch.uint8).argmax()]))
        for number, (count, place) in enumerate(torch.stack(results).tolist(), products + 1):
            elements += count
            if count:
                wrong.append("product {}, row {}, column {}".format(number, *divmod(place, side)))
        products += block
        times.append(clock.seconds() / block)
        # About twenty blocks: often enough to see a clock that falls, seldom enough to keep the device busy.
        block = max(1, round(seconds / 20 / times[-1]))
    apart = spread(times[1:], disturbed())
    detail = f"{len(wrong)} of {products} products differ from the first"
    if wrong:
        detail += f", in {elements} elements; the first: {wrong[0]}"
    context.exact(f"products in {mode.name}", ok=not wrong, detail=detail)
    # The first block was one product.
    del times[0]
    first_rate, middle, last = (2 * side**3 / each / 1e12 for each in (times[0], statistics.median(times), times[-1]))
    context.measure(f"{mode.name} at the beginning", first_rate, "TFLOP/s")
    context.measure(mode.name, middle, "TFLOP/s", f"the median of {len(times)} blocks", apart)
    context.measure(f"{mode.name} at the end", last, "TFLOP/s")


class _Clock:
    """Adds up the time between starts and stops: by events of a GPU, without a synchronisation; else by wall time."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Start or stop."""
        if self._device == "cuda":
            self._marks.append(self._torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> float:
        wait(self._torch, self._device)
        pairs = zip(self._marks[::2], self._marks[1::2])
        if self._device == "cuda":
            return float(sum(one.elapsed_time(other) for one, other in pairs)) / 1e3
        return float(sum(other - one for one, other in pairs))
