"""A process of a check, or of a part of one: what it writes, how it ends, and what that means."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable, NoReturn

from envspec.conformance.cputime import LimitClock
from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.processes import (
    RUN,
    adopt_orphans,
    below,
    children,
    descendants,
    die_with_parent,
    end_all,
    exit_now,
    signal_name,
)
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, NotRun, Peak, error_texts, is_out_of_memory
from envspec.conformance.text import first_of

#: Exit statuses; neither of the last two is one of Python's own (1, 2).
DONE, NOT_RUN, RAISED = 0, 75, 70
#: In the folder of a check; the second one is its folder for temporary files.
EVENTS, SCRATCH, LOG = "events.jsonl", "scratch", "log.txt"
#: Findings in a reason; the result lists all of them.
_MAX_IN_REASON = 8
#: Processes are looked at after so many seconds, and at least so many times until their limit.
_PERIOD_S, _PERIODS = 1.0, 10
#: For every thread's stack to be written, in seconds.
_STACKS_S = 0.3


def start(
    what: str, request: Path, folder: Path, *words: object, output: IO[bytes] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process that `run` runs.

    what: `--check` or another first word of the suite's command line. request: the file of the request. folder: for the
    process, not there or empty. words: for its work. output: gets what it prints; by default the folder's LOG. options:
    of Popen.

    Raises:
        OSError: it can't be started.
    """
    (folder / SCRATCH).mkdir(parents=True)
    (folder / EVENTS).touch()
    with contextlib.ExitStack() as stack:
        output = output or stack.enter_context((folder / LOG).open("wb"))
        return subprocess.Popen(  # noqa: S603 (this Python and this suite)
            [sys.executable, *map(str, (RUN, what, os.getpid(), request, folder, *words))],
            cwd=folder / SCRATCH,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **options,
        )


def run(parent: int, request: Path, folder: Path, work: Callable[[CheckContext], object]) -> NoReturn:
    """Run a check or a part of one, and end this process. parent: PID of the process that started it."""
    die_with_parent(parent)
    # Orphans of an import stay below this process, and end with it, not with the check that runs meanwhile.
    adopt_orphans()
    faulthandler.enable()
    # At the limit the suite requests the stacks by this signal before it ends the process.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with (folder / EVENTS).open("a", encoding="utf-8") as events:
        status = _attempt(CheckContext(SuiteRequest.read(request), folder / SCRATCH, events), work)
    # Libraries that crash at exit do not count: every event is written.
    exit_now(status)


def _attempt(context: CheckContext, work: Callable[[CheckContext], object]) -> int:
    try:
        work(context)
    except NotRun as error:
        context.write("not_run", [error.reason, error.hint])
        return NOT_RUN
    except BaseException as error:
        traceback.print_exc()
        cause = Cause.OUT_OF_MEMORY if is_out_of_memory(error) else Cause.RAISED
        context.write("raised", [cause.value, "\n  because of ".join(error_texts(error))])
        return RAISED
    context.peak(_peak())
    context.write("done", value=True)
    return DONE


def _peak() -> Peak:
    host = 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), host)
    return Peak(host_bytes=host)


@dataclass(frozen=True)
class Overrun:
    """A process that was ended at its limit.

    limit_s: that limit. wall_s: how long it ran. waited_s: of these, how long it only waited for a CPU. is_stuck:
    whether it did nothing any more.
    """

    limit_s: float
    wall_s: float
    waited_s: float
    is_stuck: bool

    def failure(self, position: str) -> tuple[Cause, str]:
        """Its cause, and a sentence. position: where the process was."""
        if self.is_stuck:
            return Cause.OVER_LIMIT, f"still running after {self.limit_s:g} s, {position}"
        took = f"its limit is {self.limit_s:g} s, and it took {self.wall_s:.0f} s"
        if self.waited_s >= 1:
            took += f", of which it waited {self.waited_s:.0f} s for a CPU"
        return Cause.OUT_OF_TIME, f"ran out of time {position}: {took}"


@dataclass(frozen=True)
class Ended:
    """How processes ended.

    overruns: PID -> how it was ended at its limit. waited_s: the longest that one of them only waited for a CPU.
    counted_s: the most of its limit that one of them used. unkillable: descriptions of processes that can't be killed.
    """

    overruns: Mapping[int, Overrun]
    waited_s: float
    counted_s: float
    unkillable: tuple[str, ...]


def failure(events: ProcessEvents, exited: int | None, overrun: Overrun | None) -> tuple[Cause, str] | None:
    """Why a process failed, or OUT_OF_TIME; None if neither.

    exited: its status, negative for a signal; None if it can't be killed. overrun: if it was ended at its limit.
    """
    ended = overrun.failure(events.position) if overrun else _ended(events, exited)
    wrong = [str(each) for each in events.findings if each.ok is False]
    if not wrong or (ended and ended[0] is not Cause.OUT_OF_TIME):
        return ended
    # What is wrong is known, whatever else is not.
    reasons = first_of(wrong, _MAX_IN_REASON)
    if ended:
        reasons.append(ended[1])
    return Cause.FOUND, "; ".join(reasons)


def _ended(events: ProcessEvents, exited: int | None) -> tuple[Cause, str] | None:
    """Why a process that has ended by itself has no result; None if it has one."""
    if events.raised:
        return Cause(events.raised[0]), f"{events.position}: {events.raised[1]}"
    if exited in (DONE, NOT_RUN) and (events.done or events.not_run):
        return None
    if exited == -signal.SIGKILL:
        reason = "most often because the system or container is out of memory"
        return Cause.OUT_OF_MEMORY, f"killed {events.position}: {reason}"
    if exited is not None and exited < 0:
        return Cause.CRASHED, f"crashed {events.position}, by {signal_name(-exited)}"
    return Cause.CRASHED, f"exited {events.position} with status {exited} without a result"


def wait(processes: Iterable[subprocess.Popen[bytes]], limit_s: float, waiting: Collection[int] = ()) -> Ended:
    """Wait for processes; at the limit they are ended, and in any case all that they have started.

    Time in which a process and all below it only wait for a CPU does not count. waiting: PIDs of other processes, which
    keep running.
    """
    started = list(processes)
    unkillable: tuple[str, ...] = ()
    try:
        clocks, overruns = _watched(started, limit_s)
        if overruns:
            _request_stacks(overruns)
    finally:
        unkillable = end_all(exclude=waiting)
        for each in started:
            each.poll()
    waited_s = max((each.waited_s for each in clocks), default=0.0)
    counted_s = max((each.counted_s for each in clocks), default=0.0)
    return Ended(overruns, waited_s, counted_s, unkillable)


def _watched(started: Sequence[subprocess.Popen[bytes]], limit_s: float) -> tuple[list[LimitClock], dict[int, Overrun]]:
    """Wait until every process has ended or reached its limit: their clocks, and those at the limit."""
    tree = children()
    clocks = {each.pid: LimitClock({each.pid, *below(each.pid, tree)}) for each in started}
    overruns: dict[int, Overrun] = {}
    period_s = min(_PERIOD_S, limit_s / _PERIODS)
    running = list(started)
    while running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].wait(period_s)
        running = [each for each in running if each.poll() is None]
        tree = children() if running else {}
        for each in running:
            clock = clocks[each.pid]
            clock.advance({each.pid, *below(each.pid, tree)})
            if clock.is_over(limit_s):
                overruns[each.pid] = Overrun(limit_s, clock.wall_s, clock.waited_s, clock.is_stuck(limit_s))
        running = [each for each in running if each.pid not in overruns]
    return list(clocks.values()), overruns


def _request_stacks(roots: Collection[int]) -> None:
    processes = set(roots)
    for root in roots:
        processes |= descendants(root)
    for each in processes:
        with contextlib.suppress(OSError):
            # A process without a handler would be ended by the signal.
            status = Path("/proc", str(each), "status").read_text(encoding="utf-8")
            caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
            if int(caught, 16) >> (signal.SIGUSR1 - 1) & 1:
                os.kill(each, signal.SIGUSR1)
    time.sleep(_STACKS_S)
