"""Running the programs that write into an environment that is being built."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: How long a program may take to see that it is to end, in seconds.
_GRACE_S: Final = 10.0
#: The longest line of a program's stdout: an error of rattler's may be one.
_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """status: the exit status, negative for a signal's number. lines: what it wrote to stdout, errors: to stderr."""

    status: int
    lines: tuple[str, ...]
    errors: str


@dataclass(frozen=True, slots=True)
class Program:
    """A command with its whole environment.

    holds: a descriptor that it inherits, and with it the lock on the site; such a program ends when its stdin does.
    """

    command: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    holds: int | None = None


async def run(program: Program, *, stdin: bytes = b"", told: Callable[[str], None] = lambda _: None) -> Ended:
    """Run a program to its end; when the caller is cancelled it is killed with all that it started.

    stdin: written at once; the pipe stays open while this process lives, so that the program can see its end.
    told: called with every line of its stdout.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *program.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(program.environ),
            cwd=program.cwd,
            pass_fds=() if program.holds is None else (program.holds,),
            # Ctrl-C is for this process alone, which ends the program; its own children end with it.
            start_new_session=True,
            limit=_LINE_BYTES,
        )
    )
    try:
        process = await asyncio.shield(starting)
        return await _attend(process, stdin, told)
    except BaseException:
        await _end(await starting, program)
        raise


async def _end(process: asyncio.subprocess.Process, program: Program) -> None:
    """End it with all that it started; nothing of it writes any more when this returns."""
    if program.holds is not None and process.stdin is not None:
        process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)
            return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _attend(process: asyncio.subprocess.Process, stdin: bytes, told: Callable[[str], None]) -> Ended:
    assert process.stdin and process.stdout and process.stderr  # noqa: S101 (they are pipes: for the type checker)
    errors = asyncio.ensure_future(process.stderr.read())
    lines = []
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(stdin)
        await process.stdin.drain()
    async for raw in process.stdout:
        line = raw.decode("utf-8", "replace").rstrip("\n")
        lines.append(line)
        told(line)
    status = await process.wait()
    process.stdin.close()
    return Ended(status, tuple(lines), (await errors).decode("utf-8", "replace"))
