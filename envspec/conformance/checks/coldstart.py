"""From the container's start to the first finished kernel, in parts."""

from __future__ import annotations

import os
import time
from pathlib import Path

from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import wait

#: Rows and columns: large enough for a real kernel, small enough to take no time beside its start.
_SIDE = 256


def check(context: CheckContext) -> None:
    """Time every part on the system's clock, and check the kernel's result."""
    began = _started(os.getpid())
    _measure_start(context, began)
    entered = time.time()
    torch = context.load("torch")
    imported = time.time()
    with context.phase("the device's start"):
        ones = torch.ones(_SIDE, _SIDE, device=context.device)
        wait(torch, context.device)
    begun = time.time()
    with context.phase("the first kernel"):
        product = ones @ ones
        wait(torch, context.device)
    done = time.time()
    context.exact("the first kernel's result", ok=bool((product == _SIDE).all()), detail="ones times ones")
    context.measure("Python's start", entered - began, "s")
    context.measure("import torch", imported - entered, "s")
    context.measure("the device's start", begun - imported, "s", "CUDA context" if context.request.cuda else "CPU")
    context.measure("the first kernel", done - begun, "s")
    first, origin = context.request.start.at_s, ""
    if first is None:
        first, origin = began, "from Python's start"
    context.measure("in all", done - first, "s", origin)
    context.measure("read from disk", _read_bytes(), "bytes", "0 means that all of it was in the page cache")


def _measure_start(context: CheckContext, began: float) -> None:
    start = context.request.start
    if start.at_s is None:
        context.not_run("the container's start", "the suite does not run in a container")
        return
    inside = _started(1)
    context.measure("the container's start", inside - start.at_s, "s", "until its first process")
    context.measure("the suite's start", began - inside, "s", "until this check's process")
    if start.pulled_bytes is None:
        context.not_run("the image's pull", "the image was in the engine already")
    else:
        context.measure("pulled", start.pulled_bytes, "bytes")
        context.measure("the image's pull", start.pull_s or 0.0, "s")


def _started(process: int) -> float:
    """Unix time at which a process started, to a tick (10 ms). Source: proc(5), stat, field 22."""
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    ticks = int(fields[19])
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def _read_bytes() -> int:
    """What this process has fetched from the disk. Source: proc(5), io."""
    rows = dict(line.split(":") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(rows["read_bytes"])
