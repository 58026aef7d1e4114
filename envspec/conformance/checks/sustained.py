"""Products that fill the whole device for a while: each is exact, and the same bit by bit.

A GPU with a defect often computes a few small products correctly: only many products on all multiprocessors, on a card
that is warm, show one wrong bit.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Sequence
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
    """Share the time among the modes of the device: one after the other, with `--burn` in many turns."""
    torch = context.load("torch")
    with context.phase("the device's start"):
        deterministic(torch)
        run = modes(torch, context)
    with context.phase("inputs"):
        left, right, vectors = _inputs(torch, context)
        expected = left.double() @ (right.double() @ vectors)
    burn_s = context.request.burn_s
    seconds = (burn_s or SIZES[f"sustained.seconds.{context.device}"]) / len(run)
    turns = math.ceil(seconds / SIZES["sustained.turn_s"]) if burn_s else 1
    repeated: dict[str, _Repeated] = {}
    with context.sensors() as sensors:
        for turn in range(turns):
            for mode in run:
                with context.phase(f"products in {mode.name}"), case(torch, context, f"products in {mode.name}"):
                    # One that is refused has no further turn.
                    each = repeated.pop(mode.name, None)
                    if turn == 0:
                        factors = mode.left(left.float()), mode.right(right.float())
                        first = mode.product(*factors)
                        if _is_exact(torch, context, mode, first, vectors, expected):
                            each = _Repeated(torch, context, mode, factors, first)
                    if each:
                        each.run(seconds / turns)
                        repeated[mode.name] = each
    for each in repeated.values():
        each.report()
    if burn_s:
        context.note("burn", f"{burn_s:g} s, in {turns} turns of each type")
    if sensors:
        _report(context, sensors)


def _report(context: CheckContext, sensors: Sensors) -> None:
    """What the GPU's sensors showed meanwhile."""
    for name, unit in UNITS.items():
        values = sensors.samples.get(name)
        if values:
            context.measure(name, statistics.median(values), unit, f"the median; {min(values):g} to {max(values):g}")
        else:
            context.not_run(name, sensors.problem(name))
    count = max(map(len, sensors.samples.values()), default=0)
    lowered = [f"{reason} in {times} of {count} samples" for reason, times in sensors.reasons.items()]
    if "reasons" in sensors.problems or not count:
        context.not_run("lowered clocks", sensors.problem("reasons"))
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


class _Repeated:
    """Compares further products of a mode with the first, bit by bit, on the device; synchronises once for many."""

    def __init__(self, torch: Any, context: CheckContext, mode: Mode, factors: Sequence[Any], first: Any) -> None:
        self._mode = mode
        self._torch = torch
        self._context = context
        self._factors = factors
        self._bits = {2: torch.int16, 4: torch.int32}[first.element_size()]
        self._right = first.view(self._bits)
        self._disturbed = disturbance(context.device)
        self._products = 0
        self._times: list[float] = []
        self._wrong: list[str] = []
        self._elements = 0

    def run(self, seconds: float) -> None:
        """Multiply for a while."""
        began = time.perf_counter()
        while len(self._times) < 2 or time.perf_counter() - began < seconds:
            count = 1
            if self._times:
                # About twenty blocks: often enough to see a clock that falls, seldom enough to keep the device busy.
                count = max(1, round(seconds / 20 / self._times[-1]))
            self._block(count)

    def _block(self, count: int) -> None:
        torch, clock = self._torch, _Clock(self._torch, self._context.device)
        results = []
        for _ in range(count):
            clock.mark()
            product = self._mode.product(*self._factors)
            clock.mark()
            differs = (product.view(self._bits) != self._right).flatten()
            # On a GPU the largest element of booleans can't be found.
            results.append(torch.stack([differs.sum(), differs.view(torch.uint8).argmax()]))
        for number, (elements, place) in enumerate(torch.stack(results).tolist(), self._products + 1):
            self._elements += elements
            if elements:
                where = divmod(place, len(self._right))
                self._wrong.append("product {}, row {}, column {}".format(number, *where))
                if len(self._wrong) == 1:
                    # At once: a burn may be ended before its report.
                    self._context.note(f"the first wrong product in {self._mode.name}", self._wrong[0])
        self._products += count
        self._times.append(clock.seconds() / count)

    def report(self) -> None:
        """The findings."""
        context, name = self._context, self._mode.name
        # The first block was one product.
        times = self._times[1:]
        apart = spread(times, self._disturbed())
        detail = f"{len(self._wrong)} of {self._products} products differ from the first"
        if self._wrong:
            detail += f", in {self._elements} elements; the first: {self._wrong[0]}"
        context.exact(f"products in {name}", ok=not self._wrong, detail=detail)
        count = 2 * len(self._right) ** 3
        middle = count / statistics.median(times) / 1e12
        context.measure(f"{name} at the beginning", count / times[0] / 1e12, "TFLOP/s")
        context.measure(name, middle, "TFLOP/s", f"the median of {len(times)} blocks", apart)
        context.measure(f"{name} at the end", count / times[-1] / 1e12, "TFLOP/s")


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
