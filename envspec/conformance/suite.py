"""Runs all checks and writes results.json.

Imports are most of the time of many checks; they use one core and no GPU. So the processes of later checks import while
another check runs, and do nothing else before their turn.
"""

from __future__ import annotations

import contextlib
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

from envspec.conformance import hardware, supervisor
from envspec.conformance.bounds import SIZES
from envspec.conformance.checks import CHECKS
from envspec.conformance.processes import TERMINATION_SIGNALS, adopt_orphans, end_all, guarded
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import FORMAT, CheckOutcome, Status, dumps
from envspec.conformance.supervisor import CheckProcess, SuiteRun

#: Exit statuses: every check was run; unreadable request; files can't be written; no GPU, and GPUs are requested.
COMPLETED, BAD_REQUEST, NO_RESULTS, NO_GPU = 0, 2, 3, 6
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Preimports:
    """Processes of later checks, which import before their turn."""

    def __init__(self, run: SuiteRun) -> None:
        self._run = run
        limit = run.request.preimports
        self._limit = preimport_limit(_cores(), hardware.memory_bytes() or 0) if limit is None else limit
        self._waiting: dict[str, CheckProcess] = {}

    @property
    def processes(self) -> Collection[int]:
        """PIDs."""
        return {each.process.pid for each in self._waiting.values()}

    def start(self, following: Sequence[str]) -> None:
        """Start the next checks that import anything, up to the limit."""
        for check in islice((check for check in following if CHECKS[check].preimports), self._limit):
            # If there is no room for it now, it starts in its turn.
            with contextlib.suppress(OSError):
                self._waiting[check] = self._waiting.get(check) or supervisor.start(check, self._run)

    def take(self, check: str) -> CheckProcess | None:
        """The process of a check, or None if it has to be started now.

        A killed one does not count: most often the system ran out of memory during another check.
        """
        started = self._waiting.pop(check, None)
        if started and started.process.poll() == -signal.SIGKILL:
            started.remove()
            return None
        return started


def preimport_limit(cores: float, memory_bytes: int) -> int:
    """How many processes may import early without taking time or memory from the check that runs."""
    by_memory = memory_bytes // SIZES["preimports.memory_bytes"]
    return min(SIZES["preimports.processes"], int(cores / SIZES["preimports.cores"]), by_memory)


def _cores() -> float:
    """Cores that this process may use, at most a container's quota.

    Source: Linux, "Control Group v2", cpu.max: microseconds of CPU time in each period of so many, or `max`.
    """
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = map(int, _QUOTA.read_text(encoding="ascii").split())
        return min(cores, quota / period)
    return cores


class SuiteStopped(BaseException):
    """A signal requested the suite to end."""


def main(request_path: Path, results_path: Path) -> int:
    """Run the checks of a request; results are written after each, so that those before a crash remain.

    Prints a line of JSON at the begin and the end of each check.
    """
    folder = Path(tempfile.mkdtemp(prefix="envspec-suite-"))
    try:
        return guarded(lambda: _main(request_path, results_path, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _main(request_path: Path, results_path: Path, folder: Path) -> int:
    adopt_orphans()
    for number in TERMINATION_SIGNALS:
        signal.signal(number, _stop)
    try:
        request = SuiteRequest.read(request_path)
        unknown = sorted({*request.checks, *request.required, *request.limits} - set(CHECKS))
        if unknown:
            raise ValueError(f"unknown check {', '.join(map(repr, unknown))}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        print(f"cannot read the request: {type(error).__name__}: {error}", file=sys.stderr)
        return BAD_REQUEST
    try:
        if request.cuda:
            hardware.devices()
    except hardware.NoDriver as error:
        print(error, file=sys.stderr)
        return NO_GPU
    report = _Report(request, results_path)
    try:
        report.write(is_whole=False)
        _run(SuiteRun(request, request_path.absolute(), folder), report)
        report.write(is_whole=True)
    except SuiteStopped:
        report.write(is_whole=False)
        return 128 + signal.SIGTERM
    except OSError as error:
        print(f"the suite cannot continue: {error}", file=sys.stderr)
        return NO_RESULTS
    finally:
        end_all()
        # The guard removes it too: either of the two may be killed.
        shutil.rmtree(folder, ignore_errors=True)
    return COMPLETED


def _run(run: SuiteRun, report: _Report) -> None:
    request, preimports = run.request, Preimports(run)
    # In the table's order, not the request's: coldstart has to be the first, memory the last.
    names = [each for each in CHECKS if each in request.checks]
    for number, name in enumerate(names, 1):
        print(dumps({"begin": name, "limit_s": request.limits.get(name, CHECKS[name].limit_s)}), flush=True)
        # Before its process starts, so that its imports are within its turn.
        began = time.monotonic()
        started = preimports.take(name) or supervisor.start(name, run)
        if not CHECKS[name].alone:
            preimports.start(names[number:])
        peaks = {each.check: each.peak for each in report.outcomes if each.status is Status.PASSED}
        outcome = supervisor.run_turn(started, began, run, peaks, preimports.processes)
        report.outcomes.append(outcome)
        report.write(is_whole=False)
        end = {"end": name, "status": outcome.status, "seconds": outcome.seconds, "reason": outcome.reason}
        print(dumps(end), flush=True)


class _Report:
    """results.json, valid at any time."""

    def __init__(self, request: SuiteRequest, path: Path) -> None:
        self._request = request
        self._path = path
        self._began = time.time()
        self._machine = hardware.describe()
        self.outcomes: list[CheckOutcome] = []

    def write(self, *, is_whole: bool) -> None:
        data = {
            "format": FORMAT,
            "began_s": self._began,
            "seconds": time.time() - self._began,
            "is_whole": is_whole,
            "device": self._request.device,
            "seed": self._request.seed,
            "machine": self._machine,
            "results": self.outcomes,
        }
        part = self._path.with_suffix(".part")
        part.write_text(dumps(data), encoding="utf-8")
        part.replace(self._path)


def stop_at_end_of_stdin() -> None:
    """End as by SIGTERM when the process at the other end of stdin is gone, even if it was killed."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _stop(_number: int, _frame: FrameType | None) -> None:
    # Once: a second signal would interrupt the end of the processes.
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise SuiteStopped
