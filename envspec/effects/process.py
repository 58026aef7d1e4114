"""Running other programs: with an environment that is stated whole, and never through a shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program left: its exit status (negative: ended by that signal) and its output."""

    status: int
    stdout: str
    stderr: str


async def run(command: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdin: str = "") -> Finished:
    """Run a program to its end. When the caller is cancelled the program is killed, not left behind.

    Raises:
        FileNotFoundError, PermissionError: the program can't be started.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environ),
            cwd=cwd,
            # A session of its own, so that what it started (a build, say) can be ended with it.
            start_new_session=True,
        )
    )
    try:
        # A start that is cancelled half-way loses the program's end, and asyncio says so on stderr.
        process = await asyncio.shield(starting)
        stdout, stderr = await process.communicate(stdin.encode())
    except asyncio.CancelledError:
        process = await starting
        _kill(process)
        await process.wait()
        raise
    return Finished(process.returncode or 0, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def output_of(command: Sequence[str], cwd: Path) -> bytes:
    """The standard output of a short program such as `git show`.

    Raises:
        FileNotFoundError: there is no such program.
        subprocess.CalledProcessError: it failed; `stderr` has its words.
    """
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True).stdout  # noqa: S603 (no shell; the words are ours)
