"""Operators on graphs and points: torch-scatter, torch-sparse, pyg-lib.

Integers and powers of two are exact in fp32 in any order of summation.

Sources: the sdists of torch_scatter 2.1.2, torch_sparse 0.6.18; pyg-lib,
csrc/ops/cuda/matmul_kernel.cu (TF32 on GPUs). Read 2026-11.
"""

from __future__ import annotations

from typing import Any

from envspec.conformance.bounds import limit
from envspec.conformance.extensions.operation import KINDS, Operation

_CHANNELS = 33


def _edges(operation: Operation, seed: int) -> tuple[Any, int]:
    """A node for each edge, in no order, and how many nodes there are: each has an edge."""
    torch, nodes, edges = operation.torch, operation.size("nodes"), operation.size("edges")
    every = torch.arange(nodes, device=operation.device)
    others = operation.integers(0, nodes - 1, edges - nodes, dtype="int64", seed=seed)
    return torch.cat([others, every]), nodes


def scatter(operation: Operation) -> None:
    """`scatter(src, index, dim, dim_size=, reduce=)` and `scatter_max`, which also returns where the largest are.

    `segment_csr(src, indptr, reduce=)`: group i is the rows from indptr[i] to indptr[i + 1].
    """
    torch = operation.torch
    index, nodes = _edges(operation, 41)
    values = operation.integers(-99, 99, len(index), _CHANNELS, seed=42)
    sums = torch.zeros(nodes, _CHANNELS, dtype=torch.float64, device=operation.device)
    counts = torch.bincount(index, minlength=nodes)
    right = {"sum": sums.index_add(0, index, values.double())}
    # One division of integers: fp64 and fp32 round the same quotient once.
    right["mean"] = (right["sum"].float() / counts[:, None].float()).double()
    reduce = operation.function("scatter")
    for name, expected in right.items():
        operation.equal(f"scatter, {name} of integers", reduce(values, index, 0, dim_size=nodes, reduce=name), expected)
    found, where = operation.function("scatter_max")(values, index, 0, dim_size=nodes)
    rows = index[:, None].expand_as(values)
    largest = torch.full_like(sums, -100.0).scatter_reduce(0, rows, values.double(), "amax")
    operation.equal("scatter_max of integers", found, largest)
    operation.equal("scatter_max's positions", values.gather(0, where.clamp(0, len(index) - 1)), largest)
    operation.equal("scatter_max's groups", rows.gather(0, where.clamp(0, len(index) - 1)), _rows(torch, where))
    # The sums above are torch's own kernels in this package; those of sorted groups are not.
    reduce, ends = operation.function("segment_csr"), torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    index = index.sort().values
    expected = torch.zeros_like(sums).index_add(0, index, values.double())
    operation.equal("segment_csr, sum of integers", reduce(values, ends, reduce="sum"), expected)
    values = operation.normal(len(index), _CHANNELS, seed=43)
    bound = limit("extensions.scatter.fp32", int(counts.max()))
    expected = torch.zeros_like(sums).index_add(0, index, values.double())
    scale = torch.zeros_like(sums).index_add(0, index, values.double().abs())
    operation.close("segment_csr, sum", reduce(values, ends, reduce="sum"), expected, scale, bound)


def _rows(torch: Any, like: Any) -> Any:
    return torch.arange(like.shape[0], device=like.device)[:, None].expand_as(like)


def sparse(operation: Operation) -> None:
    """`matmul(SparseTensor, dense)` and `spmm(index, value, m, n, dense)`."""
    torch = operation.torch
    row, nodes = _edges(operation, 51)
    column = operation.integers(0, nodes - 1, len(row), dtype="int64", seed=52)
    tensor, product = operation.function("SparseTensor"), operation.function("matmul")
    spmm = operation.function("spmm")
    bound = limit("extensions.scatter.fp32", int(torch.bincount(row).max()) + 1)
    for kind in KINDS:
        value = operation.drawn(kind, 9, len(row), seed=53)
        dense = operation.drawn(kind, 9, nodes, _CHANNELS, seed=54)
        zeros = torch.zeros(nodes, _CHANNELS, dtype=torch.float64, device=operation.device)
        terms = value.double()[:, None] * dense.double()[column]
        right, scale = zeros.index_add(0, row, terms), zeros.index_add(0, row, terms.abs())
        matrix = tensor(row=row, col=column, value=value, sparse_sizes=(nodes, nodes))
        results = {
            "matmul": product(matrix, dense),
            "spmm": spmm(torch.stack([row, column]), value, nodes, nodes, dense),
        }
        for name, found in results.items():
            operation.compare(kind, name, found, right, scale, bound)


def grouped(operation: Operation) -> None:
    """`segment_matmul(inputs, ptr, other)`: rows from ptr[i] to ptr[i + 1], times other[i]."""
    torch, rows, width, outputs = operation.torch, operation.size("rows"), operation.size("width"), 130
    multiply = operation.function("segment_matmul", operation.function("ops"))
    ends = sorted(operation.integers(1, rows - 1, 6, dtype="int64", seed=81).tolist())
    pointer = torch.tensor([0, *ends, rows], device=operation.device)
    parts = (pointer[1:] - pointer[:-1]).tolist()
    mode = "tf32" if operation.device == "cuda" else "fp32"
    bound = limit(f"extensions.grouped.{mode}", width)
    for kind in KINDS:
        left = operation.drawn(kind, 1, rows, width, seed=82)
        right = operation.drawn(kind, 1, len(parts), width, outputs, seed=83)
        found = multiply(left, pointer, right)
        each = list(zip(left.double().split(parts), right.double().unbind()))
        expected = torch.cat([one @ other for one, other in each])
        scale = torch.cat([one.abs() @ other.abs() for one, other in each])
        operation.compare(kind, "segment_matmul", found, expected, scale, bound)
