"""Products of matrices: exact for integers, within the bounds of each type for random numbers.

What is right is computed in another way than what is tested: integers element by element on the CPU, random numbers in
fp64.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial
from envspec.conformance.numerics import Mode, best_time, deterministic, generator, key, modes, raw, relative_error
from envspec.conformance.results import Level

_LENGTHS = (64, 1024, 4096)
#: Of the exact product at a time: 34 MB.
_ROWS = 16


def check(trial: Trial) -> None:
    """Every mode that the device has; then one convolution, so that cuDNN runs too."""
    torch = imports.torch(trial)
    deterministic(torch)
    run, lacking = modes(torch, trial.device)
    for name, reason in lacking.items():
        trial.not_run(name, reason)
    with trial.phase("products of integers"):
        _integers(torch, trial, run)
    with trial.phase("products of random numbers"):
        _random(torch, trial, run)
    with trial.phase("a convolution"):
        _convolution(torch, trial)
    with trial.phase("speed"):
        _speed(torch, trial, run)


def _integers(torch: Any, trial: Trial, run: list[Mode]) -> None:
    side, length = SIZES["matmul.integer_side"], SIZES["matmul.integer_k"]
    left, right = _small_integers(torch, trial.order.seed, side, length)
    columns = right.t().contiguous()
    exact = torch.cat([(rows[:, None, :] * columns).sum(-1) for rows in left.split(_ROWS)])
    for mode in run:
        found = mode.product(*(mode.rounded(each.float().to(trial.device)) for each in (left, right))).cpu()
        wrong = int((found.double() != exact.double()).sum())
        told = f"{wrong} of {exact.numel()} elements differ from the product in int64, K = {length}"
        trial.exact(f"integers in {mode.name}", ok=wrong == 0, told=told)
        trial.fingerprint(f"integers in {mode.name}", [raw(found.double().to(torch.int64))], Level.UNIVERSAL)


def _small_integers(torch: Any, seed: int, side: int, length: int) -> tuple[Any, Any]:
    """(side, length) and (length, side) of -1, 0 and 1 in int32: by a hash, so that no torch draws other ones."""
    drawn = bytearray(hashlib.shake_256(f"integers {seed}".encode()).digest(2 * side * length))
    values = torch.frombuffer(drawn, dtype=torch.uint8).to(torch.int32).remainder(3) - 1
    return values[: side * length].view(side, length), values[side * length :].view(length, side)


def _random(torch: Any, trial: Trial, run: list[Mode]) -> None:
    side = SIZES[f"matmul.side.{trial.device}"]
    lengths = (*_LENGTHS, SIZES["matmul.largest_k"])
    results: dict[str, list[bytes]] = {mode.name: [] for mode in run}
    largest: dict[str, float] = dict.fromkeys(results, 0.0)
    for length in lengths:
        numbers = generator(torch, trial.device, trial.order.seed + length)
        left = torch.randn(side, length, device=trial.device, generator=numbers)
        right = torch.randn(length, side, device=trial.device, generator=numbers)
        for mode in run:
            rounded = mode.rounded(left), mode.rounded(right)
            found = mode.product(*rounded)
            error = _judge(trial, mode.name, length, found, *(each.double() for each in rounded))
            largest[mode.name] = max(largest[mode.name], error)
            results[mode.name].append(raw(found))
    told = "a larger error says that fp32 is computed in TF32: see allow_tf32 and NVIDIA_TF32_OVERRIDE"
    trial.within("fp32 is not TF32", largest["fp32"], limit("matmul.fp32_not_tf32"), told=told)
    if "tf32" in largest and largest["tf32"] <= limit("matmul.fp32", lengths[-1]).value:
        trial.not_run("tf32's units", "TF32 was asked for, and computed as exactly as fp32: see NVIDIA_TF32_OVERRIDE")
    for name, parts in results.items():
        told = key(torch, trial.device, [f"{side} x K x {side}", f"K = {lengths}"])
        trial.fingerprint(f"random numbers in {name}", parts, Level.KEYED, told)


def _judge(trial: Trial, mode: str, length: int, found: Any, left: Any, right: Any) -> float:
    """Hold a product against the one of its inputs in fp64, in all and element by element; its error in all."""
    exact = left @ right
    error = relative_error(found, exact)
    trial.within(f"{mode}, K = {length}", error, limit(f"matmul.{mode}", length))
    # fp8's short accumulators leave no bound that holds for each element and that a zero would break.
    if mode != "fp8":
        off = (found.double() - exact).abs() / (left.abs() @ right.abs())
        worst = int(off.argmax())
        told = "the worst is row {}, column {}".format(*divmod(worst, off.shape[1]))
        bound = limit(f"matmul.element.{mode}", length)
        trial.within(f"{mode}, K = {length}, by element", float(off.flatten()[worst]), bound, told=told)
    return error


def _convolution(torch: Any, trial: Trial) -> None:
    numbers = generator(torch, "cpu", trial.order.seed)
    images = torch.randn(8, 64, 28, 28, generator=numbers)
    weight = torch.randn(64, 64, 3, 3, generator=numbers)
    # On by default, and for cuDNN only.
    torch.backends.cudnn.allow_tf32 = False
    convolve = torch.nn.functional.conv2d
    found = convolve(images.to(trial.device), weight.to(trial.device), padding=1).cpu()
    exact = convolve(images.double(), weight.double(), padding=1)
    trial.within("a convolution in fp32", relative_error(found, exact), limit("matmul.convolution"))
    if trial.order.cuda:
        trial.ran("cuDNN", str(torch.backends.cudnn.version()))


def _speed(torch: Any, trial: Trial, run: list[Mode]) -> None:
    side = SIZES[f"matmul.speed_side.{trial.device}"]
    numbers = generator(torch, trial.device, trial.order.seed)
    matrix = torch.randn(side, side, device=trial.device, generator=numbers)
    for mode in run:
        rounded = mode.rounded(matrix)
        seconds = best_time(torch, trial.device, partial(mode.product, rounded, rounded))
        trial.inform(f"{mode.name}'s speed", 2 * side**3 / seconds / 1e12, "TFLOP/s", f"{side} x {side} x {side}")
