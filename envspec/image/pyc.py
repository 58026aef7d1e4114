"""Bytecode of the image's modules, made by child processes of the Python that the image has: the same on every machine.

It is bound to its source by hash and not by time, which no layer keeps.
"""

from __future__ import annotations

import contextlib
import posixpath
import struct
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from envspec.effects.confine import Sandbox
from envspec.errors import EnvspecError, UnfitMachine

WORKER: Final = Path(__file__).with_name("pyc_worker.py")
_LENGTH: Final = struct.Struct("<I")
#: How many modules are compiled ahead of whoever takes them: enough to bridge a large library, some MiB at most.
_AHEAD: Final = 256
#: What starting another process is worth, in bytes of source: it takes as long as compiling some 150 KiB.
_PER_WORKER: Final = 256 * 1024
#: The order in constant sets follows from it. `-I` would shut it out: what else that keeps away is left out here.
_ENVIRON: Final = {"PYTHONHASHSEED": "0"}


class WorkerFault(EnvspecError):
    """The Python that compiles ended before its time."""


@dataclass(frozen=True, slots=True)
class Pyc:
    """Who makes bytecode. python: an executable on this machine. version: its exact one, which the bytes follow from.

    jobs: how many processes at once for one layer; no matter for what comes of it. sandbox: confines a Python that is
    not the user's; None: it runs as it is.
    """

    python: Path = field(compare=False)
    version: str
    jobs: int = field(default=1, compare=False)
    sandbox: Sandbox | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """What the bytes follow from, for a layer's key: the Python, and what `pyc_worker.py` makes of a module."""
        return f"bytecode 2, checked, by {self.version}"

    @property
    def tag(self) -> str:
        """What CPython puts into the names of its bytecode: `cpython-311`."""
        major, minor = self.version.split(".")[:2]
        return f"cpython-{major}{minor}"

    def path_of(self, module: str) -> str:
        """Where the bytecode of a module goes: `a/b.py` -> `a/__pycache__/b.cpython-311.pyc`."""
        folder, name = posixpath.split(module)
        return posixpath.join(folder, "__pycache__", f"{name.removesuffix('.py')}.{self.tag}.pyc")


@dataclass(frozen=True, slots=True)
class Module:
    """A module to compile. path: relative to the image's root. size_bytes: its source's. read: gives the source."""

    path: str
    size_bytes: int
    read: Callable[[], bytes]


def compiled(pyc: Pyc, modules: Iterable[Module]) -> Generator[bytes, None, None]:
    """The `.pyc` of each module in turn, empty where it does not compile. Closing it ends the processes.

    Raises:
        UnfitMachine: the Python can't be started, or is another. WorkerFault: it died. What a `read` raises.
    """
    wanted = tuple(modules)
    if not wanted:
        return
    count = max(1, min(pyc.jobs, sum(module.size_bytes for module in wanted) // _PER_WORKER))
    with contextlib.ExitStack() as stack:
        local = threading.local()
        workers = stack.enter_context(_Workers(pyc))
        threads = stack.enter_context(ThreadPoolExecutor(count, thread_name_prefix="envspec-pyc"))

        def compile_one(module: Module) -> bytes:
            if not hasattr(local, "worker"):
                local.worker = workers.start()
            worker: _Worker = local.worker
            return worker.compile(module.path, module.read())

        coming: deque[Future[bytes]] = deque()
        try:
            for module in wanted:
                coming.append(threads.submit(compile_one, module))
                if len(coming) > _AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for each in coming:
                each.cancel()


class _Workers:
    """The processes of one layer; leaving it ends them."""

    def __init__(self, pyc: Pyc) -> None:
        self._pyc = pyc
        self._lock = threading.Lock()
        self._started: list[_Worker] = []

    def start(self) -> _Worker:
        worker = _Worker(self._pyc)
        with self._lock:
            self._started.append(worker)
        worker.greet()
        return worker

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._started:
            worker.end()


class _Worker:
    """One process."""

    def __init__(self, pyc: Pyc) -> None:
        self._pyc = pyc
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed by end())
        words = [str(pyc.python), "-s", "-S", "-B", "-W", "ignore", "-X", "utf8", str(WORKER)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 (a Python that the user names, or a confined one of the lock)
                pyc.sandbox.words(words) if pyc.sandbox else words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_ENVIRON,
                cwd="/",
            )
        except OSError as fault:
            self._errors.close()
            raise UnfitMachine(
                f"{pyc.python} can't be started to compile modules ({fault.strerror})",
                hint="name another Python of that version, or leave bytecode out with --no-pyc",
            ) from fault

    def greet(self) -> None:
        """Refuse a Python whose bytecode the image's would not take."""
        version, _, tag = self._answer("its start").decode().partition(" ")
        if tag != self._pyc.tag:
            raise UnfitMachine(
                f"{self._pyc.python} is Python {version} ({tag or 'no CPython'}), the image has {self._pyc.version}",
                hint="name a Python of that version, or leave bytecode out with --no-pyc",
            )

    def compile(self, path: str, source: bytes) -> bytes:
        name = f"/{path}".encode("utf-8", "surrogateescape")
        try:
            pipe = _pipe(self._process.stdin)
            pipe.write(_LENGTH.pack(len(name)) + name + _LENGTH.pack(len(source)) + source)
            pipe.flush()
        except BrokenPipeError as fault:
            raise self._fault(path) from fault
        return self._answer(path)

    def end(self) -> None:
        """Ends the process; it may be at work for a thread that nobody waits for."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                _pipe(stream).close()

    def _answer(self, path: str) -> bytes:
        pipe = _pipe(self._process.stdout)
        length = pipe.read(_LENGTH.size)
        size = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else 0
        data = pipe.read(size)
        if len(length) < _LENGTH.size or len(data) < size:
            raise self._fault(path)
        return data

    def _fault(self, path: str) -> WorkerFault:
        status = self._process.wait()
        self._errors.seek(0)
        told = self._errors.read()[-500:].decode("utf-8", "replace").strip()
        return WorkerFault(
            f"{self._pyc.python} ended with status {status} at {path}" + (f": {told}" if told else ""),
            hint="is memory short? --no-pyc leaves bytecode out",
        )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("opened as a pipe")
    return stream
