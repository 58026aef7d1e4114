"""Products of matrices: exact for integers, within the bounds of each type for random numbers.

Integers are compared with sums of elements on the CPU, random numbers with products in fp64.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.libraries import CUDNN
from envspec.conformance.numerics import (
    Mode,
    best_time,
    case,
    deterministic,
    key,
    modes,
    raw,
    relative_error,
    tf32_hint,
    worst,
)
from envspec.conformance.results import Level

_LENGTHS = (64, 1024, 4096)
#: Of the exact product at a time, which takes 2 MB.
_ROWS = 4


def check(context: CheckContext) -> None:
    """Test every mode of the device; then one convolution, so that cuDNN runs too."""
    torch = context.load("torch")
    with context.phase("the device's start"):
        deterministic(torch)
        run = modes(torch, context)
    with context.phase("products of integers"):
        _integers(torch, context, run)
    with context.phase("products of random numbers"):
        _random(torch, context, run)
    with context.phase("a convolution"), case(torch, context, "a convolution in fp32"):
        _convolution(torch, context)
    with context.phase("speed"):
        _speed(torch, context, run)


def _integers(torch: Any, context: CheckContext, run: list[Mode]) -> None:
    side, length = SIZES["matmul.integer_side"], SIZES["matmul.integer_k"]
    left, right = _small_integers(torch, context.request.seed, side, length)
    # As int8: 20 times faster than as int32, since it stays in the cache.
    rows, columns = left.to(torch.int8).split(_ROWS), right.t().to(torch.int8).contiguous()
    exact = torch.cat([(each[:, None, :] * columns).sum(-1, dtype=torch.int32) for each in rows])
    left, right = left.float().to(context.device), right.float().to(context.device)
    for mode in run:
        name = f"integers in {mode.name}"
        with case(torch, context, name):
            found = mode.product(mode.left(left), mode.right(right)).cpu()
            wrong = int((found.double() != exact.double()).sum())
            detail = f"{wrong} of {exact.numel()} elements differ from the product in int64, K = {length}"
            context.exact(name, ok=wrong == 0, detail=detail)
            context.fingerprint(name, [raw(found.double().to(torch.int64))], Level.UNIVERSAL)


def _small_integers(torch: Any, seed: int, side: int, length: int) -> tuple[Any, Any]:
    """(side, length) and (length, side) of -1, 0 and 1 in int32, from a hash: independent of torch's release."""
    drawn = bytearray(hashlib.shake_256(f"integers {seed}".encode()).digest(2 * side * length))
    values = torch.frombuffer(drawn, dtype=torch.uint8).to(torch.int32).remainder(3) - 1
    return values[: side * length].view(side, length), values[side * length :].view(length, side)


def _random(torch: Any, context: CheckContext, run: list[Mode]) -> None:
    side = SIZES[f"matmul.side.{context.device}"]
    lengths = (*_LENGTHS, SIZES["matmul.largest_k"])
    results: dict[str, list[bytes]] = {mode.name: [] for mode in run}
    errors: dict[str, list[float]] = {}
    for length in lengths:
        numbers = torch.Generator(context.device).manual_seed(context.request.seed + length)
        left = torch.randn(side, length, device=context.device, generator=numbers)
        right = torch.randn(length, side, device=context.device, generator=numbers)
        for mode in run:
            with case(torch, context, f"{mode.name}, K = {length}"):
                one, other = mode.left(left), mode.right(right)
                found = mode.product(one, other)
                error = _compare(context, mode.name, length, found, one.double(), other.double())
                errors.setdefault(mode.name, []).append(error)
                results[mode.name].append(raw(found))
    if "fp32" in errors:
        detail = "a larger error means that fp32 is computed in TF32: see allow_tf32 and NVIDIA_TF32_OVERRIDE"
        bound = limit("matmul.fp32_not_tf32")
        context.within("fp32 is not TF32", worst(errors["fp32"]), bound, detail=detail, hint=tf32_hint("fp32"))
    if "tf32" in errors and worst(errors["tf32"]) <= limit("matmul.fp32", lengths[-1]).value:
        context.not_run("tf32's units", "TF32 was requested and is as exact as fp32: see NVIDIA_TF32_OVERRIDE")
    for name, parts in results.items():
        if len(parts) == len(lengths):
            where = key(torch, context.device, [f"{side} x K x {side}", f"K = {lengths}"])
            context.fingerprint(f"random numbers in {name}", parts, Level.KEYED, where)


def _compare(context: CheckContext, mode: str, length: int, found: Any, left: Any, right: Any) -> float:
    """Compare a product with the one of its inputs in fp64, in all and by element; return its error in all."""
    exact = left @ right
    error = relative_error(found, exact)
    context.within(f"{mode}, K = {length}", error, limit(f"matmul.{mode}", length))
    # With fp8's short accumulators no bound for an element would find a zero.
    if mode != "fp8":
        off = (found.double() - exact).abs() / (left.abs() @ right.abs())
        worst = int(off.argmax())
        detail = "the worst is row {}, column {}".format(*divmod(worst, off.shape[1]))
        bound = limit(f"matmul.element.{mode}", length)
        context.within(f"{mode}, K = {length}, by element", float(off.flatten()[worst]), bound, detail=detail)
    return error


def _convolution(torch: Any, context: CheckContext) -> None:
    numbers = torch.Generator().manual_seed(context.request.seed)
    images = torch.randn(8, 64, 28, 28, generator=numbers)
    weight = torch.randn(64, 64, 3, 3, generator=numbers)
    # On by default, for cuDNN only.
    torch.backends.cudnn.allow_tf32 = False
    convolve = torch.nn.functional.conv2d
    found = convolve(images.to(context.device), weight.to(context.device), padding=1).cpu()
    exact = convolve(images.double(), weight.double(), padding=1)
    context.within("a convolution in fp32", relative_error(found, exact), limit("matmul.convolution"))
    if context.request.cuda:
        context.ran("cuDNN", CUDNN.loaded())


def _speed(torch: Any, context: CheckContext, run: list[Mode]) -> None:
    side = SIZES[f"matmul.speed_side.{context.device}"]
    numbers = torch.Generator(context.device).manual_seed(context.request.seed)
    matrix = torch.randn(side, side, device=context.device, generator=numbers)
    for mode in run:
        name = f"{mode.name}'s speed"
        with case(torch, context, name):
            work = partial(mode.product, mode.left(matrix), mode.right(matrix))
            seconds, spread = best_time(torch, context.device, work)
            context.measure(name, 2 * side**3 / seconds / 1e12, "TFLOP/s", f"{side} x {side} x {side}", spread)
