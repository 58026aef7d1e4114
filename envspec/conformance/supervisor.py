"""Start, time limit and verdict of a check's process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from envspec.conformance import isolation
from envspec.conformance.checks import CHECKS
from envspec.conformance.events import EventWriter, ProcessEvents
from envspec.conformance.processes import RUN
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Cause, CheckOutcome, Kind, Peak, Status, dumps

#: Hints if neither the check itself nor its definition has one.
_HINTS = {
    Cause.CRASHED: "see the checks `family` and `lock`: a package that was built for another one crashes like this",
    Cause.OVER_LIMIT: "see the stacks at the end of its log; --limit NAME=SECONDS gives it more time",
    Cause.OUT_OF_MEMORY: "give the machine or the container more memory, or end other programs that use this GPU",
}
#: Characters of a check's output that the receipt includes, from its end.
LOG_CHARACTERS = 6000


def verdict(name: str, events: ProcessEvents, exited: int, over_limit_s: float | None = None) -> CheckOutcome:
    """The outcome of a check, without its times and its log.

    exited: its process' status, negative for a signal. over_limit_s: the limit at which it was ended.
    """
    status, cause, reason, hint = Status.NOT_RUN, None, "", ""
    failed = isolation.failure(events, exited, over_limit_s)
    if failed:
        status = Status.FAILED
        cause, reason = failed
        hint = _HINTS.get(cause, "")
        # A check's own hints are about its findings, not about its time limit or memory.
        if cause not in (Cause.OVER_LIMIT, Cause.OUT_OF_MEMORY):
            hint = next(iter(events.hints), CHECKS[name].advice or hint)
    elif events.not_run:
        reason, hint = events.not_run
    elif any(each.ok for each in events.findings):
        status = Status.PASSED
    else:
        reasons = (each.detail for each in events.findings if each.kind is Kind.NOT_RUN)
        reason = next(reasons, "nothing was tested")
    return CheckOutcome(
        name,
        status,
        cause,
        reason,
        hint,
        phases=tuple(events.phases),
        preimports=tuple(events.preimports),
        findings=tuple(events.findings),
        fingerprints=tuple(events.fingerprints),
        ran=events.ran,
        peak=events.peak,
    )


@dataclass(frozen=True)
class SuiteRun:
    """What all checks of a run share. folder: for their folders."""

    request: SuiteRequest
    request_path: Path
    folder: Path


@dataclass(frozen=True)
class CheckProcess:
    """A check's process, which imports and then waits. turn: the pipe that starts its turn."""

    check: str
    folder: Path
    process: subprocess.Popen[bytes]
    turn: BinaryIO

    def remove(self) -> None:
        """Remove the files of a process that has ended."""
        self.turn.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(check: str, run: SuiteRun) -> CheckProcess:
    """Start the process of a check, in its turn or before.

    Raises:
        OSError: no more processes or files can be created.
    """
    folder = Path(tempfile.mkdtemp(prefix="envspec-check-", dir=run.folder))
    (folder / isolation.SCRATCH).mkdir()
    (folder / isolation.EVENTS).touch()
    reader, writer = os.pipe()
    try:
        return CheckProcess(check, folder, _popen(check, folder, run, reader), os.fdopen(writer, "wb", buffering=0))
    except OSError:
        os.close(writer)
        raise
    finally:
        os.close(reader)


def run_turn(
    started: CheckProcess, began: float, run: SuiteRun, peaks: Mapping[str, Peak], waiting: Collection[int]
) -> CheckOutcome:
    """Run a check until it ends or reaches its limit; when this returns, none of its processes is left.

    began: when its turn began, in seconds of the monotonic clock. peaks: of the checks before it. waiting: PIDs of
    checks whose turn is later; they keep running.
    """
    limit_s = float(run.request.limits.get(started.check, CHECKS[started.check].limit_s))
    log = ""
    try:
        # Between the events of the process itself: its phases end before the turn or after.
        with (started.folder / isolation.EVENTS).open("a", encoding="utf-8") as lines:
            EventWriter(lines).write("turn", began)
        # A process that has ended reads no more; its outcome is reported in its turn.
        with contextlib.suppress(BrokenPipeError):
            started.turn.write(dumps(peaks).encode())
        started.turn.close()
        in_time = isolation.wait(started.process, limit_s, waiting)
        events = ProcessEvents.read(started.folder / isolation.EVENTS)
        outcome = verdict(started.check, events, started.process.returncode, None if in_time else limit_s)
        if outcome.status is Status.FAILED:
            log = (started.folder / isolation.LOG).read_text(encoding="utf-8", errors="replace").strip()
            log = log if len(log) <= LOG_CHARACTERS else "[...] " + log[-LOG_CHARACTERS:]
    finally:
        started.remove()
    required = started.check in run.request.required
    return replace(outcome, required=required, seconds=time.monotonic() - began, limit_s=limit_s, log=log)


def _popen(check: str, folder: Path, run: SuiteRun, turn: int) -> subprocess.Popen[bytes]:
    scratch = folder / isolation.SCRATCH
    environ = {
        **os.environ,
        # Before any CUDA context: cuBLAS chooses its workspace when it is loaded.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # The tested environment is not changed.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        # Code compiled in an earlier run would hide a missing compiler.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
    }
    command = [sys.executable, str(RUN), "--check", check, str(os.getpid())]
    with (folder / isolation.LOG).open("wb") as log:
        return subprocess.Popen(  # noqa: S603 (this Python and this suite)
            [*command, str(run.request_path), str(folder), str(turn)],
            env=environ,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[turn],
        )
