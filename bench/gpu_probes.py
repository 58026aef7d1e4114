"""Measurements on a GPU that no check of the suite makes yet: `python bench/gpu_probes.py cuda`. Needs torch alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

torch: Any = importlib.import_module("torch")
_CLOCKS: Final = (
    "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,pcie.link.gen.current,"
    "pcie.link.width.current,pcie.link.gen.max,pcie.link.width.max,ecc.errors.uncorrected.volatile.total"
)


def main(device: str) -> None:
    if device == "cuda":
        copies()
        graphs()
        memory_pattern()
    print("clocks at the end:", clocks(device))


def copies() -> None:
    """Pinned and pageable memory, both ways, and on the card."""
    size = 2**30
    pinned, pageable = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8)
    card = torch.empty(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(card)
    for name, work, factor in (
        ("host to device, pinned", lambda: card.copy_(pinned, non_blocking=True), 1),
        ("device to host, pinned", lambda: pinned.copy_(card, non_blocking=True), 1),
        ("host to device, pageable", lambda: card.copy_(pageable), 1),
        ("device to device, read and write", lambda: other.copy_(card), 2),
    ):
        print(f"{name}: {factor * size / by_events(work, 10) / 1e9:.1f} GB/s")


def graphs() -> None:
    """A CUDA graph replayed, and NVRTC by torch's jiterator (libnvrtc-builtins is a file that stacks often lack)."""
    layer, batch = torch.nn.Linear(256, 256, device="cuda"), torch.randn(64, 256, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            layer(batch)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = layer(batch)
    batch.normal_()
    graph.replay()
    torch.cuda.synchronize()
    with torch.no_grad():
        print("graph's replay equals eager:", torch.equal(out, layer(batch)))
    found = torch.gcd(torch.tensor([12, 18], device="cuda"), torch.tensor([8, 27], device="cuda"))
    print("NVRTC:", found.tolist(), "expected [4, 9]")


def memory_pattern() -> None:
    """Two patterns through 90 % of the free memory: bad rows of HBM."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    blocks = [torch.empty(2**30, dtype=torch.int64, device="cuda") for _ in range(int(free * 0.9) // 2**33)]
    bad = 0
    for pattern in (0x5555555555555555, -0x5555555555555556):
        for number, block in enumerate(blocks):
            block.fill_(pattern ^ number)
        bad += sum(int((block != (pattern ^ number)).sum()) for number, block in enumerate(blocks))
    print(f"memory pattern: {len(blocks) * 8} GiB, {bad} wrong words")


def by_events(work: Callable[[], Any], times: int) -> float:
    """Seconds of one call, by CUDA events around many."""
    work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


def clocks(device: str) -> str:
    if device != "cuda":
        return ""
    command = ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main(sys.argv[1])
