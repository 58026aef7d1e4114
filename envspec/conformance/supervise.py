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
from collections.abc import Iterator, Mapping
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


def run(name: str, order: Order, order_path: Path, peaks: Mapping[str, Peak], script: Path, place: Path) -> Result:
    """Run one check to its end or to its limit; when this returns, none of its processes is left.

    script: the suite's `run.py`. peaks: of the checks before it. place: where the check's folder is made.
    """
    limit_s = float(order.limits.get(name, CHECKS[name].limit_s))
    began = time.monotonic()
    with _folder(place, order_path, peaks) as files:
        end = _attend(name, files, script, limit_s)
        heard = hear(files.events)
        log = _tail(files.log)
    result = judged(name, heard, end)
    result.seconds = time.monotonic() - began
    result.limit_s = limit_s
    result.log = log if result.status is Status.FAILED else ""
    return result


@contextlib.contextmanager
def _folder(place: Path, order_path: Path, peaks: Mapping[str, Peak]) -> Iterator[Files]:
    folder = Path(tempfile.mkdtemp(prefix="envspec-check-", dir=place))
    try:
        files = Files(folder)
        files.scratch.mkdir()
        shutil.copyfile(order_path, files.order)
        files.peaks.write_text(json.dumps(as_json(dict(peaks))), encoding="utf-8")
        files.events.touch()
        yield files
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _attend(name: str, files: Files, script: Path, limit_s: float) -> End:
    """Start a check's process and see it to its end."""
    environ = {
        **os.environ,
        # Before any CUDA context: cuBLAS chooses its workspace when it is loaded.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # What is tested stays as it is.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(files.scratch),
    }
    command = [sys.executable, str(script), "--check", name, str(os.getpid()), str(files.folder)]
    with files.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 (this Python and this suite)
            command,
            env=environ,
            cwd=files.scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        is_over = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_over = True
            _ask_for_stacks(process.pid)
        finally:
            end_all()
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
