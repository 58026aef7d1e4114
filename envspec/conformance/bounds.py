"""Every size, seed and bound of the suite; each bound has its source.

u is the unit roundoff of a type: 2^-24 for fp32, 2^-11 for TF32 and fp16, 2^-8 for bf16. E is |C-R|F / |R|F, with R the
product in fp64 of the rounded inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Callable

_BITS = {"fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8}
U = {name: 2.0**-bits for name, bits in _BITS.items()}


class Relation(Enum):
    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True)
class Limit:
    """A bound for one case."""

    value: float
    formula: str
    source: str
    relation: Relation = Relation.AT_MOST

    def holds(self, value: float) -> bool:
        """False for NaN."""
        if self.relation is Relation.AT_MOST:
            return value <= self.value
        return value >= self.value


#: The limit for sums over K products; most do not depend on it.
Bound = Callable[[int], Limit]


def limit(name: str, k: int = 0) -> Limit:
    """The bound of that name, for sums over `k` products."""
    return BOUNDS[name](k)


def _constant(formula: str, value: float, source: str, relation: Relation = Relation.AT_MOST) -> Bound:
    return lambda _: Limit(value, formula, source, relation)


def _roundoffs(count: float, dtype: str, source: str) -> Bound:
    return _constant(f"{count:g} u, u = 2^-{_BITS[dtype]}", count * U[dtype], source)


def _by_element(count: int, dtype: str, source: str = "Higham's form") -> Bound:
    """Times |A||B|, for each element: finds a single element that is zero, which E does not.

    count: of roundings to `dtype` on the way of each term to the result. k: of roundings to fp32.
    """
    formula = f"{'u' if count == 1 else f'{count} u'} + K 2^-24, u = 2^-{_BITS[dtype]}"
    return lambda k: Limit(count * U[dtype] + k * 2.0**-24, formula, source)


_CPU = "measured on two CPU cores, torch 2.4 to 2.15, 2026-11"
_TWO = "measured on two CPU cores, torch 2.6 and 2.9, 3 seeds, 2026-11"
_DECODED = "measured on two CPU cores, torch 2.6 and 2.9, 8 seeds, 2026-11"
_EMULATED = "emulated on the CPU, 2026-11"
#: docs/measurements/receipts/h200-torch-2.11.json: one GPU, one seed.
_H200 = "on one H200, torch 2.11, 2026-11"

_DERIVED = "derived; to be calibrated on a GPU"
_ATTENTION_K = (
    f"{_DERIVED}: K = 3 L + 2 (d + 4) S + 16 for L keys and d products of a score, S = scale max|q| max|k|: sums over "
    "keys, exponents, and weights that are no normal numbers"
)
#: Operator -> how often its result is rounded to its type, and its K.
_EXTENSION_K = {
    "scan": (1, "K by the same recursion over errors: 4.4 |dt A| + 6 for a decay, 4 for a step, N + 2 for the result"),
    "convolution": (1, "K = 1.1 (W + 1) + 6 + 2 max|z| for W taps: products, and SiLU of z"),
    "scatter": (1, "K = the most terms of a sum"),
    "linear": (2, "K products, and a bias that is added to the rounded product"),
    "quantised": (1, "K = 8 for the block's scale, the quotient and the product, beyond the nearest code's own error"),
    "adam": (1, "K = 16 for each step: moments, corrections, a root, quotients, the decay and the update"),
}
#: Sizes that depend on the device: on a GPU, on the CPU.
_OF_DEVICES: Mapping[str, tuple[int, int]] = {
    # Of a speed's measurement. On the CPU three calls are enough if they take longer.
    "speed.milliseconds": (1000, 100),
    # Rows and columns of products compared with fp64. fp16 is slow on CPUs without units for it.
    "matmul.side": (2048, 128),
    "matmul.speed_side": (8192, 512),
    "amp.width": (2048, 256),
    "amp.speed_batch": (8192, 32),
    "transformer.attention_length": (512, 128),
    "transformer.width": (1024, 256),
    "transformer.batch": (16, 2),
    "transformer.length": (512, 64),
    "inference.speed_width": (1024, 128),
    "inference.batch": (8, 2),
    "inference.length": (512, 64),
    # Of each copy.
    "bandwidth.bytes": (2**28, 2**24),
    # The buffer for bandwidth.
    "distributed.bytes": (2**28, 2**23),
    "distributed.blocks": (5, 3),
    # Milliseconds of all blocks together; a block has one call at least.
    "distributed.speed_ms": (1200, 0),
    # Of each rank's times.
    "distributed.product_side": (8192, 128),
    "distributed.rank_bytes.large": (2**28, 2**20),
    "distributed.rank_bytes.small": (2**20, 2**16),
    "memory.side": (2048, 1024),
    "memory.block_bytes": (2**28, 2**24),
    # The side of square products that fill every multiprocessor, and the seconds of all types together.
    "sustained.side": (8192, 512),
    "sustained.seconds": (30, 0),
    "loader.workers": (4, 2),
    "loader.steps": (200, 8),
    # Of training from the loader, at least: NVML's sample period is up to a second. On the CPU one pass is enough.
    "loader.milliseconds": (2000, 0),
    "loader.width": (192, 4),
    # Rows of blocks for GPUs, so that every multiprocessor (148 of a B200) has several; odd lengths have partial tiles.
    "extensions.length": (1021, 131),
    "extensions.batch": (4, 1),
    "extensions.heads": (16, 2),
    # More than one chunk of 2048.
    "extensions.scan_length": (2603, 131),
    "extensions.channels": (1024, 64),
    "extensions.edges": (400_003, 20_011),
    "extensions.nodes": (10_007, 503),
    "extensions.rows": (2051, 67),
    "extensions.parameters": (4_000_037, 40_037),
}
#: Everything numeric that is no bound.
SIZES: Mapping[str, int] = {
    **{f"{name}.cuda": size for name, (size, _) in _OF_DEVICES.items()},
    **{f"{name}.cpu": size for name, (_, size) in _OF_DEVICES.items()},
    # Processes that import before their check's turn, each with torch in host memory (0.5 GB). An import uses one core:
    # one of four leaves enough to the check that runs; a third process gained nothing.
    "preimports.processes": 2,
    "preimports.cores": 4,
    # For each of them: if memory runs out, the system may kill any process.
    "preimports.memory_bytes": 6_000_000_000,
    # Seconds for a library of the driver to report all GPUs.
    "driver.limit_s": 60,
    "driver.limit_s_per_gpu": 5,
    # Of each copy between two GPUs.
    "device.copy_bytes": 2**26,
    "speed.blocks": 10,
    # |r| <= 256 is exact in bf16 in any order of summation.
    "matmul.integer_k": 1024,
    "matmul.integer_side": 512,
    "matmul.largest_k": 16384,
    "amp.parameters": 10_000_000,
    "amp.steps": 60,
    "amp.batch": 32,
    "amp.vocabulary": 320_000,
    "amp.scale": 2**12,
    "amp.growth_interval": 20,
    # The largest first gradient is about 0.03, and fp16 ends at 65504.
    "amp.scale_too_large": 2**24,
    "amp.skipped": 12,
    "transformer.layers": 2,
    "inference.width": 128,
    "inference.tokens": 32,
    "runtime.integers": 4096,
    "runtime.width": 256,
    "runtime.rows": 96,
    # Seconds a rank waits for another one.
    "distributed.timeout_s": 40,
    # Seconds for every node to join: they start at different times, after their own earlier checks.
    "distributed.join_s": 60,
    "distributed.steps": 3,
    "distributed.inputs": 64,
    "distributed.width": 256,
    "distributed.outputs": 8,
    # Rows of a rank in a step, and integers of a rank in a collective: no powers of two.
    "distributed.batch": 30,
    "distributed.integers": 10_007,
    # Every sum of the integers is exact in bf16.
    "distributed.largest_sum": 256,
    # Further buffers of integers, besides that for bandwidth: NCCL's algorithm and protocol depend on the size. No
    # power of two: the last part of a ring and the last vector of a thread are partial.
    "distributed.bytes.small": 2**19 + 4052,
    "distributed.bytes.medium": 2**23,
    # On the CPU by default: the fewest that can differ.
    "distributed.ranks.cpu": 2,
    # Small, so that the gradient of a small model is sent in several.
    "distributed.bucket_bytes": 100_000,
    # With fewer ranks none stands out.
    "distributed.fewest_ranks": 4,
    # Weight, gradient and AdamW's two moments, 4 bytes each.
    "memory.training_bytes": 16,
    # bf16 weights to run; to tune, bf16 weights and gradients, fp32 weights and two moments.
    "memory.run_bytes": 2,
    "memory.tune_bytes": 16,
    # 537 MB on a GPU: cuBLAS's workspace of 32 MiB, which torch's allocator counts, is small beside it.
    "memory.layers": 8,
    # Of the free memory of a GPU, and of each block; the patterns of a block are made in a further one.
    "memory.pattern_percent": 90,
    "memory.blocks.cpu": 3,
    # Of one type, before the next one has its turn in a burn: all of them run on a card that is as warm.
    "sustained.turn_s": 1,
    "loader.pictures": 768,
    "loader.batch": 32,
    # Batches of 64 pictures of 224 x 224 in fp32: 39 MB each, 308 MB in all.
    "loader.shm_workers": 4,
    "loader.shm_prefetch": 2,
    "loader.shm_batch": 64,
    # Seconds for one extension on one device: its import, its operator and the same in plain torch.
    "extensions.case_s": 90,
    "extensions.window": 63,
    "extensions.scan_states": 16,
    # 127^2 K < 2^24: exact as int32, and in fp32.
    "extensions.width": 1024,
    "extensions.steps": 3,
    "pyg.classes": 4,
    "pyg.nodes": 400,
    "pyg.epochs": 40,
    "widedeep.rows": 2048,
    "widedeep.epochs": 4,
}

BOUNDS: Mapping[str, Bound] = {
    "matmul.fp32": lambda k: Limit(
        4 * math.sqrt(k) * U["fp32"],
        "4 sqrt(K) u, u = 2^-24",
        f"2.4 to 5.1 u {_CPU}; 0.3 sqrt(K) u {_H200}; about 45 u at K = 4096 from pytorch#196494",
    ),
    "matmul.tf32": _roundoffs(4, "tf32", f"0.61 u {_H200}; 0.60 u rounded, 1.58 u truncated: {_EMULATED}"),
    "matmul.fp32_not_tf32": _constant("1e-4", 1e-4, "a larger error means TF32: derived from the two bounds above"),
    "matmul.fp16": _roundoffs(1.5, "fp16", f"0.43 u {_H200}; 0.42 u, split-K 0.81 u: {_EMULATED}"),
    "matmul.bf16": _roundoffs(1.5, "bf16", f"0.43 u {_H200}; 0.42 u, split-K 0.81 u: {_EMULATED}"),
    "matmul.fp8": lambda k: Limit(
        6e-3 + 2e-6 * k,
        "6e-3 + 2e-6 K",
        f"1.7e-3 at every K {_H200}; 7.7e-4, 3.1e-3, 1.3e-2 at K = 1024, 4096, 16384 with a 14-bit accumulator: "
        f"{_EMULATED}",
    ),
    "matmul.element.fp32": _by_element(1, "fp32"),
    "matmul.element.tf32": _by_element(3, "tf32"),
    "matmul.element.fp16": _by_element(1, "fp16"),
    "matmul.element.bf16": _by_element(1, "bf16"),
    "matmul.convolution": _constant(
        "1e-4", 1e-4, f"4.2e-7 {_H200}; 2e-7 on the CPU; Winograd's transforms are less exact, TF32 has 3e-4"
    ),
    "amp.gradient.bf16": _roundoffs(4, "bf16", f"<= 3.8e-3 over 12 seeds, {_CPU}"),
    "amp.gradient.fp16": _roundoffs(4, "fp16", f"<= 4.5e-4 over 12 seeds, {_CPU}"),
    "amp.loss": _constant("2 %", 0.02, f"<= 3.4e-3 (bf16), 3.7e-4 (fp16) over 60 steps and 12 seeds, {_CPU}"),
    "amp.learns": _constant("0.6 of the first", 0.6, "0.35 to 0.39 over 3 seeds on two CPU cores, torch 2.9, 2026-11"),
    "transformer.attention.fp32": _constant("1e-4", 1e-4, f"4.4e-7, {_TWO}; 7.8e-7 {_H200}; TF32 has some 5e-4"),
    "transformer.attention.bf16": _roundoffs(4, "bf16", f"0.89 u, {_TWO}"),
    "transformer.attention.fp16": _roundoffs(4, "fp16", f"0.89 u, {_TWO}"),
    "transformer.output.fp32": _constant("1e-4", 1e-4, f"1.3e-7, {_TWO}; TF32 has some 2e-4"),
    "transformer.output.bf16": _roundoffs(4, "bf16", f"0.36 u, {_TWO}"),
    "transformer.output.fp16": _roundoffs(4, "fp16", f"0.36 u, {_TWO}"),
    "transformer.gradient.fp32": _constant("1e-4", 1e-4, f"3.5e-7, {_TWO}; TF32 has some 5e-4"),
    "transformer.gradient.bf16": _roundoffs(4, "bf16", f"1.13 u, {_TWO}"),
    "transformer.gradient.fp16": _roundoffs(4, "fp16", f"1.12 u, {_TWO}"),
    "transformer.compile": _constant("1e-5", 1e-5, f"2.5e-7, {_TWO}"),
    # Of the largest error of an element, relative to the largest logit.
    "inference.logits.fp32": _constant("2e-5", 2e-5, f"<= 2.1e-6, {_DECODED}; 1.6e-6 {_H200}; TF32 has some 1e-3"),
    "inference.logits.fp16": _roundoffs(16, "fp16", f"7.2 u, {_DECODED}; 4.7 u {_H200}"),
    "inference.logits.bf16": _roundoffs(12, "bf16", f"4.9 u, {_DECODED}; 3.8 u {_H200}"),
    "distributed.gradient": _constant("1e-5", 1e-5, f"1.2e-7 on gloo, {_CPU}"),
    "distributed.norm": _constant(
        "1e-5", 1e-5, "FSDP2 of torch 2.7 and 2.8 doubles it on gloo, invisible in a cosine: pytorch#162338"
    ),
    # Of extensions: K counts roundings to fp32, at the most of any element. The error of each element is divided by the
    # sum of its terms without their signs.
    **{
        f"extensions.attention.{name}": _by_element(
            2, name, f"weights and result are rounded to {name}; {_ATTENTION_K}"
        )
        for name in ("fp16", "bf16")
    },
    **{
        f"extensions.{what}.{name}": _by_element(count, name, f"{_DERIVED}: {source}")
        for what, (count, source) in _EXTENSION_K.items()
        for name in ("fp32", "fp16", "bf16")
    },
    "extensions.grouped.tf32": _by_element(
        3, "tf32", f"both inputs are rounded or truncated to TF32; {_DERIVED}: K products"
    ),
    "extensions.grouped.fp32": _by_element(1, "fp32", f"{_DERIVED}: K products"),
    "memory.allocated": _constant(
        "1.25",
        1.25,
        f"1.22 {_H200}, and derived: extra are three tensors of AdamW's step, and cuBLAS's workspace for each of two "
        "threads, as the backward pass has its own",
    ),
    "loader.kept_up": _constant("90 %", 90.0, f"a guess, not judged; 90.1 % {_H200}", Relation.AT_LEAST),
    # Without the edges 0.25 to 0.44, and a loss of 0.62 to 0.70 of the first.
    "pyg.accuracy": _constant("0.95", 0.95, f">= 0.997 over 12 seeds, {_CPU}", Relation.AT_LEAST),
    "pyg.loss": _constant("0.4", 0.4, f"<= 0.18 over 12 seeds, {_CPU}"),
    "widedeep.gain": _constant("0.35", 0.35, f">= 0.45 over 5 seeds, {_CPU}", Relation.AT_LEAST),
    "widedeep.loss": _constant("0.5", 0.5, f"<= 0.16 over 5 seeds, {_CPU}"),
}
