"""Subprocesses that end with their parent.

Run as a script, this file starts a program and kills it when its own stdin ends, which is when the run at the other end
has ended, killed or not. The program ends before this process does, and with it the lock on the folder that both hold.
Linux could do that by itself (prctl), macOS could not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

#: How long a program may take to stop after the end of its stdin, in seconds.
_GRACE_S: Final = 10.0
#: The longest line of stdout in `run_streaming`: an error of rattler may be one.
_LINE_BYTES: Final = 1 << 20


class StopBy(Enum):
    KILL = "it is killed, with its process group"
    STDIN = "its stdin ends; it is killed if it does not stop"


@dataclass(frozen=True, slots=True)
class ParentLink:
    """How a program is connected to this process.

    inherited_fd: a descriptor that it inherits: with it the lock on its folder, or a channel to this process.
    stdin: written at once; the pipe stays open while this process lives.
    """

    inherited_fd: int | None = None
    stop_by: StopBy = StopBy.KILL
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Finished:
    """A program's exit status (negative: the signal that killed it) and output."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """stdout, split at line feeds."""
        return self.stdout.removesuffix("\n").split("\n") if self.stdout else []


async def run(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    stdin: str = "",
) -> Finished:
    """Run a program to its end. If the caller is cancelled, it is killed with its process group.

    Raises:
        FileNotFoundError, PermissionError: the program can't be started.
    """
    async with _started(command, environ, cwd, ParentLink()) as process:
        stdout, stderr = await process.communicate(stdin.encode())
    return _finished(process, stdout, stderr)


async def run_streaming(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    parent: ParentLink,
    on_line: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Like `run`, for long programs and those that must not be stopped halfway. on_line: gets each line of stdout."""
    async with _started(command, environ, cwd, parent) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101 (they are pipes: for the type checker)
        stderr = asyncio.ensure_future(process.stderr.read())
        lines = []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(parent.stdin)
            await process.stdin.drain()
        async for line in process.stdout:
            lines.append(line)
            on_line(line.decode("utf-8", "replace").rstrip("\n"))
        await process.wait()
        process.stdin.close()
        return _finished(process, b"".join(lines), await stderr)


@contextlib.asynccontextmanager
async def _started(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, parent: ParentLink
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that has ended when the context does."""
    pipe = asyncio.subprocess.PIPE
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(environ),
            cwd=cwd,
            pass_fds=() if parent.inherited_fd is None else (parent.inherited_fd,),
            # A session of its own: Ctrl-C is for this process only, which then stops the program and its children.
            start_new_session=True,
            limit=_LINE_BYTES,
        )
    )
    try:
        # A start that is cancelled halfway loses the program's end, and asyncio reports it on stderr.
        yield await asyncio.shield(starting)
    except BaseException:
        process = await starting
        if parent.stop_by is StopBy.KILL or not await _stopped_by_stdin(process):
            _kill(process)
            await process.wait()
        raise


async def _stopped_by_stdin(process: asyncio.subprocess.Process) -> bool:
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
    """stdout of a short program such as `git show`.

    Raises:
        FileNotFoundError: there is no such program.
        subprocess.CalledProcessError: it failed; `stderr` says why.
    """
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True).stdout  # noqa: S603 (no shell; the arguments are ours)


_PROBE: Final = (
    "import importlib.util, json, platform, sys, sysconfig; print(json.dumps([platform.python_version(),"
    "sys.executable, platform.python_implementation(), bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    "int.from_bytes(importlib.util.MAGIC_NUMBER[:2], 'little')]))"
)
_PROBE_VARIABLES: Final = ("PATH", "HOME", "SYSTEMROOT")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython. magic: of its bytecode."""

    path: Path
    version: str
    magic: int

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])


async def probe_interpreter(path: Path, environ: Mapping[str, str]) -> Interpreter | None:
    """Version and magic of an interpreter; None if it does not run or is not a CPython with a GIL."""
    variables = {name: environ[name] for name in _PROBE_VARIABLES if name in environ}
    try:
        done = await run([str(path), "-I", "-c", _PROBE], environ=variables, cwd=Path("/"))
        version, executable, implementation, is_free_threaded, magic = json.loads(done.lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    is_supported = implementation == "CPython" and not is_free_threaded
    # A version manager's shim runs only with its variables and settings; what it starts runs everywhere.
    return Interpreter(Path(executable or path), version, magic) if is_supported else None


def local_glibc() -> tuple[int, int] | None:
    """This machine's glibc; None if it has another C library."""
    name, version = platform.libc_ver()
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if name == "glibc" and found else None


def bound_to_parent() -> int:
    """Run the program in `sys.argv` until it or this stdin ends; its exit status, 137 if it was killed."""
    # Installed files are hard links into its cache: write access to an environment would be write access to the cache.
    os.umask(os.umask(0) | 0o022)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False)  # noqa: S603 (the arguments are ours)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.stdout.flush()
    # Not `sys.exit`, which would wait for the reading thread.
    os._exit(bound_to_parent())
