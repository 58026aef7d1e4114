"""Operators along a sequence: mamba-ssm's selective scan, causal-conv1d.

Sources: mamba_ssm 2.3.2, ops/selective_scan_interface.py and csrc/selective_scan; causal_conv1d 1.7.0,
causal_conv1d_interface.py. Read 2026-11.
"""

from __future__ import annotations

import math
from typing import Any

from envspec.conformance.bounds import limit
from envspec.conformance.extensions.operation import Operation
from envspec.conformance.numerics import TYPES

_TAPS = 4
#: 1 / ln 2: exponentials are computed to base 2.
_LOG2_E = 1.4427


def selective_scan(operation: Operation) -> None:
    """`selective_scan_fn(u, delta, A, B, C, D)`: x[t] = exp(delta[t] A) x[t-1] + delta[t] B[t] u[t], y = C x + D u.

    u, delta: (batch, channels, length); A: (channels, states); B, C: (batch, states, length); D: (channels).
    """
    scan, torch = operation.function("selective_scan_fn"), operation.torch
    batch, channels, length = operation.size("batch"), operation.size("channels"), operation.size("scan_length")
    states = operation.size("scan_states")
    # Without decay the states are sums of integers.
    u = operation.integers(-1, 1, batch, channels, length, seed=11)
    b = operation.integers(-1, 1, batch, states, length, seed=12)
    c = operation.integers(-1, 1, batch, states, length, seed=13)
    ones, skip = torch.ones_like(u), operation.integers(-3, 3, channels, seed=14)
    right, _, _ = _scan(torch, u, ones, torch.zeros_like(ones[0, :, :states]), b, c, skip)
    found = scan(u, ones, torch.zeros(channels, states, device=operation.device), b, c, skip)
    operation.equal(f"integers in fp32, length {length}", found, right)
    for name, dtype in operation.types(*TYPES).items():
        u = operation.normal(batch, channels, length, dtype=dtype, seed=15)
        b = operation.normal(batch, states, length, dtype=dtype, seed=16)
        c = operation.normal(batch, states, length, dtype=dtype, seed=17)
        # Steps of 0.001 to 0.1, as Mamba begins with; decays of 1 to N.
        delta = operation.normal(batch, channels, length, seed=18).sigmoid() * 0.099 + 0.001
        delta = delta.to(u.dtype)
        decay = -torch.arange(1, states + 1, dtype=torch.float32, device=operation.device).expand(channels, states)
        skip = operation.normal(channels, seed=19)
        right, scale, error = _scan(torch, u, delta, decay, b, c, skip)
        found = scan(u, delta, decay.contiguous(), b, c, skip)
        bound = limit(f"extensions.scan.{name}", math.ceil(float((error / scale).max())))
        operation.close(f"selective scan in {name}, length {length}", found, right, scale, bound)


def _scan(torch: Any, *inputs: Any) -> tuple[Any, Any, Any]:
    """In fp64: the result, the sum of its terms without signs, and a bound of its error in 2^-24."""
    u, delta, a, b, c, skip = (each.double() for each in inputs)
    states = a.shape[1]
    state = magnitude = error = torch.zeros(u.shape[0], u.shape[1], states, dtype=u.dtype, device=u.device)
    results, scales, errors = [], [], []
    for t in range(u.shape[2]):
        exponent = delta[:, :, t, None] * a
        factor = exponent.exp()
        term = delta[:, :, t, None] * b[:, None, :, t] * u[:, :, t, None]
        # The exponent's product with a rounded log2(e), exp2, and the products of a scan in any order.
        rounded = 3 * _LOG2_E * exponent.abs() + 6
        error = factor * (error + rounded * magnitude) + 4 * term.abs()
        state, magnitude = factor * state + term, factor * magnitude + term.abs()
        weights = c[:, None, :, t]
        results.append((state * weights).sum(-1))
        scales.append((magnitude * weights.abs()).sum(-1))
        errors.append(((error + (states + 2) * magnitude) * weights.abs()).sum(-1))
    direct = skip[:, None] * u
    right, scale = torch.stack(results, -1) + direct, torch.stack(scales, -1) + direct.abs()
    return right, scale, torch.stack(errors, -1) + 2 * direct.abs()


def causal_conv1d(operation: Operation) -> None:
    """`causal_conv1d_fn(x, weight, bias, activation=)`: y[t] = bias + sum of weight[w] x[t - W + 1 + w].

    x: (batch, channels, length), contiguous by time or by channel; weight: (channels, W); bias: (channels).
    """
    convolve = operation.function("causal_conv1d_fn")
    batch, channels, odd = operation.size("batch"), operation.size("channels"), operation.size("scan_length")
    for name, dtype in operation.types(*TYPES).items():
        # Vectors of 16 bytes, and what is left of them; the layout by channel has kernels of its own.
        for length, by_channel in ((odd, False), (odd - odd % 8, False), (odd, True)):
            layout = f"{name}, length {length}"
            if by_channel:
                layout += ", by channel"
            # 4 * 7 * 7 + 9 <= 256: exact in bf16.
            x = operation.integers(-7, 7, batch, channels, length, dtype=dtype, seed=21)
            weight = operation.integers(-7, 7, channels, _TAPS, dtype=dtype, seed=22)
            bias = operation.integers(-9, 9, channels, dtype=dtype, seed=23)
            right, _ = _convolution(operation.torch, x, weight, bias)
            operation.equal(f"integers in {layout}", convolve(_laid(x, by_channel=by_channel), weight, bias), right)
            x = operation.normal(batch, channels, length, dtype=dtype, seed=31)
            weight = operation.normal(channels, _TAPS, dtype=dtype, seed=32)
            bias = operation.normal(channels, dtype=dtype, seed=33)
            sums, scale = _convolution(operation.torch, x, weight, bias)
            found = convolve(_laid(x, by_channel=by_channel), weight, bias, activation="silu")
            bound_k = math.ceil(1.1 * (_TAPS + 1) + 6 + 2 * float(sums.abs().max()))
            bound = limit(f"extensions.convolution.{name}", bound_k)
            operation.close(f"with SiLU in {layout}", found, sums * sums.sigmoid(), scale, bound)


def _laid(x: Any, *, by_channel: bool) -> Any:
    return x.transpose(1, 2).contiguous().transpose(1, 2) if by_channel else x


def _convolution(torch: Any, x: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """In fp64: the sums, and those of the terms without signs."""
    length = x.shape[2]
    padded = torch.nn.functional.pad(x.double(), (_TAPS - 1, 0))
    terms = [padded[:, :, tap : tap + length] * weight.double()[:, tap, None] for tap in range(_TAPS)]
    offset = bias.double()[:, None]
    return sum(terms, offset), sum((each.abs() for each in terms), offset.abs())
