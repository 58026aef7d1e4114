"""Start, time limit and verdict of a check's process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from envspec.conformance import worker
from envspec.conformance.checks import CHECKS
from envspec.conformance.events import CheckEvents, CheckFolder
from envspec.conformance.processes import descendants, end_all, signal_name
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, CheckOutcome, Kind, Peak, Status, as_json

#: Hints if neither the check itself nor its definition has one.
_HINTS = {
    Cause.CRASHED: "see the checks `family` and `lock`: a package that was built for another one crashes like this",
    Cause.OVER_LIMIT: "see the stacks at the end of its log; --limit NAME=SECONDS gives it more time",
    Cause.OUT_OF_MEMORY: "give the machine or the container more memory, or end other programs that use this GPU",
}
#: Findings in a reason; the result lists all of them.
_MAX_IN_REASON = 8
#: Characters of a check's output that the receipt includes, from its end.
LOG_CHARACTERS = 6000
#: For every thread's stack to be written, in seconds.
_STACKS_S = 0.3


@dataclass(frozen=True)
class ProcessEnd:
    """status: negative for a signal. timed_out: it was ended at its limit."""

    status: int
    timed_out: bool
    limit_s: float


def verdict(name: str, events: CheckEvents, end: ProcessEnd) -> CheckOutcome:
    """The outcome of a check, without its times and its log."""
    outcome = CheckOutcome(
        name,
        phases=events.phases,
        preimports=events.preimports,
        findings=events.findings,
        fingerprints=events.fingerprints,
        ran=events.ran,
        peak=events.peak,
    )
    failure = _failure(events, end)
    if failure:
        outcome.status = Status.FAILED
        outcome.cause, outcome.reason = failure
        hint = _HINTS.get(outcome.cause, "")
        # A check's own hints are about its findings, not about its time limit or memory.
        is_own = outcome.cause not in (Cause.OVER_LIMIT, Cause.OUT_OF_MEMORY)
        outcome.hint = next(iter(events.hints), CHECKS[name].advice or hint) if is_own else hint
    elif events.not_run:
        outcome.reason, outcome.hint = events.not_run
    elif not any(each.ok for each in events.findings):
        reasons = (each.detail for each in events.findings if each.kind is Kind.NOT_RUN)
        outcome.reason = next(reasons, "nothing was tested")
    else:
        outcome.status = Status.PASSED
    return outcome


def _failure(events: CheckEvents, end: ProcessEnd) -> tuple[Cause, str] | None:
    if end.timed_out:
        return Cause.OVER_LIMIT, f"still running after {end.limit_s:g} s, {events.position}"
    if events.raised:
        return Cause(events.raised[0]), f"{events.position}: {events.raised[1]}"
    if end.status not in (worker.DONE, worker.NOT_RUN) or not (events.done or events.not_run):
        if end.status == -signal.SIGKILL:
            reason = "most often because the system or container is out of memory"
            return Cause.OUT_OF_MEMORY, f"killed {events.position}: {reason}"
        if end.status < 0:
            return Cause.CRASHED, f"crashed {events.position}, by {signal_name(-end.status)}"
        return Cause.CRASHED, f"exited {events.position} with status {end.status} without a result"
    wrong = [str(each) for each in events.findings if each.ok is False]
    if wrong:
        more = [f"and {len(wrong) - _MAX_IN_REASON} more"] if len(wrong) > _MAX_IN_REASON else []
        return Cause.FOUND, "; ".join([*wrong[:_MAX_IN_REASON], *more])
    return None


@dataclass(frozen=True)
class SuiteRun:
    """What all checks of a run share. script: the suite's `run.py`. folder: for their folders."""

    request: SuiteRequest
    request_path: Path
    script: Path
    folder: Path


@dataclass(frozen=True)
class CheckProcess:
    """A check's process, which imports and then waits. turn: descriptor of the pipe that starts its turn."""

    check: str
    folder: CheckFolder
    process: subprocess.Popen[bytes]
    turn: int

    def remove(self) -> None:
        """Remove the files of a process that has ended."""
        os.close(self.turn)
        shutil.rmtree(self.folder.path, ignore_errors=True)


def start(check: str, run: SuiteRun) -> CheckProcess:
    """Start the process of a check, in its turn or before.

    Raises:
        OSError: no more processes or files can be created.
    """
    folder = CheckFolder(Path(tempfile.mkdtemp(prefix="envspec-check-", dir=run.folder)))
    folder.scratch.mkdir()
    shutil.copyfile(run.request_path, folder.request)
    folder.events.touch()
    reader, writer = os.pipe()
    try:
        return CheckProcess(check, folder, _popen(check, folder, run.script, reader), writer)
    except OSError:
        os.close(writer)
        raise
    finally:
        os.close(reader)


def run_turn(started: CheckProcess, run: SuiteRun, peaks: Mapping[str, Peak], waiting: Collection[int]) -> CheckOutcome:
    """Run a check until it ends or reaches its limit; when this returns, none of its processes is left.

    peaks: of the checks before it. waiting: PIDs of checks whose turn is later; they keep running.
    """
    limit_s = float(run.request.limits.get(started.check, CHECKS[started.check].limit_s))
    began = time.monotonic()
    folder = started.folder
    try:
        folder.peaks.write_text(json.dumps(as_json(dict(peaks))), encoding="utf-8")
        # Between the events of the process itself: its phases end before the turn or after.
        with folder.events.open("a", encoding="utf-8") as events:
            events.write(json.dumps({"turn": began}) + "\n")
        # A process that has ended reads no more; its outcome is reported in its turn.
        with contextlib.suppress(BrokenPipeError):
            os.write(started.turn, b"x")
        end = _wait(started.process, limit_s, waiting)
        outcome = verdict(started.check, CheckEvents.read(folder.events), end)
        if outcome.status is Status.FAILED:
            log = folder.log.read_text(encoding="utf-8", errors="replace").strip()
            outcome.log = log if len(log) <= LOG_CHARACTERS else "[...] " + log[-LOG_CHARACTERS:]
    finally:
        started.remove()
    outcome.seconds = time.monotonic() - began
    outcome.limit_s = limit_s
    return outcome


def _popen(check: str, folder: CheckFolder, script: Path, turn: int) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        # Before any CUDA context: cuBLAS chooses its workspace when it is loaded.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # The tested environment is not changed.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder.scratch),
        # Code compiled in an earlier run would hide a missing compiler.
        "TORCHINDUCTOR_CACHE_DIR": str(folder.scratch / "inductor"),
        "TRITON_CACHE_DIR": str(folder.scratch / "triton"),
    }
    command = [sys.executable, str(script), "--check", check, str(os.getpid()), str(folder.path), str(turn)]
    with folder.log.open("wb") as log:
        return subprocess.Popen(  # noqa: S603 (this Python and this suite)
            command,
            env=environ,
            cwd=folder.scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[turn],
        )


def _wait(process: subprocess.Popen[bytes], limit_s: float, waiting: Collection[int]) -> ProcessEnd:
    timed_out = False
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        _request_stacks(process.pid)
    finally:
        end_all(exclude=waiting)
        process.wait()
    return ProcessEnd(process.returncode, timed_out, limit_s)


def _request_stacks(root: int) -> None:
    for each in {root, *descendants(root)}:
        with contextlib.suppress(OSError):
            # A process without a handler would be ended by the signal.
            status = Path("/proc", str(each), "status").read_text(encoding="utf-8")
            caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
            if int(caught, 16) >> (signal.SIGUSR1 - 1) & 1:
                os.kill(each, signal.SIGUSR1)
    time.sleep(_STACKS_S)
