"""Numbers of a receipt that can be compared with those of another one, and which direction is better."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Final

from msgspec import Struct

from envspec.conformance.results import Kind, Peak
from envspec.conformance.text import counted
from envspec.receipts.model import Receipt

#: How far a rate may fall at least before a run is worse than a recorded one, by device. CPU: a virtual machine's cores
#: change their speed by some 10 % between seconds, which no repetition within a run shows (measured on two cores,
#: torch 2.9, 2026-11). CUDA: rates with this tolerance fell by at most 2.1 % between three runs on one H200 (torch
#: 2.11, 2026-11), where no rate of any tolerance was worse.
RATE_TOLERANCES: Final = {"cuda": 0.05, "cpu": 0.10}
#: Times the spreads of both runs: fewer than 1 in 500 rates of a busy machine are worse than a quiet one's (ditto).
SPREADS: Final = 1.5
#: How far a peak may rise: torch's allocator allocates the same blocks for the same program; 5 % is for libraries'
#: workspaces.
MEMORY_TOLERANCE: Final = 0.05
#: Of a process: pages of libraries that the kernel maps around those in use count, and depend on its page cache (7 % in
#: one of 40 runs of the check `matmul`, torch 2.9, 2026-11).
HOST_MEMORY_TOLERANCE: Final = 0.10
#: Peaks of host memory below this have no tolerance: what an interpreter without torch takes varies by more.
_JUDGED_BYTES: Final = 256 << 20
HOST_PEAK: Final = "peak of the host's memory"
#: What the suite puts before a finding's name if a check ran on each of several GPUs.
_GPU: Final = re.compile(r"GPU (\d+): ")
_NO_GPU: Final = "GPUs that CUDA does not show"


class Better(Enum):
    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Number(Struct, frozen=True):
    """A number of a check.

    tolerance: how much worse it may be at least; None if no change counts.
    spread: a rate's.
    """

    check: str
    name: str
    unit: str
    value: float
    better: Better
    tolerance: float | None = None
    spread: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.check, self.name, self.unit

    @property
    def gpu(self) -> int | None:
        """The GPU of whose number it is; None if the check did not run on each of several."""
        found = _GPU.match(self.name)
        return int(found[1]) if found else None

    @property
    def of_all_gpus(self) -> tuple[str, str, str]:
        """The key that this number has in common with those of the other GPUs."""
        return self.check, _GPU.sub("", self.name, count=1), self.unit


def numbers(receipt: Receipt) -> Iterator[Number]:
    """Every number of a receipt, in order: for each check its time, findings with a unit, peaks of memory.

    Times have no tolerance: a cold cache doubles them. Nor do rates without a spread, of which too little is known.
    """
    for check in receipt.checks:
        if check.seconds:
            yield Number(check.check, "in all", "s", check.seconds, Better.LOWER)
        for each in check.findings:
            if each.value is not None and each.unit and each.kind in (Kind.INFO, Kind.BOUNDED):
                direction = better(each.unit)
                tolerance = None
                if direction is Better.HIGHER and each.spread is not None:
                    tolerance = RATE_TOLERANCES[receipt.device]
                yield Number(check.check, each.name, each.unit, each.value, direction, tolerance, each.spread or 0.0)
        for name, value, allowed in _peaks(check.peak, receipt.device):
            if value is not None:
                yield Number(check.check, name, "bytes", value, Better.LOWER, allowed)


def _peaks(peak: Peak, device: str) -> Iterator[tuple[str, int | None, float | None]]:
    """Name, bytes and tolerance of each peak of memory."""
    yield "allocated on the device", peak.allocated_bytes, MEMORY_TOLERANCE
    yield "reserved on the device", peak.reserved_bytes, MEMORY_TOLERANCE
    # With a GPU, host memory depends on the driver and its libraries.
    is_judged = device == "cpu" and (peak.host_bytes or 0) >= _JUDGED_BYTES
    yield HOST_PEAK, peak.host_bytes, HOST_MEMORY_TOLERANCE if is_judged else None


def better(unit: str) -> Better:
    """Which direction of a number in `unit` is better."""
    if unit == "s":
        return Better.LOWER
    if unit.endswith("/s"):
        return Better.HIGHER
    return Better.NEITHER


def tolerance(recorded: Number, now: Number) -> float | None:
    """How much worse a number may be than the recorded one, as a fraction of it; None if no change counts.

    1 for a rate that was disturbed too much for any comparison.
    """
    if recorded.tolerance is None or now.tolerance is None:
        return None
    return min(1.0, max(recorded.tolerance, SPREADS * (recorded.spread + now.spread)))


def worsening(better: Better, recorded: float, now: float) -> float:
    """How much worse a number is now, as a fraction of `recorded`; negative if better, 0 if neither is better."""
    if better is Better.NEITHER or not recorded:
        return 0.0
    change = (now - recorded) / recorded
    return change if better is Better.LOWER else -change


def devices(receipt: Receipt) -> str:
    """What the run computed on: `8 x NVIDIA H100 80GB HBM3`, or the CPU."""
    machine = receipt.machine
    if receipt.device != "cuda":
        return f"{machine.cpu or machine.architecture or 'CPU'}, {machine.cpus or '?'} CPUs"
    counts = Counter(gpu.name for gpu in machine.gpus)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or _NO_GPU


def world_size(receipt: Receipt) -> int | None:
    """Processes of the distributed checks on all nodes; None if the suite chose, on the CPU."""
    on_one = receipt.world_size
    if not on_one and receipt.device == "cuda":
        on_one = len(receipt.machine.gpus)
    if not on_one:
        return None
    return on_one * receipt.nodes.count


def has_kind(receipt: Receipt) -> bool:
    """Whether the devices of the run are known: those of a machine whose driver does not work are not."""
    return receipt.device != "cuda" or bool(receipt.machine.gpus)


def kind(receipt: Receipt) -> str:
    """What numbers depend on: only receipts of the same kind have comparable numbers."""
    what = devices(receipt)
    if receipt.device == "cuda":
        what = ", ".join(sorted(models(receipt))) or _NO_GPU
    size = world_size(receipt) or "chosen by the suite"
    return f"{what}; world size {size}; {counted(receipt.nodes.count, 'node')}"


def models(receipt: Receipt) -> frozenset[str]:
    """Names of the models of GPUs."""
    return frozenset(gpu.name for gpu in receipt.machine.gpus)
