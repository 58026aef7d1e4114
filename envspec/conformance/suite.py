"""Runs all checks and writes results.json.

Imports are most of the time of many checks; they use one core and no GPU. So the processes of later checks import while
another check runs, and do nothing else before their turn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

from envspec.conformance import cputime, driver, hardware, health, supervisor
from envspec.conformance.bounds import SIZES
from envspec.conformance.checks import CHECKS, limit_of
from envspec.conformance.events import is_in_stack
from envspec.conformance.processes import TERMINATION_SIGNALS, adopt_orphans, end_all, guarded
from envspec.conformance.request import DRIVER, SuiteRequest
from envspec.conformance.results import FORMAT, Cause, CheckOutcome, Driver, Status, dumps
from envspec.conformance.supervisor import CheckProcess, SuiteRun

#: Exit statuses: every check was run; unreadable request; files can't be written; neither a GPU nor a driver, and GPUs
#: are requested.
COMPLETED, BAD_REQUEST, NO_RESULTS, NO_GPU = 0, 2, 3, 6
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
#: The folder of the process that watches the GPUs.
_WATCH = "watch"


class Preimports:
    """Processes of later checks, which import before their turn."""

    def __init__(self, run: SuiteRun) -> None:
        self._run = run
        limit = run.request.preimports
        gpus = max(1, len(run.request.gpus))
        self._limit = preimport_limit(_cores(), hardware.memory_bytes() or 0, gpus) if limit is None else limit
        self._waiting: dict[str, list[CheckProcess]] = {}

    @property
    def processes(self) -> Collection[int]:
        """PIDs, with those of processes that last."""
        waiting = chain.from_iterable(self._waiting.values())
        return {*self._run.lasting, *(each.process.pid for each in waiting)}

    def start(self, following: Sequence[str]) -> None:
        """Start the next checks that import anything, up to the limit."""
        count = 0
        for check in following:
            if not CHECKS[check].preimports:
                continue
            count += max(1, len(self._run.request.gpus)) if CHECKS[check].each_gpu else 1
            if count > self._limit:
                break
            # If there is no room for it now, it starts in its turn.
            with contextlib.suppress(OSError):
                self._waiting[check] = self._waiting.get(check) or supervisor.start(check, self._run)

    def take(self, check: str) -> list[CheckProcess]:
        """The processes of a check, none if they have to be started now.

        A killed one does not count: most often the system ran out of memory during another check.
        """
        started = self._waiting.pop(check, [])
        if any(each.process.poll() == -signal.SIGKILL for each in started):
            end_all(exclude=self.processes)
            for each in started:
                each.remove()
            return []
        return started


def preimport_limit(cores: float, memory_bytes: int, gpus: int = 1) -> int:
    """How many processes may import early without taking time or memory from the check that runs."""
    by_memory = memory_bytes // SIZES["preimports.memory_bytes"]
    return min(SIZES["preimports.processes"] * gpus, int(cores / SIZES["preimports.cores"]), by_memory)


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
        unknown = sorted({*request.checks, *request.required, *request.limits} - {*CHECKS, DRIVER})
        if unknown:
            raise ValueError(f"unknown check {', '.join(map(repr, unknown))}")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        print(f"cannot read the request: {type(error).__name__}: {error}", file=sys.stderr)
        return BAD_REQUEST
    report = _Report(request, results_path)
    try:
        # Before the driver is queried: what is known remains if this process is killed.
        report.write(is_whole=False)
        unkillable: tuple[str, ...] = ()
        if request.cuda:
            found, unkillable = driver.query(request, request_path, folder / DRIVER)
            if found.is_absent:
                results_path.unlink()
                print(found.error, file=sys.stderr)
                return NO_GPU
            report.driver = found
            request = replace(request, driver=found, watch=str(folder / _WATCH / health.FILE))
        # The checks read what was found.
        path = folder / "request.json"
        path.write_text(dumps(request), encoding="utf-8")
        watch = _watch(request, path, folder / _WATCH) if not unkillable else ()
        run = SuiteRun(request, path, folder, _bytecode(folder), watch)
        unkillable = (*_run(run, report, unkillable), *end_all())
        report.write(is_whole=True)
        if unkillable:
            # A container ends with its last process: the results are read without waiting for it.
            print(dumps({"unkillable": unkillable}), flush=True)
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


def _watch(request: SuiteRequest, path: Path, folder: Path) -> tuple[int, ...]:
    """Watch the GPUs until the end, for the check `health`; returns the PID. path: of the request."""
    found = request.driver
    if "health" not in request.checks or found is None or found.error or found.nvml_error or found.nvml_missing:
        return ()
    return (health.start_watch(path, folder),)


def _bytecode(folder: Path) -> Path | None:
    """A folder for compiled Python that all processes of the run share, if the stack was installed without it.

    Without one each process compiles torch again: 1.8 s instead of 0.9 s on two cores, torch 2.9, 2026-11.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin or Path(importlib.util.cache_from_source(spec.origin)).exists():
        return None
    return folder / "bytecode"


def _run(run: SuiteRun, report: _Report, unkillable: tuple[str, ...]) -> tuple[str, ...]:
    """Run the checks. unkillable: processes that cannot be killed; returns them with those of the checks."""
    request, preimports = run.request, Preimports(run)
    # In the table's order, not the request's: coldstart has to be the first, memory after those whose peaks it reports.
    names = [each for each in CHECKS if each in request.checks]
    if request.driver and (request.driver.error or unkillable):
        for outcome in _without_driver(request, request.driver, names, unkillable):
            _end(outcome, report)
        return unkillable
    for number, name in enumerate(names, 1):
        if request.cuda and unkillable:
            # It may hold a GPU: whatever uses the driver now may wait for ever, too.
            reason, required = "; ".join(unkillable), name in request.required
            _end(CheckOutcome(name, Status.NOT_RUN, reason=reason, required=required), report)
            continue
        print(dumps({"begin": name, "limit_s": limit_of(name, request)}), flush=True)
        # Before its process starts, so that its imports are within its turn.
        began = time.monotonic()
        started = preimports.take(name) or supervisor.start(name, run)
        if not CHECKS[name].alone:
            preimports.start(names[number:])
        peaks = {each.check: each.peak for each in report.outcomes if each.status is Status.PASSED}
        outcome, left = supervisor.run_turn(name, started, began, run, peaks, preimports.processes)
        unkillable = (*unkillable, *left)
        _end(outcome, report)
    return unkillable


def _end(outcome: CheckOutcome, report: _Report) -> None:
    """Add the outcome of a check to the results, and print its end."""
    report.outcomes.append(outcome)
    report.write(is_whole=False)
    end = {"end": outcome.check, "status": outcome.status, "seconds": outcome.seconds, "reason": outcome.reason}
    print(dumps(end), flush=True)


def _without_driver(
    request: SuiteRequest, found: Driver, names: Sequence[str], unkillable: Sequence[str]
) -> list[CheckOutcome]:
    """Outcomes on a machine whose driver does not work: `device` fails, or the first check without it.

    A driver that was only too slow is no failure.
    """
    blamed = "device" if "device" in names else names[0]
    hint = "see `nvidia-smi` and the system log; on NVSwitch systems the service nvidia-fabricmanager must run"
    others = CheckOutcome("", Status.NOT_RUN, reason=f"NVIDIA's driver does not work: see the check `{blamed}`")
    reason = "; ".join([*filter(None, [found.error, found.nvml_error]), *unkillable])
    failed = CheckOutcome("", Status.FAILED, Cause.FOUND, reason, hint)
    if found.is_late and not unkillable:
        failed = replace(failed, status=Status.NOT_KNOWN, cause=Cause.OUT_OF_TIME)
    outcomes = []
    for name in names:
        outcome = failed if name == blamed else others
        outcomes.append(replace(outcome, check=name, required=name in request.required))
    return outcomes


class _Report:
    """results.json, valid at any time."""

    def __init__(self, request: SuiteRequest, path: Path) -> None:
        self._request = request
        self._path = path
        self._began = time.time()
        self._machine = hardware.describe()
        self._load = cputime.load()
        self._has_torch = is_in_stack(request, "torch")
        self.driver: Driver | None = None
        self.outcomes: list[CheckOutcome] = []

    def write(self, *, is_whole: bool) -> None:
        data = {
            "format": FORMAT,
            "began_s": self._began,
            "seconds": time.time() - self._began,
            "is_whole": is_whole,
            "device": self._request.device,
            "seed": self._request.seed,
            "machine": {**self._machine, **self._gpus(), "load": [self._load, cputime.load()]},
            "has_torch": self._has_torch,
            "results": self.outcomes,
        }
        part = self._path.with_suffix(".part")
        part.write_text(dumps(data), encoding="utf-8")
        part.replace(self._path)

    def _gpus(self) -> dict[str, Any]:
        """What the receipt records of the driver."""
        found = self.driver or Driver()
        values = {"driver": found.version, "cuda_driver": found.cuda, "gpus": found.gpus, "topology": found.topology}
        return {name: value for name, value in values.items() if value}


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
