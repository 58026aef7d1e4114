"""Attention: flash-attn, xformers, flashinfer, natten.

Two inputs for each case. Keys of +-1 that only one query meets: the weights are 0 and 1 after rounding, and the result
is an integer value, bit by bit. And normal numbers, with the error of each element bounded: scores, exponents and sums
are fp32; weights and result are rounded to the type.

Sources: flash_attn 2.8.3, flash_attn_interface.py; xformers 0.0.35, ops/fmha; flashinfer 0.7.2, prefill.py and
jit/core.py; natten 0.21.7, functional.py and backends. Read 2026-11.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envspec.conformance.bounds import limit
from envspec.conformance.extensions.operation import Operation
from envspec.conformance.results import NotRun

_SIZES = (64, 128)
#: A power of two for every size: a kernel may scale queries, keys or scores.
_SCALE = 1 / 8
#: The one key's score exceeds others by 32 / 8 * (d - k.k'), 48 or more for keys of +-1: below fp32's resolution.
_SHARP = 32


@dataclass(frozen=True)
class _Inputs:
    """query, key, value: (batch, length, heads, d). right: in fp64. bound_k: of the bound; 0 if the result is exact."""

    name: str
    query: Any
    key: Any
    value: Any
    right: Any
    scale: Any
    bound_k: int


def flash_attn(operation: Operation) -> None:
    """`flash_attn_func(q, k, v, dropout_p, softmax_scale, causal)`, (batch, length, heads, d)."""
    attend = operation.function("flash_attn_func")
    _each(operation, lambda one, causal: attend(one.query, one.key, one.value, softmax_scale=_SCALE, causal=causal))


def xformers(operation: Operation) -> None:
    """`memory_efficient_attention(query, key, value, attn_bias, scale=)`, (batch, length, heads, d)."""
    attend = operation.function("memory_efficient_attention")
    causal_mask = operation.function("LowerTriangularMask")

    def run(one: _Inputs, causal: bool) -> Any:  # noqa: FBT001 (a case of the operator)
        return attend(one.query, one.key, one.value, attn_bias=causal_mask() if causal else None, scale=_SCALE)

    _each(operation, run)


def flashinfer(operation: Operation) -> None:
    """`single_prefill_with_kv_cache(q, k, v, causal=, sm_scale=)`, (length, heads, d) of one sequence."""
    # Compiled kernels only: the tested environment is not changed, and nvcc takes minutes.
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    attend = operation.function("single_prefill_with_kv_cache")

    def run(one: _Inputs, causal: bool) -> Any:  # noqa: FBT001 (a case of the operator)
        sequences = zip(one.query.unbind(), one.key.unbind(), one.value.unbind())
        return operation.torch.stack([attend(*each, causal=causal, sm_scale=_SCALE) for each in sequences])

    try:
        _each(operation, run)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not any(word in text for word in ("MissingJITCache", "nvcc", "ninja", "JIT compilation")):
            raise
        reason = f"{operation.subject}: no compiled kernel for this GPU is installed, and nvcc is not run by this check"
        raise NotRun(reason, "add flashinfer-jit-cache of the same version to the spec") from error


def natten(operation: Operation) -> None:
    """`na1d(query, key, value, kernel_size, is_causal=, scale=)`, (batch, length, heads, d)."""
    if not getattr(operation.module, "HAS_LIBNATTEN", True):
        raise NotRun(f"{operation.subject}: it was built without libnatten, and has no kernels of its own")
    attend, window = operation.function("na1d"), operation.size("window")

    def run(one: _Inputs, causal: bool) -> Any:  # noqa: FBT001 (a case of the operator)
        return attend(one.query, one.key, one.value, kernel_size=window, is_causal=causal, scale=_SCALE)

    _each(operation, run, window)


def _each(operation: Operation, attend: Callable[[_Inputs, bool], Any], window: int | None = None) -> None:
    for type_name, dtype in operation.types("bf16", "fp16").items():
        for size in _SIZES:
            for causal in (False, True):
                allowed = _allowed(operation, causal=causal, window=window)
                for one in _inputs(operation, dtype, size, allowed):
                    kind = "causal" if causal else "not causal"
                    name = f"{one.name} in {type_name}, {kind}, head size {size}, length {one.query.shape[1]}"
                    found = attend(one, causal)
                    if one.bound_k:
                        bound = limit(f"extensions.attention.{type_name}", one.bound_k)
                        operation.close(name, found, one.right, one.scale, bound)
                    else:
                        operation.equal(name, found, one.right)


def _allowed(operation: Operation, *, causal: bool, window: int | None) -> Any:
    """(length, length): which keys a query meets. A window is moved inwards at the ends, a causal one is cut."""
    length = operation.size("length")
    position = operation.torch.arange(length, device=operation.device)
    behind = position[:, None] - position[None, :]
    if window is None:
        return behind >= 0 if causal else behind < length
    if causal:
        return (behind >= 0) & (behind < window)
    start = (position - window // 2).clamp(0, length - window)[:, None]
    return (position >= start) & (position < start + window)


def _inputs(operation: Operation, dtype: str, size: int, allowed: Any) -> Iterator[_Inputs]:
    torch, length = operation.torch, operation.size("length")
    shape = (operation.size("batch"), length, operation.size("heads"), size)
    key = 2 * operation.integers(0, 1, *shape, dtype=dtype, seed=1) - 1
    value = operation.integers(1, 255, *shape, dtype=dtype, seed=2)
    value = value * (2 * operation.integers(0, 1, *shape, dtype=dtype, seed=3) - 1)
    # Any of the keys that each query meets.
    chances = operation.normal(length, length, seed=4).masked_fill(~allowed, -math.inf)
    chosen = chances.argmax(1)
    right = value[:, chosen].double()
    yield _Inputs("chosen values", _SHARP * key[:, chosen], key, value, right, right.abs(), 0)
    query, key, value = (operation.normal(*shape, dtype=dtype, seed=seed) for seed in (5, 6, 7))
    results = [_formula(torch, *each, allowed) for each in zip(query.unbind(), key.unbind(), value.unbind())]
    right, scale = (torch.stack(each) for each in zip(*results))
    largest = float(_SCALE * query.double().norm(dim=-1).max() * key.double().norm(dim=-1).max())
    bound_k = math.ceil(3 * length + 2 * (size + 4) * largest + 16)
    yield _Inputs("attention", query, key, value, right, scale, bound_k)


def _formula(torch: Any, query: Any, key: Any, value: Any, allowed: Any) -> tuple[Any, Any]:
    """One sequence in fp64: the result, and the sum of its terms without their signs."""
    heads, keys, values = (each.double().transpose(0, 1) for each in (query, key, value))
    scores = (heads @ keys.transpose(1, 2) * _SCALE).masked_fill(~allowed, -math.inf)
    weights = torch.softmax(scores, -1)
    return (weights @ values).transpose(0, 1), (weights @ values.abs()).transpose(0, 1)
