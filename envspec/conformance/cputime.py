"""The time that processes run and wait for a CPU, and the time that a limit counts.

A limit of wall seconds fails healthy machines that do other work as well: with 30 busy processes on two cores, a check
takes 15 times as long. So the time in which processes could run and only waited for a CPU does not count. What hangs
without a CPU waits for nothing, and its limit is one of wall seconds.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

#: More wall seconds than this multiple of its limit are not given to anything.
MOST_TIMES = 20.0
#: What runs for a smaller share of the counted time uses no CPU: a heartbeat's thread, a torchrun that waits for ranks.
_IDLE_SHARE = 0.02
#: A process is stuck if it has used no CPU in this last part of its limit.
_IDLE_PART = 0.25


@dataclass(frozen=True)
class Usage:
    """Seconds that a thread, or several, ran on a CPU and waited for one."""

    ran_s: float = 0.0
    waited_s: float = 0.0


def usage(process: int) -> dict[int, Usage]:
    """Thread -> its usage; empty if the process has ended, or if the kernel does not count it.

    Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat: two numbers in nanoseconds.
    """
    found = {}
    for each in Path("/proc", str(process), "task").glob("*/schedstat"):
        # A thread may have ended meanwhile.
        with contextlib.suppress(OSError, ValueError, IndexError):
            ran, waited = map(int, each.read_text(encoding="ascii").split()[:2])
            found[int(each.parent.name)] = Usage(ran / 1e9, waited / 1e9)
    return found


def total(process: int) -> Usage:
    """The usage of all threads of a process that have not ended."""
    threads = usage(process).values()
    return Usage(sum(each.ran_s for each in threads), sum(each.waited_s for each in threads))


def slowdown() -> float:
    """How many times as long this process takes as on an idle machine: by its own time until now, and by the load.

    At least 1, at most MOST_TIMES.
    """
    own = total(os.getpid())
    by_own = (own.ran_s + own.waited_s) / own.ran_s if own.ran_s else 1.0
    by_load = load() / len(os.sched_getaffinity(0))
    return min(MOST_TIMES, max(1.0, by_own, by_load))


def load() -> float:
    """Processes that ran or waited for a CPU in the last minute, on average; 0 if the system does not count them."""
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return 0.0


def _is_runnable(process: int) -> bool:
    """Whether a thread of the process runs or waits for a CPU. Source: proc(5), state in /proc/PID/task/TID/stat."""
    for each in Path("/proc", str(process), "task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if each.read_bytes().rpartition(b")")[2].split()[:1] == [b"R"]:
                return True
    return False


class LimitClock:
    """The time of a process, and of all below it, that its limit counts.

    wall_s: seconds since the beginning. waited_s: those in which it only waited for a CPU. idle_s: the last of the
    others, in which it used no CPU.
    """

    def __init__(self, processes: Collection[int]) -> None:
        self._began = self._read = time.monotonic()
        self._threads: dict[int, Usage] = {}
        self._unread_s = 0.0
        self.wall_s = self.waited_s = self.idle_s = 0.0
        self.advance(processes)

    @property
    def counted_s(self) -> float:
        """The seconds that the limit counts."""
        return self.wall_s - self.waited_s - self._unread_s

    def advance(self, processes: Collection[int]) -> None:
        """Count the time since the last call. processes: all that are there now."""
        now = time.monotonic()
        self.wall_s = now - self._began
        elapsed_s = now - self._read
        threads: dict[int, Usage] = {}
        for process in processes:
            threads.update(usage(process))
        ran_s = waited_s = 0.0
        for thread, each in threads.items():
            before = self._threads.get(thread, Usage())
            ran_s += max(0.0, each.ran_s - before.ran_s)
            waited_s += max(0.0, each.waited_s - before.waited_s)
        busy_s = ran_s + waited_s
        if busy_s < _IDLE_SHARE * elapsed_s and any(map(_is_runnable, processes)):
            # The kernel counts how long a thread has waited when it gets a CPU: read later, for all this time.
            self._unread_s = elapsed_s
            return
        # Of several threads, some ran while others waited: what is lost is the share of waiting.
        lost_s = min(elapsed_s, busy_s) * waited_s / busy_s if busy_s else 0.0
        counted_s = elapsed_s - lost_s
        # Of what the kernel does not count, nothing shows that it is stuck.
        is_idle = bool(threads) and ran_s < _IDLE_SHARE * counted_s
        self.waited_s += lost_s
        self.idle_s = self.idle_s + counted_s if is_idle else 0.0
        self._threads, self._read, self._unread_s = threads, now, 0.0

    def is_over(self, limit_s: float) -> bool:
        """Whether its limit ends it; one that has just become idle has the time until it counts as stuck."""
        if self.wall_s >= MOST_TIMES * limit_s:
            return True
        return self.counted_s >= limit_s and (not self.idle_s or self.is_stuck(limit_s))

    def is_stuck(self, limit_s: float) -> bool:
        """Whether it does nothing any more. Otherwise it runs out of time while it still works."""
        return self.idle_s >= _IDLE_PART * limit_s
