"""Checks that come next: their processes import what they need while another check runs, and wait for their turn.

Imports are most of what many checks take, keep one core busy and no GPU. Nothing else is done before the turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path

from envspec.conformance import machine
from envspec.conformance.bounds import SIZES
from envspec.conformance.checks import CHECKS
from envspec.conformance.supervise import Begun, Run, begin

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Ahead:
    """The processes of a run that wait for their turn."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._count = allowed(_cores(), machine.memory_bytes() or 0) if run.order.ahead is None else run.order.ahead
        self._waiting: dict[str, Begun] = {}

    @property
    def processes(self) -> Collection[int]:
        """Those that wait, or have ended before their turn."""
        return {each.process.pid for each in self._waiting.values()}

    def begin(self, following: Sequence[str]) -> None:
        """Have the first of the checks that follow wait, as many as may."""
        with_imports = (check for check in following if CHECKS[check].ahead)
        for check in islice(with_imports, self._count):
            # Without room for it now, it begins in its turn.
            with contextlib.suppress(OSError):
                self._waiting[check] = self._waiting.get(check) or begin(check, self._run)

    def take(self, check: str) -> Begun | None:
        """The process of a check whose turn has come; None where it is to begin now.

        One that was killed is none: most often the system has run out of memory, in the turn of another check.
        """
        begun = self._waiting.pop(check, None)
        if begun and begun.process.poll() == -signal.SIGKILL:
            begun.drop()
            return None
        return begun


def allowed(cores: float, memory_bytes: int) -> int:
    """How many processes may import ahead without taking time or memory from the check that runs."""
    room = memory_bytes // SIZES["ahead.memory_bytes"]
    return min(SIZES["ahead.processes"], int(cores / SIZES["ahead.cores"]), room)


def _cores() -> float:
    """Those that this process may run on, and no more than a container's quota is worth.

    Source: Linux, "Control Group v2", cpu.max: microseconds of CPU time in each period of so many, or `max`.
    """
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = map(int, _QUOTA.read_text(encoding="ascii").split())
        return min(cores, quota / period)
    return cores
