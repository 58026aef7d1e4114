"""From the container's start to the first finished kernel, in parts: what somebody waits for who starts a job here."""

from __future__ import annotations

import os
import time
from pathlib import Path

from envspec.conformance import imports
from envspec.conformance.events import Trial
from envspec.conformance.numerics import wait

#: Rows and columns: large enough for a real kernel, small enough to be nothing beside its start.
_SIDE = 256


def check(trial: Trial) -> None:
    """Time every part on the system's clock; the kernel's result has to be right."""
    began = _started(os.getpid())
    _tell_start(trial, began)
    entered = time.time()
    torch = imports.torch(trial)
    imported = time.time()
    with trial.phase("the device's start"):
        ones = torch.ones(_SIDE, _SIDE, device=trial.device)
        wait(torch, trial.device)
    begun = time.time()
    with trial.phase("the first kernel"):
        product = ones @ ones
        wait(torch, trial.device)
    done = time.time()
    trial.exact("the first kernel's result", ok=bool((product == _SIDE).all()), told="ones times ones")
    trial.inform("Python's start", entered - began, "s")
    trial.inform("import torch", imported - entered, "s")
    trial.inform("the device's start", begun - imported, "s", "CUDA context" if trial.order.cuda else "CPU")
    trial.inform("the first kernel", done - begun, "s")
    first = trial.order.start.at_s
    trial.inform("in all", done - (began if first is None else first), "s", "" if first else "from Python's start")
    trial.inform("read from disk", _read_bytes(), "bytes", "0 says that all of it was in the page cache")


def _tell_start(trial: Trial, began: float) -> None:
    """What came before this process."""
    start = trial.order.start
    if not start.in_container or start.at_s is None:
        trial.not_run("the container's start", "the suite runs in no container")
        return
    inside = _started(1)
    trial.inform("the container's start", inside - start.at_s, "s", "until its first process")
    trial.inform("the suite's start", began - inside, "s", "until this check's process")
    if start.pulled_bytes is None:
        trial.not_run("the image's pull", "the image was there")
    else:
        trial.inform("pulled", start.pulled_bytes, "bytes")
        trial.inform("the image's pull", start.pull_s or 0.0, "s")


def _started(process: int) -> float:
    """When a process began, in seconds of the system's clock, to a tick (10 ms). Source: proc(5), stat, field 22."""
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    ticks = int(fields[19])
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def _read_bytes() -> int:
    """What this process has fetched from the disk. Source: proc(5), io."""
    rows = dict(line.split(":") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(rows["read_bytes"])
