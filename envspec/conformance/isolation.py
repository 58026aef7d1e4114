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
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Callable, NoReturn

from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.processes import RUN, adopt_orphans, descendants, die_with_parent, end_all, signal_name
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, NotRun, Peak, error_chain

#: Exit statuses; neither of the last two is one of Python's own (1, 2).
DONE, NOT_RUN, RAISED = 0, 75, 70
#: In the folder of a check; the second one is its folder for temporary files.
EVENTS, SCRATCH, LOG = "events.jsonl", "scratch", "log.txt"
#: Findings in a reason; the result lists all of them.
_MAX_IN_REASON = 8
#: For every thread's stack to be written, in seconds.
_STACKS_S = 0.3


def start(folder: Path, *words: str | Path) -> subprocess.Popen[bytes]:
    """Start a process that `run` runs, in a folder of its own. words: of the suite's command line, after `run.py`.

    Raises:
        OSError: it can't be started.
    """
    prepare(folder)
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(  # noqa: S603 (this Python and this suite)
            [sys.executable, str(RUN), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def prepare(folder: Path) -> None:
    """Make the folder of a process that `run` will run."""
    (folder / SCRATCH).mkdir(parents=True)
    (folder / EVENTS).touch()


def run(
    parent: int, request: SuiteRequest, folder: Path, work: Callable[[CheckContext], object], gpu: int | None = None
) -> NoReturn:
    """Run a check or a part of one, and end this process.

    parent: PID of the process that started it. gpu: number of the only GPU that it sees, if that was chosen for it.
    """
    die_with_parent(parent)
    # Orphans of an import stay below this process, and end with it, not with the check that runs meanwhile.
    adopt_orphans()
    faulthandler.enable()
    # At the limit the suite requests the stacks by this signal before it ends the process.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with (folder / EVENTS).open("a", encoding="utf-8") as events:
        status = _attempt(CheckContext(request, folder / SCRATCH, events, gpu), work)
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries that crash at exit do not count: every event is written.
    os._exit(status)


def _attempt(context: CheckContext, work: Callable[[CheckContext], object]) -> int:
    try:
        work(context)
    except NotRun as error:
        context.write("not_run", [error.reason, error.hint])
        return NOT_RUN
    except BaseException as error:
        traceback.print_exc()
        names = {each.__name__ for each in type(error).__mro__}
        cause = Cause.OUT_OF_MEMORY if names & {"OutOfMemoryError", "MemoryError"} else Cause.RAISED
        texts = [": ".join(filter(None, [type(each).__name__, str(each).strip()])) for each in error_chain(error)]
        context.write("raised", [cause.value, "\n  because of ".join(texts)])
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


def failure(events: ProcessEvents, exited: int | None, over_limit_s: float | None) -> tuple[Cause, str] | None:
    """Why a process failed; None if it did not.

    exited: its status, negative for a signal; None if it can't be killed. over_limit_s: the limit at which it was
    ended.
    """
    if over_limit_s is not None:
        return Cause.OVER_LIMIT, f"still running after {over_limit_s:g} s, {events.position}"
    if events.raised:
        return Cause(events.raised[0]), f"{events.position}: {events.raised[1]}"
    if exited not in (DONE, NOT_RUN) or not (events.done or events.not_run):
        if exited == -signal.SIGKILL:
            reason = "most often because the system or container is out of memory"
            return Cause.OUT_OF_MEMORY, f"killed {events.position}: {reason}"
        if exited is not None and exited < 0:
            return Cause.CRASHED, f"crashed {events.position}, by {signal_name(-exited)}"
        return Cause.CRASHED, f"exited {events.position} with status {exited} without a result"
    wrong = [str(each) for each in events.findings if each.ok is False]
    if wrong:
        more = [f"and {len(wrong) - _MAX_IN_REASON} more"] if len(wrong) > _MAX_IN_REASON else []
        return Cause.FOUND, "; ".join([*wrong[:_MAX_IN_REASON], *more])
    return None


def wait(
    processes: Iterable[subprocess.Popen[bytes]], limit_s: float, waiting: Collection[int] = ()
) -> tuple[set[int], tuple[str, ...]]:
    """Wait for processes; at the limit they are ended, and in any case all that they have started.

    waiting: PIDs of other processes, which keep running. Returns the PIDs of those that were still running at the
    limit, and descriptions of processes that cannot be killed.
    """
    started = list(processes)
    deadline = time.monotonic() + limit_s
    late: set[int] = set()
    unkillable: tuple[str, ...] = ()
    try:
        for each in started:
            try:
                each.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.add(each.pid)
        if late:
            _request_stacks(late)
    finally:
        unkillable = end_all(exclude=waiting)
        for each in started:
            each.poll()
    return late, unkillable


def _request_stacks(roots: Collection[int]) -> None:
    for each in {*roots, *(below for root in roots for below in descendants(root))}:
        with contextlib.suppress(OSError):
            # A process without a handler would be ended by the signal.
            status = Path("/proc", str(each), "status").read_text(encoding="utf-8")
            caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
            if int(caught, 16) >> (signal.SIGUSR1 - 1) & 1:
                os.kill(each, signal.SIGUSR1)
    time.sleep(_STACKS_S)
