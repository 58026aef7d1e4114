"""One check in a process of its own: a crash, a hang or too much memory is that check's result, not the suite's end."""

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

from envspec.conformance.checks import CHECKS
from envspec.conformance.files import Files
from envspec.conformance.heard import hear
from envspec.conformance.judgement import End, judged
from envspec.conformance.order import Order
from envspec.conformance.processes import descendants, end_all
from envspec.conformance.values import (
    Peak,
    Result,
    Status,
    as_json,
)

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
