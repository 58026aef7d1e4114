"""Every size, seed and bound of the suite, each bound with where it comes from.

u is the unit roundoff of a type: 2^-24 for fp32, 2^-11 for TF32 and fp16, 2^-8 for bf16. E is |C-R|F / |R|F against the
product in fp64 of the inputs as they were rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Callable

U = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}


class Relation(Enum):
    """How a value has to lie to its bound."""

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
        """Whether `value` keeps the bound; what is no number does not."""
        return value <= self.value if self.relation is Relation.AT_MOST else value >= self.value


@dataclass(frozen=True)
class Bound:
    """A row of the table. at: the bound for a length K of the sum; most do not depend on it."""

    formula: str
    at: Callable[[int], float]
    source: str
    relation: Relation = Relation.AT_MOST


def limit(name: str, k: int = 0) -> Limit:
    """The bound of a row, for sums over `k` products."""
    bound = BOUNDS[name]
    return Limit(bound.at(k), bound.formula, bound.source, bound.relation)


_CPU = "measured on two CPU cores, torch 2.4 to 2.15, 2026-11"
_TWO = "measured on two CPU cores, torch 2.6 and 2.9, 3 seeds, 2026-11"
_EMULATED = "emulated on the CPU, 2026-11; to be calibrated on a GPU"

#: Numbers that are no bounds.
SIZES: Mapping[str, int] = {
    # Processes that import ahead of their check's turn, each with torch in the host's memory (0.5 GB). An import keeps
    # one core busy, so that one of four leaves the check that runs its time; a third process would gain nothing.
    "ahead.processes": 2,
    "ahead.cores": 4,
    # For each of them: where memory is short, the system ends whichever process it likes.
    "ahead.memory_bytes": 6_000_000_000,
    # |r| <= 256 is exact in bf16, whatever the order of the summation.
    "matmul.integer_k": 1024,
    "matmul.integer_side": 512,
    "matmul.largest_k": 16384,
    # Rows and columns of what is held against fp64. fp16 is slow on CPUs that have no units for it.
    "matmul.side.cpu": 128,
    "matmul.side.cuda": 2048,
    "matmul.speed_side.cpu": 512,
    "matmul.speed_side.cuda": 8192,
    "amp.parameters": 10_000_000,
    "amp.steps": 60,
    "amp.batch": 32,
    "amp.width.cpu": 256,
    "amp.width.cuda": 2048,
    "amp.vocabulary": 320_000,
    "amp.scale": 2**12,
    "amp.growth_interval": 20,
    # The largest of the first gradients is some 0.03, and fp16 ends at 65504.
    "amp.scale_too_large": 2**24,
    "amp.skipped": 12,
    "amp.speed_batch.cpu": 32,
    "amp.speed_batch.cuda": 8192,
    "transformer.layers": 2,
    "transformer.attention_length.cpu": 128,
    "transformer.attention_length.cuda": 512,
    "transformer.width.cpu": 256,
    "transformer.width.cuda": 1024,
    "transformer.batch.cpu": 2,
    "transformer.batch.cuda": 16,
    "transformer.length.cpu": 64,
    "transformer.length.cuda": 512,
    # A rank that waits longer than this for another one, in seconds, says so.
    "distributed.timeout_s": 40,
    # For every node to come: each has its own start, and its own checks before.
    "distributed.join_s": 60,
    "distributed.steps": 3,
    "distributed.inputs": 64,
    "distributed.width": 256,
    "distributed.outputs": 8,
    # Rows of a rank at every step, and integers of a rank in every collective: both no powers of two.
    "distributed.batch": 30,
    "distributed.integers": 10_007,
    # No sum of the integers goes beyond what bf16 holds exactly.
    "distributed.largest_sum": 256,
    # On the CPU, where nothing else is asked for: as few as can differ.
    "distributed.ranks.cpu": 2,
    # Small, so that the gradient of a small model goes in several.
    "distributed.bucket_bytes": 100_000,
    # Of the buffer whose bandwidth is measured.
    "distributed.bytes.cuda": 2**28,
    "distributed.bytes.cpu": 2**23,
    "distributed.repeats": 3,
    # Weight, gradient and AdamW's two moments, 4 bytes each.
    "memory.training_bytes": 16,
    # bf16 weights to run; to tune, bf16 weights and gradients, fp32 weights and two moments.
    "memory.run_bytes": 2,
    "memory.tune_bytes": 16,
    # On a GPU 537 MB are held: so much that cuBLAS's workspace of 32 MiB, which torch's allocator counts, is little.
    "memory.layers": 8,
    "memory.side.cpu": 1024,
    "memory.side.cuda": 2048,
    "loader.pictures": 768,
    "loader.batch": 32,
    "loader.workers.cuda": 4,
    "loader.workers.cpu": 2,
    "loader.steps.cuda": 200,
    "loader.steps.cpu": 8,
    "loader.width.cuda": 192,
    "loader.width.cpu": 4,
    # Batches of 64 pictures of 224 x 224 in fp32: 39 MB each, 308 MB in all.
    "loader.shm_workers": 4,
    "loader.shm_prefetch": 2,
    "loader.shm_batch": 64,
    "pyg.classes": 4,
    "pyg.nodes": 400,
    "pyg.epochs": 40,
    "widedeep.rows": 2048,
    "widedeep.epochs": 4,
}

BOUNDS: Mapping[str, Bound] = {
    "matmul.fp32": Bound(
        "4 sqrt(K) u, u = 2^-24",
        lambda k: 4 * math.sqrt(k) * U["fp32"],
        f"2.4 to 5.1 u {_CPU}; about 45 u at K = 4096 from pytorch#196494",
    ),
    "matmul.tf32": Bound("4 u, u = 2^-11", lambda _: 4 * U["tf32"], f"0.60 u rounded, 1.58 u truncated: {_EMULATED}"),
    "matmul.fp32_not_tf32": Bound(
        "1e-4", lambda _: 1e-4, "fp32 with a larger error computes in TF32: derived from the two bounds above"
    ),
    "matmul.fp16": Bound("1.5 u, u = 2^-11", lambda _: 1.5 * U["fp16"], f"0.42 u, split-K 0.81 u: {_EMULATED}"),
    "matmul.bf16": Bound("1.5 u, u = 2^-8", lambda _: 1.5 * U["bf16"], f"0.42 u, split-K 0.81 u: {_EMULATED}"),
    "matmul.fp8": Bound(
        "6e-3 + 2e-6 K",
        lambda k: 6e-3 + 2e-6 * k,
        f"7.7e-4, 3.1e-3, 1.3e-2 at K = 1024, 4096, 16384 with a 14-bit accumulator: {_EMULATED}",
    ),
    # Times |A||B|, element by element: finds one element that is zero, which E does not.
    "matmul.element.fp32": Bound("u + K 2^-24, u = 2^-24", lambda k: U["fp32"] + k * 2.0**-24, "Higham's form"),
    "matmul.element.tf32": Bound("3 u + K 2^-24, u = 2^-11", lambda k: 3 * U["tf32"] + k * 2.0**-24, "Higham's form"),
    "matmul.element.fp16": Bound("u + K 2^-24, u = 2^-11", lambda k: U["fp16"] + k * 2.0**-24, "Higham's form"),
    "matmul.element.bf16": Bound("u + K 2^-24, u = 2^-8", lambda k: U["bf16"] + k * 2.0**-24, "Higham's form"),
    "matmul.convolution": Bound(
        "1e-4",
        lambda _: 1e-4,
        "2e-7 on the CPU; Winograd's transforms lose some, TF32 has 3e-4: to be calibrated on a GPU",
    ),
    "amp.gradient.bf16": Bound("4 u, u = 2^-8", lambda _: 4 * U["bf16"], f"<= 3.8e-3 over 12 seeds, {_CPU}"),
    "amp.gradient.fp16": Bound("4 u, u = 2^-11", lambda _: 4 * U["fp16"], f"<= 4.5e-4 over 12 seeds, {_CPU}"),
    "amp.loss": Bound("2 %", lambda _: 0.02, f"<= 3.4e-3 (bf16), 3.7e-4 (fp16) over 60 steps and 12 seeds, {_CPU}"),
    "amp.learns": Bound(
        "0.6 of the first", lambda _: 0.6, "0.35 to 0.39 over 3 seeds on two CPU cores, torch 2.9, 2026-11"
    ),
    "transformer.attention.fp32": Bound(
        "1e-4", lambda _: 1e-4, f"4.4e-7, {_TWO}; TF32 has some 5e-4: to be calibrated on a GPU"
    ),
    "transformer.attention.bf16": Bound("4 u, u = 2^-8", lambda _: 4 * U["bf16"], f"0.89 u, {_TWO}"),
    "transformer.attention.fp16": Bound("4 u, u = 2^-11", lambda _: 4 * U["fp16"], f"0.89 u, {_TWO}"),
    "transformer.output.fp32": Bound("1e-4", lambda _: 1e-4, f"1.3e-7, {_TWO}; TF32 has some 2e-4"),
    "transformer.output.bf16": Bound("4 u, u = 2^-8", lambda _: 4 * U["bf16"], f"0.36 u, {_TWO}"),
    "transformer.output.fp16": Bound("4 u, u = 2^-11", lambda _: 4 * U["fp16"], f"0.36 u, {_TWO}"),
    "transformer.gradient.fp32": Bound("1e-4", lambda _: 1e-4, f"3.5e-7, {_TWO}; TF32 has some 5e-4"),
    "transformer.gradient.bf16": Bound("4 u, u = 2^-8", lambda _: 4 * U["bf16"], f"1.13 u, {_TWO}"),
    "transformer.gradient.fp16": Bound("4 u, u = 2^-11", lambda _: 4 * U["fp16"], f"1.12 u, {_TWO}"),
    "transformer.compile": Bound("1e-5", lambda _: 1e-5, f"2.5e-7, {_TWO}"),
    "distributed.gradient": Bound("1e-5", lambda _: 1e-5, f"1.2e-7 on gloo, {_CPU}"),
    "distributed.norm": Bound(
        "1e-5",
        lambda _: 1e-5,
        "FSDP2 of torch 2.7 and 2.8 doubles it on gloo, and no cosine shows that: pytorch#162338",
    ),
    "memory.allocated": Bound(
        "1.25",
        lambda _: 1.25,
        "1.16 derived: three tensors of AdamW's step and cuBLAS's workspace are extra; to be calibrated on a GPU",
    ),
    "loader.kept_up": Bound("90 %", lambda _: 90.0, "a guess, to be calibrated on a GPU", Relation.AT_LEAST),
    # Without the edges 0.25 to 0.44, and a loss of 0.62 to 0.70 of the first.
    "pyg.accuracy": Bound("0.95", lambda _: 0.95, f">= 0.997 over 12 seeds, {_CPU}", Relation.AT_LEAST),
    "pyg.loss": Bound("0.4", lambda _: 0.4, f"<= 0.18 over 12 seeds, {_CPU}"),
    "widedeep.gain": Bound("0.35", lambda _: 0.35, f">= 0.45 over 5 seeds, {_CPU}", Relation.AT_LEAST),
    "widedeep.loss": Bound("0.5", lambda _: 0.5, f"<= 0.16 over 5 seeds, {_CPU}"),
}
