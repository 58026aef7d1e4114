"""Subprocesses that end with us.

The program ends when this process's stdin does, which is when the run that holds the other end has ended, killed or
not. It is over before this process is, and with it the lock on the folder that both hold. Linux could do that by itself
(prctl), macOS could not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

#: How long a program may take to see that it is to end, in seconds.
_GRACE_S: Final = 10.0
#: The longest line of a program's stdout that is read by lines: an error of rattler's may be one.
_LINE_BYTES: Final = 1 << 20


class StopBy(Enum):
    """How a program learns that it is to end."""

    KILLED = "it is killed, with all of its group"
    STDIN = "by the end of its stdin; it is killed if it takes no notice"


@dataclass(frozen=True, slots=True)
class ParentLink:
    """How a program is bound to this process.

    holds: a descriptor that it inherits: with it the lock on where it writes, or a channel to this process. ending:
    with STDIN it is given some time before it is killed. stdin: written at once; the pipe stays open while this process
    lives, so that the program can see its end.
    """

    holds: int | None = None
    ending: StopBy = StopBy.KILLED
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program left: its exit status (negative: ended by that signal) and its output."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """stdout, by line feeds."""
        return self.stdout.removesuffix("\n").split("\n") if self.stdout else []


async def run(
    command: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdin: str = "", bond: ParentLink | None = None
) -> Finished:
    """Run a program to its end. When the caller is cancelled it is killed with all that it started, not left behind.

    Raises:
        FileNotFoundError, PermissionError: the program can't be started.
    """
    async with _started(command, environ, cwd, bond or ParentLink()) as process:
        stdout, stderr = await process.communicate(stdin.encode())
    return _finished(process, stdout, stderr)


async def run_streaming(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    bond: ParentLink,
    told: Callable[[str], None] = lambda _: None,
) -> Finished:
    """As `run`, for a program that writes where it must not be left half-way, or that is long at it.

    told: called with every line of its stdout.
    """
    async with _started(command, environ, cwd, bond) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 (they are pipes: for the type checker)
        errors = asyncio.ensure_future(process.stderr.read())
        lines = []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(bond.stdin)
            await process.stdin.drain()
        async for line in process.stdout:
            lines.append(line)
            told(line.decode("utf-8", "replace").rstrip("\n"))
        await process.wait()
        process.stdin.close()
        return _finished(process, b"".join(lines), await errors)


@contextlib.asynccontextmanager
async def _started(
    command: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    bond: ParentLink,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that is over when this is left, however that is."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environ),
            cwd=cwd,
            pass_fds=() if bond.holds is None else (bond.holds,),
            # A session of its own: Ctrl-C is for this process alone, which ends the program and all that it started.
            start_new_session=True,
            limit=_LINE_BYTES,
        )
    )
    try:
        # A start that is cancelled half-way loses the program's end, and asyncio says so on stderr.
        yield await asyncio.shield(starting)
    except BaseException:
        process = await starting
        if bond.ending is StopBy.KILLED or not await _has_seen_its_end(process):
            _kill(process)
            await process.wait()
        raise


async def _has_seen_its_end(process: asyncio.subprocess.Process) -> bool:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE_S)
        return True
    return False


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _finished(process: asyncio.subprocess.Process, stdout: bytes, stderr: bytes) -> Finished:
    return Finished(process.returncode or 0, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))


def output_of(command: Sequence[str], cwd: Path) -> bytes:
    """The standard output of a short program such as `git show`.

    Raises:
        FileNotFoundError: there is no such program.
        subprocess.CalledProcessError: it failed; `stderr` has its words.
    """
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True).stdout  # noqa: S603 (no shell; the words are ours)


_ASK: Final = (
    "import importlib.util, json, platform, sys, sysconfig; print(json.dumps([platform.python_version(),"
    "platform.python_implementation(), bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    "int.from_bytes(importlib.util.MAGIC_NUMBER[:2], 'little')]))"
)
_KEPT: Final = ("PATH", "HOME", "SYSTEMROOT")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """path: what to run. version, magic (of its bytecode): what it says of itself."""

    path: Path
    version: str
    magic: int

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


async def probe_interpreter(path: Path, environ: Mapping[str, str]) -> Interpreter | None:
    """What an interpreter says of itself; None where it is no CPython with a lock of its own that runs."""
    variables = {name: environ[name] for name in _KEPT if name in environ}
    try:
        done = await run([str(path), "-I", "-c", _ASK], environ=variables, cwd=Path("/"))
        version, implementation, is_free_threaded, magic = json.loads(done.lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    is_usual = implementation == "CPython" and not is_free_threaded
    return Interpreter(path, version, magic) if is_usual else None


def main() -> int:
    """The program's exit status; 137 when it was ended here."""
    # What it installs are hard links into its cache: whoever may write to a file of an environment would write there.
    os.umask(os.umask(0) | 0o022)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False)  # noqa: S603 (the words are ours)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.stdout.flush()
    # Not `sys.exit`, which would wait for the thread that reads.
    os._exit(main())
