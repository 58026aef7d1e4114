"""Run one command and say what it cost: wall time, CPU time and peak memory of its whole process tree. Linux only."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Often enough to see the peak of a resolver (a second or more), seldom enough not to slow it down.
_SAMPLE_S = 0.02
#: At the start more often, for commands that live shorter than that.
_FIRST_SAMPLE_S = 0.004
_FIRST_SAMPLES = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost.

    wall_s, cpu_s: seconds; CPU is user and system, of the command and of all children it waited for.
    peak_bytes: largest sum of the resident sets of the tree, sampled; pages that two processes share count twice.
    exit_code: None where the limit ended it.
    said: the last lines of stderr, or of stdout where stderr is empty.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    exit_code: int | None
    said: str

    @property
    def is_done(self) -> bool:
        return self.exit_code == 0


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    limit_s: float,
    stdout: Path | None = None,
) -> Cost:
    """Run a command to its end or its limit, then end what it left behind of its process group.

    stdout: a file that takes the standard output, where that is the tool's result.
    """
    with tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as out:
        target = out if stdout is None else stdout.open("wb")
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=err,
            start_new_session=True,
        )
        peak_bytes, is_ended = _watch(process.pid, started + limit_s)
        if not is_ended:
            _end_group(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        _end_group(process.pid)
        if stdout is not None:
            target.close()
        said = _tail(err) or _tail(out)
    code = process.returncode if is_ended else None
    return Cost(wall_s, used.ru_utime + used.ru_stime, peak_bytes, code, said)


def _watch(pid: int, until: float) -> tuple[int, bool]:
    """Sample the tree until it ends or `until` (perf_counter) has come: the peak, and whether it ended."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    peak_bytes = samples = 0
    try:
        # Waiting comes first: before its exec the child still shows this process's own memory.
        while time.perf_counter() < until:
            if poll.poll((_FIRST_SAMPLE_S if samples < _FIRST_SAMPLES else _SAMPLE_S) * 1000):
                return peak_bytes, True
            peak_bytes = max(peak_bytes, _tree_bytes(pid))
            samples += 1
    finally:
        os.close(ended)
    return peak_bytes, False


def _tree_bytes(pid: int) -> int:
    """Resident bytes of a process and its descendants at this moment; one that ends meanwhile counts as nothing."""
    total = 0
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        try:
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue
    return total


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tail(stream: IO[bytes], lines: int = 12) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 4000))
    return "\n".join(stream.read().decode(errors="replace").strip().splitlines()[-lines:])
