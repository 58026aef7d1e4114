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
from envspec.conformance.events import Files, Heard, hear
from envspec.conformance.processes import descendants, end_all
from envspec.conformance.request import Order
from envspec.conformance.results import Cause, Finding, Kind, Peak, Result, Status, as_json

#: What to do where neither the check itself nor its row in the table says it.
_HINTS = {
    Cause.CRASHED: "a package that was built for another one crashes like this: see what `family` and `lock` say",
    Cause.OVER_LIMIT: "the end of its log says where every thread stood; --limit NAME=SECONDS gives it more time",
    Cause.OUT_OF_MEMORY: "give the machine or the container more memory, or end what else uses this GPU",
}
#: So many findings stand in a reason; all of them are among the findings.
_TOLD = 8


@dataclass(frozen=True)
class End:
    """How a process ended. status: negative for a signal. is_over: whether it was ended at its limit."""

    status: int
    is_over: bool
    limit_s: float


def judged(name: str, heard: Heard, end: End) -> Result:
    """What came of a check; its times and its log are the caller's to add."""
    result = Result(
        name,
        phases=heard.phases,
        ahead=heard.ahead,
        findings=heard.findings,
        fingerprints=heard.fingerprints,
        ran=heard.ran,
        peak=heard.peak,
    )
    failure = _failure(heard, end)
    if failure:
        result.status = Status.FAILED
        result.cause, result.reason = failure
        of_its_end = _HINTS.get(result.cause, "")
        # What a check says was about what it found, and not about its limit or the machine's memory.
        is_its_own = result.cause not in (Cause.OVER_LIMIT, Cause.OUT_OF_MEMORY)
        result.hint = next(iter(heard.hints), CHECKS[name].advice or of_its_end) if is_its_own else of_its_end
    elif heard.not_run:
        result.reason, result.hint = heard.not_run
    elif not any(each.ok for each in heard.findings):
        # Nothing was held against anything.
        result.reason = next((each.told for each in heard.findings if each.kind is Kind.NOT_RUN), "nothing was tested")
    else:
        result.status = Status.PASSED
    return result


def _failure(heard: Heard, end: End) -> tuple[Cause, str] | None:
    wrong = [each for each in heard.findings if each.ok is False]
    if end.is_over:
        return Cause.OVER_LIMIT, f"still running after {end.limit_s:g} s, {heard.place}"
    if heard.raised:
        cause = Cause.OUT_OF_MEMORY if heard.raised[0] == Cause.OUT_OF_MEMORY.value else Cause.RAISED
        return cause, f"{heard.place}: {heard.raised[1]}"
    if end.status not in (worker.DONE, worker.NOT_RUN) or not (heard.done or heard.not_run):
        return _ended(end.status, heard.place)
    if wrong:
        more = [f"and {len(wrong) - _TOLD} more"] if len(wrong) > _TOLD else []
        return Cause.FOUND, "; ".join([*map(told, wrong[:_TOLD]), *more])
    return None


def _ended(status: int, place: str) -> tuple[Cause, str]:
    if status == -signal.SIGKILL:
        return Cause.OUT_OF_MEMORY, f"killed {place}: most often the system or the container has run out of memory"
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        return Cause.CRASHED, f"crashed {place}, by signal {number} ({name})"
    return Cause.CRASHED, f"ended {place} with status {status} and without a word"


def told(finding: Finding) -> str:
    """A finding in one line."""
    if finding.value is not None and finding.bound is not None:
        unit = f" {finding.unit}" if finding.unit else ""
        text = f"{finding.name}: {finding.value:.3g}{unit} where {finding.relation} {finding.bound:.3g}{unit} is asked"
        return f"{text} ({finding.told})" if finding.told else text
    return f"{finding.name}: {finding.told}" if finding.told else finding.name


#: How much of what a check printed goes into the receipt, in characters of its end.
LOG_CHARACTERS = 6000
#: For the stacks of every thread to be written after the question for them.
_STACKS_S = 0.3


@dataclass(frozen=True)
class Run:
    """What all checks of a run have in common. script: the suite's `run.py`. place: where their folders are made."""

    order: Order
    order_path: Path
    script: Path
    place: Path


@dataclass(frozen=True)
class Begun:
    """The process of a check: it imports what the check needs, and waits. turn: the pipe by which its turn is told."""

    check: str
    files: Files
    process: subprocess.Popen[bytes]
    turn: int

    def drop(self) -> None:
        """Take away what belongs to a process that has ended."""
        os.close(self.turn)
        shutil.rmtree(self.files.folder, ignore_errors=True)


def begin(check: str, run: Run) -> Begun:
    """Start the process of a check, in its turn or before.

    Raises:
        OSError: there is no room for one more process, or for its folder.
    """
    files = Files(Path(tempfile.mkdtemp(prefix="envspec-check-", dir=run.place)))
    files.scratch.mkdir()
    shutil.copyfile(run.order_path, files.order)
    files.events.touch()
    heard, told = os.pipe()
    try:
        return Begun(check, files, _process(check, files, run.script, heard), told)
    except OSError:
        os.close(told)
        raise
    finally:
        os.close(heard)


def attend(begun: Begun, run: Run, peaks: Mapping[str, Peak], waiting: Collection[int]) -> Result:
    """It is this check's turn: see it to its end or to its limit; when this returns, none of its processes is left.

    peaks: of the checks before it. waiting: processes whose turn has not come, which are left alone.
    """
    limit_s = float(run.order.limits.get(begun.check, CHECKS[begun.check].limit_s))
    began = time.monotonic()
    try:
        _tell_turn(begun, began, peaks)
        end = _end(begun.process, limit_s, waiting)
        heard = hear(begun.files.events)
        log = _tail(begun.files.log)
    finally:
        begun.drop()
    result = judged(begun.check, heard, end)
    result.seconds = time.monotonic() - began
    result.limit_s = limit_s
    result.log = log if result.status is Status.FAILED else ""
    return result


def _tell_turn(begun: Begun, at: float, peaks: Mapping[str, Peak]) -> None:
    begun.files.peaks.write_text(json.dumps(as_json(dict(peaks))), encoding="utf-8")
    # Between the lines of the process itself, whose phases end before it or after.
    with begun.files.events.open("a", encoding="utf-8") as events:
        events.write(json.dumps({"turn": at}) + "\n")
    # One that has ended hears no more; what came of it is said in its turn.
    with contextlib.suppress(BrokenPipeError):
        os.write(begun.turn, b"x")


def _process(check: str, files: Files, script: Path, turn: int) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        # Before any CUDA context: cuBLAS chooses its workspace when it is loaded.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # What is tested stays as it is.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(files.scratch),
        # What was compiled at another time says nothing of a compiler here, wherever somebody keeps it.
        "TORCHINDUCTOR_CACHE_DIR": str(files.scratch / "inductor"),
        "TRITON_CACHE_DIR": str(files.scratch / "triton"),
    }
    command = [sys.executable, str(script), "--check", check, str(os.getpid()), str(files.folder), str(turn)]
    with files.log.open("wb") as log:
        return subprocess.Popen(  # noqa: S603 (this Python and this suite)
            command,
            env=environ,
            cwd=files.scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[turn],
        )


def _end(process: subprocess.Popen[bytes], limit_s: float, waiting: Collection[int]) -> End:
    is_over = False
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        is_over = True
        _ask_for_stacks(process.pid)
    finally:
        end_all(but=waiting)
        process.wait()
    return End(process.returncode, is_over, limit_s)


def _ask_for_stacks(root: int) -> None:
    for each in {root, *descendants(root)}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _handles(each, signal.SIGUSR1):
                os.kill(each, signal.SIGUSR1)
    time.sleep(_STACKS_S)


def _handles(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal: one without would be ended by it."""
    try:
        status = Path("/proc", str(process), "status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _tail(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    return text if len(text) <= LOG_CHARACTERS else "[...] " + text[-LOG_CHARACTERS:]
