"""Processes: none outlives the suite, whatever becomes of it.

torchrun's workers lead sessions of their own, so that ending its process group leaves them (pytorch#113231). On Linux
the suite is a subreaper instead: whatever loses its parent becomes its child, and is found in /proc.
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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Callable, NoReturn

#: Signals that ask a process to end.
ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: How long processes may take to end after SIGTERM, in seconds.
GRACE_S = float(os.environ.get("ENVSPEC_SUITE_GRACE_S", "2"))
_POLL_S = 0.02


def adopt_orphans() -> None:
    """From here on, descendants that lose their parent become this process's children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """This process is killed when its parent ends, even by SIGKILL. parent: its id, which may have ended already.

    number: the signal that it gets.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def guarded(work: Callable[[], int]) -> int:
    """The exit status of `work`, which runs in a process below this one; when this returns, none below is left.

    Whichever of the two is killed, the other one ends all that is left: what is killed can't. Signals that ask this
    process to end are handed on.
    """
    adopt_orphans()
    guard = os.getpid()
    worker = os.fork()
    if not worker:
        _work(work, guard)
    for number in ASKED_TO_END:
        signal.signal(number, lambda number, _: _send({worker}, number))
    status = os.waitpid(worker, 0)[1]
    end_all()
    # `os.waitstatus_to_exitcode`, which is negative for signals, in a shell's words.
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _work(work: Callable[[], int], guard: int) -> NoReturn:
    status = 1
    try:
        die_with_parent(guard, signal.SIGTERM)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _prctl(option: int, value: int) -> None:
    # A system without it (another one than Linux) ends what it can by parents alone.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int, but: Collection[int] = ()) -> set[int]:
    """Every process below `root`, zombies too; none of `but`, and none below those."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    waiting = [root]
    while waiting:
        below = [each for each in children.get(waiting.pop(), []) if each not in found and each not in but]
        found.update(below)
        waiting += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything, spaces and parentheses too.
                rest = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                yield int(entry.name), int(rest[1])


def end_all(but: Collection[int] = ()) -> None:
    """End every process below this one, except `but` and what is below those. Returns when none is left."""
    _send(_running(but), signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while _running(but) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while left := _running(but):
        _send(left, signal.SIGKILL)
        time.sleep(_POLL_S)


def _running(but: Collection[int]) -> set[int]:
    """What runs below this process. What has ended is taken leave of, unless it is another one's child."""
    for process in descendants(os.getpid(), but):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
    return descendants(os.getpid(), but)


def _send(processes: set[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
