"""Processes: none outlives the suite, however it ends.

torchrun's workers lead sessions of their own, so that ending its process group leaves them (pytorch#113231). On Linux
the suite is a subreaper instead: a process that loses its parent becomes a child of the suite, which finds it in /proc.
Source: prctl(2), proc(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Callable, NoReturn

#: The suite's program.
RUN = Path(__file__).resolve().with_name("run.py")
#: Requests to end.
TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: How long processes may take to end after SIGTERM, in seconds.
GRACE_S = float(os.environ.get("ENVSPEC_SUITE_GRACE_S", "2"))
#: How long they may take to end after SIGKILL: one that waits in the kernel (state D) does not end before the wait.
KILL_S = 4.0
#: The guard's: what is left then was not ended by SIGKILL already.
_GUARD_KILL_S = 1.0
_POLL_S = 0.02
#: Those that were not ended by SIGKILL.
_unkillable: set[int] = set()


def adopt_orphans() -> None:
    """From now on, descendants that lose their parent become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send the signal `number` to this process when its parent ends, or now if it has ended."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def guarded(work: Callable[[], int]) -> int:
    """Run `work` in a child process; return its exit status when no process below this one is left.

    If one of the two is killed, the other ends everything that is left. Termination signals are passed on.
    """
    adopt_orphans()
    guard = os.getpid()
    worker = os.fork()
    if not worker:
        _work(work, guard)
    for number in TERMINATION_SIGNALS:
        signal.signal(number, lambda number, _: _send({worker}, number))
    status = os.waitpid(worker, 0)[1]
    if os.WIFEXITED(status):
        # It has ended what can be ended.
        end_all(grace_s=0, kill_s=_GUARD_KILL_S)
        return os.WEXITSTATUS(status)
    end_all()
    # `os.waitstatus_to_exitcode` is negative for signals; a shell adds 128.
    return 128 + os.WTERMSIG(status)


def _work(work: Callable[[], int], guard: int) -> NoReturn:
    status = 1
    try:
        die_with_parent(guard, signal.SIGTERM)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        exit_now(status)


def exit_now(status: int) -> NoReturn:
    """End this process without Python's own end, in which libraries may crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _prctl(option: int, value: int) -> None:
    # Other systems than Linux have no prctl: they end what they find by parents alone.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int, exclude: Collection[int] = ()) -> set[int]:
    """Every process below `root`, zombies too, without `exclude` and everything below those."""
    return below(root, children(), exclude)


def children() -> dict[int, list[int]]:
    """Process -> its children, of all processes that this one sees."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may contain anything, spaces and parentheses too.
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def below(root: int, children: Mapping[int, Sequence[int]], exclude: Collection[int] = ()) -> set[int]:
    """The processes below `root`, as `descendants`. children: of each process."""
    found: set[int] = set()
    queue = [root]
    while queue:
        new = [each for each in children.get(queue.pop(), []) if each not in found and each not in exclude]
        found.update(new)
        queue += new
    return found


def end_all(exclude: Collection[int] = (), *, grace_s: float = GRACE_S, kill_s: float = KILL_S) -> tuple[str, ...]:
    """End every process below this one, without `exclude` and everything below those.

    Return descriptions of those that SIGKILL does not end within `kill_s`; they are not waited for again.
    """
    _send(_running(exclude), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _running(exclude) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    deadline = time.monotonic() + kill_s
    while (left := _running(exclude)) and time.monotonic() < deadline:
        _send(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    _unkillable.update(left)
    return tuple(_state(each) for each in sorted(left))


def _state(process: int) -> str:
    """`process 12 (python3) cannot be killed: state D, waits in request_wait_answer`. Source: proc(5), stat, wchan."""
    name, state, channel = "", "unknown", ""
    folder = Path("/proc", str(process))
    with contextlib.suppress(OSError):
        before, _, after = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        name, state = f" ({before.partition('(')[2]})", after.split()[0]
    with contextlib.suppress(OSError):
        channel = (folder / "wchan").read_text(encoding="ascii", errors="replace")
    where = f", waits in {channel}" if channel not in ("", "0") else ""
    return f"process {process}{name} cannot be killed: state {state}{where}"


def _running(exclude: Collection[int]) -> set[int]:
    """Processes below this one, after reaping its own zombies."""
    for process in descendants(os.getpid(), exclude):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
    return descendants(os.getpid(), exclude) - _unkillable


def signal_name(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    return f"signal {number} ({name})"


def _send(processes: set[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
