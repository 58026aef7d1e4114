"""All checks, to results.json.

Imports are most of what many checks take, keep one core busy and no GPU. Nothing else is done before the turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from envspec.conformance import hardware, supervisor
from envspec.conformance import request as orders
from envspec.conformance.bounds import SIZES
from envspec.conformance.checks import CHECKS
from envspec.conformance.processes import ASKED_TO_END, adopt_orphans, end_all, guarded
from envspec.conformance.request import Order
from envspec.conformance.results import FORMAT, Peak, Result, Status, as_json
from envspec.conformance.supervisor import Begun, Run, begin

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Ahead:
    """The processes of a run that wait for their turn."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._count = allowed(_cores(), hardware.memory_bytes() or 0) if run.order.ahead is None else run.order.ahead
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


#: Exit statuses: every check was run and told of; the order is no order; files can't be written; GPUs are asked
#: for and there are none.
TOLD, NO_ORDER, NO_RESULTS, NO_GPU = 0, 2, 3, 6


class Stopped(BaseException):
    """The suite was asked to end by a signal."""


def main(order_path: Path, results_path: Path, script: Path) -> int:
    """Run the checks of an order; results are written after each, so that a lost machine leaves those that it had.

    Lines of JSON on stdout tell what begins and what came of it. script: `run.py`.
    """
    place = Path(tempfile.mkdtemp(prefix="envspec-suite-"))
    try:
        return guarded(lambda: _main(order_path, results_path, script, place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _main(order_path: Path, results_path: Path, script: Path, place: Path) -> int:
    adopt_orphans()
    for number in ASKED_TO_END:
        signal.signal(number, _stop)
    try:
        order = _order(order_path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        print(f"the order can't be read: {type(fault).__name__}: {fault}", file=sys.stderr)
        return NO_ORDER
    if order.cuda and (reason := hardware.no_gpu()):
        print(reason, file=sys.stderr)
        return NO_GPU
    report = _Report(order, results_path)
    try:
        report.write(is_whole=False)
        _run(supervisor.Run(order, order_path, script, place), report)
        report.write(is_whole=True)
    except Stopped:
        report.write(is_whole=False)
        return 128 + signal.SIGTERM
    except OSError as fault:
        print(f"the suite can't go on: {fault}", file=sys.stderr)
        return NO_RESULTS
    finally:
        end_all()
        # The guard does so too: either may be killed.
        shutil.rmtree(place, ignore_errors=True)
    return TOLD


def _order(path: Path) -> Order:
    order = orders.read(path)
    unknown = sorted({*order.checks, *order.required, *order.limits} - set(CHECKS))
    if unknown:
        raise ValueError(f"there is no check {', '.join(map(repr, unknown))}")
    return order


def _run(run: supervisor.Run, report: _Report) -> None:
    order, peaks, ahead = run.order, dict[str, Peak](), Ahead(run)
    # In the table's order, whatever that of the words was: coldstart has to be the first, memory the last.
    names = [each for each in CHECKS if each in order.checks]
    for place, name in enumerate(names):
        _say({"begin": name, "limit_s": order.limits.get(name, CHECKS[name].limit_s)})
        begun = ahead.take(name) or supervisor.begin(name, run)
        if not CHECKS[name].alone:
            ahead.begin(names[place + 1 :])
        result = supervisor.attend(begun, run, peaks, ahead.processes)
        result.required = name in order.required
        if result.status is Status.PASSED:
            peaks[name] = result.peak
        report.add(result)
        _say({"end": name, "status": result.status.value, "seconds": result.seconds, "reason": result.reason})


class _Report:
    """results.json, which is whole after every check."""

    def __init__(self, order: Order, path: Path) -> None:
        self._order = order
        self._path = path
        self._began = time.time()
        self._machine = hardware.describe()
        self._results: list[Result] = []

    def add(self, result: Result) -> None:
        self._results.append(result)
        self.write(is_whole=False)

    def write(self, *, is_whole: bool) -> None:
        data: dict[str, Any] = {
            "format": FORMAT,
            "began_s": self._began,
            "seconds": time.time() - self._began,
            "is_whole": is_whole,
            "device": self._order.device,
            "seed": self._order.seed,
            "machine": self._machine,
            "results": as_json(self._results),
        }
        beside = self._path.with_suffix(".part")
        beside.write_text(json.dumps(data), encoding="utf-8")
        beside.replace(self._path)


def stop_at_end_of_stdin() -> None:
    """End as by SIGTERM when whoever holds the other end of stdin is gone, however that came."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _stop(_number: int, _frame: FrameType | None) -> None:
    # Once is enough: a second one would end what takes the processes down.
    for number in ASKED_TO_END:
        signal.signal(number, signal.SIG_IGN)
    raise Stopped
