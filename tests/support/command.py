"""The `envspec` command as a user runs it: a process of its own, with an environment that is stated whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run left."""

    status: int
    stdout: str
    stderr: str


def command_line(words: Sequence[str]) -> list[str]:
    """What starts `envspec` with these words, by the interpreter that runs the tests."""
    return [sys.executable, "-m", "envspec", *words]


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Nothing of the tests' own surroundings but where programs and envspec are. variables: set besides, or instead."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "ENVSPEC_CACHE_DIR": str(home / "cache"),
        **variables,
    }


def envspec(cwd: Path, *words: str, environ: Mapping[str, str] | None = None) -> Ran:
    """Run to the end; a run that hangs for a minute is a failure."""
    done = subprocess.run(
        command_line(words), cwd=cwd, env=environ or environment(cwd), capture_output=True, timeout=60, check=False
    )
    return Ran(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def on_a_terminal(
    cwd: Path, *words: str, columns: int = 80, environ: Mapping[str, str] | None = None, **variables: str
) -> str:
    """What somebody at a terminal of that width sees, both streams. variables: set besides those of `environ`."""
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    surroundings = {**(environ or environment(cwd)), "TERM": "xterm-256color", **variables}
    process = subprocess.Popen(command_line(words), cwd=cwd, env=surroundings, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux's word for the end of a terminal
            break
        if not chunk:
            break
        seen += chunk
    os.close(master)
    process.wait(timeout=60)
    return seen.decode("utf-8").replace("\r\n", "\n")
