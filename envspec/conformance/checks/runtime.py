"""What CUDA does while a program runs: compile a kernel by NVRTC, capture work in a graph and replay it."""

from __future__ import annotations

import math
import operator
from typing import Any

from envspec.conformance.bounds import SIZES
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import case, deterministic
from envspec.conformance.results import NotRun

_REPLAYS = 3


def check(context: CheckContext) -> None:
    """Raises NotRun on the CPU, which has neither."""
    torch = context.load("torch")
    if not context.request.cuda:
        raise NotRun("no GPU is requested")
    deterministic(torch)
    with context.phase("NVRTC"), case(torch, context, "a kernel compiled by NVRTC"):
        _nvrtc(torch, context)
    with context.phase("a CUDA graph"), case(torch, context, "a CUDA graph"):
        _graph(torch, context)


def _nvrtc(torch: Any, context: CheckContext) -> None:
    """torch compiles `gcd` at its first call.

    Source: torch, aten/src/ATen/native/cuda/GcdLcmKernel.cu, torch 2.4 to 2.9; CUDA 12's wheels have a second library
    for it, libnvrtc-builtins, which is opened by its name.
    """
    count = SIZES["runtime.integers"]
    left = list(range(1, count + 1))
    right = [each * each % 5040 for each in left]
    device = context.device
    found = torch.gcd(torch.tensor(left, device=device), torch.tensor(right, device=device)).tolist()
    wrong = sum(map(operator.ne, found, map(math.gcd, left, right)))
    detail = f"{wrong} of {count} greatest common divisors are wrong"
    context.exact("a kernel compiled by NVRTC", ok=not wrong, detail=detail)


def _graph(torch: Any, context: CheckContext) -> None:
    """A block whose input is replaced before each replay; every result is that of the same calls without a graph."""
    width, rows = SIZES["runtime.width"], SIZES["runtime.rows"]
    torch.manual_seed(context.request.seed)
    nn = torch.nn
    layers = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
    block = nn.Sequential(*layers).to(context.device)
    numbers = torch.Generator().manual_seed(context.request.seed)
    batches = [torch.randn(rows, width, generator=numbers).to(context.device) for _ in range(_REPLAYS + 1)]
    given = batches[0].clone()
    with torch.no_grad():
        eager = [block(each) for each in batches]
        # Libraries are set up before the capture, in a stream of their own: torch's own advice for graphs.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                block(given)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = block(given)
        wrong = []
        for number, (batch, right) in enumerate(zip(batches, eager)):
            given.copy_(batch)
            graph.replay()
            if different := int((result != right).sum()):
                wrong.append(f"replay {number + 1}: {different} of {right.numel()} elements")
    detail = "; ".join(wrong) or f"{len(batches)} replays, {rows} x {width} each, equal bit by bit"
    context.exact("a CUDA graph's replay equals eager", ok=not wrong, detail=detail)
