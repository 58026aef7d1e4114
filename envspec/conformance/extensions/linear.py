"""Layers, quantised weights and optimizers: transformer-engine, bitsandbytes, deepspeed.

Sources: transformer_engine 2.20, pytorch/module/linear.py; bitsandbytes 0.50.2, functional.py and backends; deepspeed
0.19.8, ops/adam and op_builder/builder.py. Read 2026-11.
"""

from __future__ import annotations

import importlib
from typing import Any

from envspec.conformance.bounds import limit
from envspec.conformance.extensions.operation import KINDS, Operation
from envspec.conformance.numerics import TYPES, has_bf16
from envspec.conformance.results import NotRun

#: Rows of a weight matrix.
_OUTPUTS = 768
_BLOCK = 64


def transformer_engine(operation: Operation) -> None:
    """`Linear(in, out, bias=, params_dtype=, device=)`, forward; cuBLAS through Transformer Engine's own kernels."""
    torch, rows, width = operation.torch, operation.size("rows") // 16 * 16, operation.size("width")
    name = "bf16" if has_bf16(torch, operation.device) else "fp16"
    dtype = TYPES[name]
    layer = operation.function("Linear")(
        width, _OUTPUTS, bias=True, params_dtype=getattr(torch, dtype), device=operation.device
    )
    bound = limit(f"extensions.linear.{name}", width + 1)
    for kind in KINDS:
        x = operation.drawn(kind, 1, rows, width, dtype=dtype, seed=91)
        weight = operation.drawn(kind, 1, _OUTPUTS, width, dtype=dtype, seed=92)
        bias = operation.drawn(kind, 1, _OUTPUTS, dtype=dtype, seed=93)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
            found = layer(x)
        right = x.double() @ weight.double().t() + bias.double()
        scale = x.double().abs() @ weight.double().abs().t() + bias.double().abs()
        operation.compare(kind, f"Linear in {name}", found, right, scale, bound)


def bitsandbytes(operation: Operation) -> None:
    """`functional.int8_linear_matmul(A, B)`, A @ B.t() in int32; `quantize_4bit` and `dequantize_4bit`."""
    functional, torch = operation.function("functional"), operation.torch
    rows, width = operation.size("rows") // 16 * 16, operation.size("width")
    left = operation.integers(-127, 127, rows, width, dtype="int8", seed=101)
    right = operation.integers(-127, 127, _OUTPUTS, width, dtype="int8", seed=102)
    found = operation.function("int8_linear_matmul", functional)(left, right)
    operation.equal("int8 matmul", found, left.double() @ right.double().t())
    quantise = operation.function("quantize_4bit", functional)
    restore = operation.function("dequantize_4bit", functional)
    for kind in ("nf4", "fp4"):
        for name, dtype in TYPES.items():
            values = operation.normal(rows, width, dtype=dtype, seed=103)
            packed, state = quantise(values, blocksize=_BLOCK, quant_type=kind)
            found = restore(packed, state)
            # Each value becomes the nearest of 16 codes, in units of its block's largest.
            blocks = values.double().view(-1, _BLOCK)
            largest = blocks.abs().amax(1, keepdim=True)
            distances = (blocks / largest)[..., None] - state.code.double().to(values.device)
            nearest = distances.abs().amin(-1) * largest
            off = (found.double().view(-1, _BLOCK) - blocks).abs() - nearest
            bound = limit(f"extensions.quantised.{name}", 8)
            zeros, scale = torch.zeros_like(off), largest.expand_as(off)
            operation.close(f"{kind} there and back in {name}", off.clamp(min=0), zeros, scale, bound)
        # Codes themselves, in units of a power of two, come back unchanged.
        codes = state.code.float().to(operation.device)
        drawn = codes[operation.integers(0, 15, rows * width // _BLOCK, _BLOCK, dtype="int64", seed=104)]
        drawn[:, 0] = 1
        values = (drawn * 2.0 ** operation.integers(-3, 3, len(drawn), 1, seed=105)).view(rows, width)
        operation.equal(
            f"{kind}'s codes there and back", restore(*quantise(values, blocksize=_BLOCK, quant_type=kind)), values
        )


def deepspeed(operation: Operation) -> None:
    """`FusedAdam` on GPUs, `DeepSpeedCPUAdam` on the CPU: steps of AdamW in fp32, if the operator is compiled."""
    builder, name = {"cuda": ("fused_adam", "FusedAdam"), "cpu": ("cpu_adam", "DeepSpeedCPUAdam")}[operation.device]
    installed: Any = importlib.import_module("deepspeed.git_version_info")
    if not getattr(installed, "installed_ops", {}).get(builder):
        raise NotRun(
            f"{operation.subject}: {builder} is not compiled; it would be at its first use, which needs a compiler",
            f"build deepspeed with DS_BUILD_{builder.upper()}=1 to have it in its wheel",
        )
    _adam(operation, operation.function(name, importlib.import_module("deepspeed.ops.adam")))


def _adam(operation: Operation, optimizer: Any) -> None:
    """AdamW by its formula in fp64; every operation of a step rounds its result to fp32 once."""
    torch, count, steps = operation.torch, operation.size("parameters"), operation.size("steps")
    rate, betas, eps, decay = 2.0**-7, (0.875, 0.984375), 2.0**-20, 2.0**-5
    parameter = torch.nn.Parameter(operation.normal(count, seed=121))
    right = parameter.detach().double()
    scale = right.abs()
    first = second = size = torch.zeros_like(right)
    made = optimizer([parameter], lr=rate, betas=betas, eps=eps, weight_decay=decay)
    for step in range(1, steps + 1):
        parameter.grad = operation.normal(count, seed=121 + step)
        made.step()
        gradient = parameter.grad.double()
        first = betas[0] * first + (1 - betas[0]) * gradient
        size = betas[0] * size + (1 - betas[0]) * gradient.abs()
        second = betas[1] * second + (1 - betas[1]) * gradient.square()
        divisor = (second / (1 - betas[1] ** step)).sqrt() + eps
        scale = scale + rate * (size / (1 - betas[0] ** step) / divisor + decay * right.abs())
        right = right - rate * (first / (1 - betas[0] ** step) / divisor + decay * right)
    bound = limit("extensions.adam.fp32", 16 * steps)
    operation.close(f"{steps} steps of AdamW in fp32", parameter.detach(), right, scale, bound)
