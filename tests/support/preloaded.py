"""Runs of envspec that start at once: children of a process that has imported what envspec imports, and run nothing.

Python and the imports take four fifths of a small lock's time. A child gets the words, the environment, the folder and
the streams that a process of its own would have got. What Python reads when it starts (PYTHONHASHSEED, the locale's
encoding) is not repeated: tests of those, and those of the command line itself, start Python anew.
"""

from __future__ import annotations

import array
import atexit
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

#: Forking needs Unix, and macOS's own libraries do not survive it.
IS_POSSIBLE: Final = sys.platform == "linux"
#: Of a child: what its parent was started with, as tests give it to the runs of their users.
_OF_PARENT: Final = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
_ROOT: Final = Path(__file__).parents[2]
_UTF_8: Final = {"LC_ALL": "C.UTF-8"}
#: What other Pythons run, and what runs when it is imported.
_ELSEWHERE: Final = ("envspec.conformance.", "envspec.verifier.", "envspec.__main__")


@dataclass(slots=True)
class Child:
    """A run under way. pid: of a process that leads a session of its own, with the engines that it starts."""

    pid: int
    connection: socket.socket

    def kill(self) -> None:
        """Kill it with all that it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, limit_s: float | None = None) -> int:
        """Its exit status, negative for a signal. limit_s: a run that takes longer is killed, and TimeoutError."""
        with self.connection:
            self.connection.settimeout(limit_s)
            try:
                return int(self.connection.recv(64))
            except TimeoutError:
                self.kill()
                raise


def can_run(environ: Mapping[str, str]) -> bool:
    """Whether a run in this environment is the same in a child: nothing in it is read when Python starts."""
    return IS_POSSIBLE and not any(
        name.startswith(("PYTHON", "LC_", "LANG", "TZ", "LD_")) and name not in _OF_PARENT and _UTF_8.get(name) != value
        for name, value in environ.items()
    )


def start(words: Sequence[str], environ: Mapping[str, str], cwd: Path, stdout: BinaryIO, stderr: BinaryIO) -> Child:
    """Run `envspec WORDS` in a child."""
    return _start(_parent(), words, environ, cwd, stdout, stderr)


def program() -> str:
    """A line of the shell that runs `envspec "$@"` in a child, without what it could read."""
    return f'exec "{sys.executable}" -I -S "{__file__}" run {_parent()} "$@"'


def _start(
    parent: str, words: Sequence[str], environ: Mapping[str, str], cwd: Path, stdout: BinaryIO, stderr: BinaryIO
) -> Child:
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.connect(parent)
    request = json.dumps([list(words), dict(environ), str(cwd)]).encode()
    streams = array.array("i", [stdout.fileno(), stderr.fileno()])
    ours.sendmsg([len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    ours.sendall(request)
    return Child(int(ours.recv(10)), ours)


@cache
def _parent() -> str:
    """The socket of the parent of all runs, which is started for the first of them and ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="envspec-tests-")
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, "serve", path],
        cwd=_ROOT,
        env={"PATH": os.defpath, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return path


def _serve(path: str) -> None:
    import aiohttp  # noqa: F401
    import pip._internal.models.index  # noqa: F401
    import rattler.networking.middleware  # noqa: F401
    import rich.console
    import rich.progress
    import rich.table  # noqa: F401
    import uv  # noqa: F401

    import envspec

    for module in pkgutil.walk_packages(envspec.__path__, "envspec."):
        if not module.name.startswith(_ELSEWHERE):
            import_module(module.name)
    _rehearse()
    # Its own modules are compiled once, for the runs that start Python anew as well; its children write none.
    sys.dont_write_bytecode = True
    # Otherwise a child's first collection copies all of this.
    gc.collect()
    gc.freeze()

    # Of a parent with threads of its own, a child would have their locks and not them.
    assert len(list(Path("/proc/self/task").iterdir())) == 1

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("ready", flush=True)  # noqa: T201
        # Its stdin ends with the process that started it, however that ended.
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    listening.close()
                    _watch(connection)


def _rehearse() -> None:
    """What every run computes alike, half of a small lock's time: tables of facts, forms of specs and locks."""
    from envspec.facts import load_facts
    from envspec.facts.tables import Facts, conda_names
    from envspec.lockfile.document import load
    from envspec.lockfile.header import LOCK_FILE
    from envspec.operations.lock.recheck import compare_lock
    from envspec.operations.lock_state import LockRequest
    from envspec.spec import load_spec

    facts = load_facts()
    for name, value in vars(Facts).items():
        if isinstance(value, cached_property):
            getattr(facts, name)
    conda_names()
    request = LockRequest(_ROOT / "specs" / "llm.toml", _ROOT / "locks" / "llm")
    lock = load((request.directory / LOCK_FILE).read_text(encoding="utf-8"), LOCK_FILE)
    compare_lock(lock, load_spec(request.spec_path, datetime.now(timezone.utc)), facts, request)


def _watch(connection: socket.socket) -> None:
    """Start the run, and tell its pid and its end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, ancillary, *_ = connection.recvmsg(4, socket.CMSG_SPACE(2 * array.array("i").itemsize))
        streams = array.array("i", ancillary[0][2])
        request = b""
        while len(request) < int.from_bytes(head, "big"):
            request += connection.recv(1 << 16)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _run(*json.loads(request), *streams)
        connection.sendall(f"{pid:<10}".encode())
        _, status = os.waitpid(pid, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def _run(words: list[str], environ: dict[str, str], cwd: str, stdout: int, stderr: int) -> None:
    status: Any = 1
    try:
        os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["envspec", *words]
        for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), stdout, stderr)):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww"))
        from envspec.cli.main import main

        main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
        sys.exit()
    child = _start(sys.argv[2], sys.argv[3:], os.environ, Path.cwd(), sys.stdout.buffer, sys.stderr.buffer)
    sys.exit(child.wait() % 256)
