"""Bytecode of an image's modules, and the Python that compiles it.

`.pyc` files are checked against the hash of their source, since layers have no times. Their bytes follow from Python's
exact version: patch releases have changed the compiler's output.

Source: python-build-standalone, `docs/distributions.rst`: an `install_only` archive has all its files below `python/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from msgspec import Struct

from envspec.context import Context
from envspec.errors import EnvspecError, NetworkError, UnfitMachine, UsageError
from envspec.fetch.types import WrongArchive
from envspec.image.layers.threads import Cancelled
from envspec.image.layers.types import Entry, InMemory
from envspec.io.archives import parents_of
from envspec.io.cache import as_cache_error
from envspec.io.confine import NoConfinement, Sandbox, bubblewrap
from envspec.io.file_locks import lock_file
from envspec.io.process import Interpreter, probe_interpreter
from envspec.models import Platform, Python
from envspec.names import is_whiteout

WORKER: Final = Path(__file__).with_name("bytecode_worker.py")
#: The top folder of a standalone build's archive.
TOP: Final = "python"
_LENGTH: Final = struct.Struct("<I")
#: Modules compiled ahead of their consumer: enough for a large library, a few MiB at most.
_AHEAD: Final = 256
_POLL_S: Final = 0.1
#: How long a process that is to end may still be starting.
_START_S: Final = 2.0
#: Bytes of source that are worth another process: it starts in the time of compiling some 150 KiB.
_PER_WORKER: Final = 256 * 1024
#: Fixes the order in constant sets. `-I` would ignore it, so the worker's command has that option's other parts.
_ENVIRON: Final = {"PYTHONHASHSEED": "0"}
#: Of each series, from its first release on. Source: CPython, Lib/importlib/_bootstrap_external.py of 3.9 to 3.13.
_MAGIC: Final = {"3.9": 3425, "3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571}


class CompilerFailed(EnvspecError, code="bytecode-failed"):
    """The compiling Python ended early."""


@dataclass(frozen=True, slots=True)
class PycCompiler:
    """A Python that compiles bytecode. version: exact; it alone determines the bytes.

    jobs: processes per layer. sandbox: for a Python that is not the user's own. cancel: once set, what compiles ends.
    """

    python: Path = field(compare=False)
    version: str
    jobs: int = field(default=1, compare=False)
    sandbox: Sandbox | None = field(default=None, compare=False)
    cancel: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def key(self) -> str:
        """For a layer's key: everything that determines the bytes."""
        return f"bytecode 3, checked, by {self.version}"

    @property
    def tag(self) -> str:
        """CPython's cache tag, such as `cpython-311`."""
        major, minor = self.version.split(".")[:2]
        return f"cpython-{major}{minor}"

    def path_of(self, module: str) -> str:
        """`a/b.py` -> `a/__pycache__/b.cpython-311.pyc`."""
        folder, name = posixpath.split(module)
        return posixpath.join(folder, "__pycache__", f"{name.removesuffix('.py')}.{self.tag}.pyc")


class SourceModule(Struct, frozen=True):
    """path: relative to the image's root. size_bytes: of the source."""

    path: str
    size_bytes: int
    read: Callable[[], bytes]


def compile_modules(pyc: PycCompiler, modules: Iterable[SourceModule]) -> Generator[bytes, None, None]:
    """Yield each module's `.pyc`, empty if it does not compile. Closing ends the processes.

    Raises:
        UnfitMachine: the Python can't be started, or has another version. CompilerFailed: it died. Cancelled.
    """
    sources = tuple(modules)
    if not sources:
        return
    count = max(1, min(pyc.jobs, sum(module.size_bytes for module in sources) // _PER_WORKER))
    pending: deque[Future[bytes]] = deque()
    workers = _Workers(pyc)
    with contextlib.closing(workers), ThreadPoolExecutor(count, thread_name_prefix="envspec-pyc") as threads:
        try:
            for module in sources:
                pending.append(threads.submit(workers.compile, module))
                if len(pending) > _AHEAD:
                    yield _result(pending.popleft(), pyc.cancel)
            while pending:
                yield _result(pending.popleft(), pyc.cancel)
        finally:
            for each in pending:
                each.cancel()
            # Before the threads are waited for: each waits for its process.
            workers.kill()


def _result(compiled: Future[bytes], cancel: threading.Event) -> bytes:
    while not compiled.done():
        if cancel.is_set():
            raise Cancelled
        wait((compiled,), _POLL_S)
    return compiled.result()


def with_bytecode(
    pyc: PycCompiler | None,
    entries: Iterable[Entry],
    modules: Iterable[SourceModule],
    compiled: dict[str, str],
    own: Mapping[str, Entry],
) -> Iterator[Entry]:
    """The entries of a layer, each module followed by its bytecode. modules: in the order of their entries.

    compiled: receives each module's path -> that of its bytecode. own: bytecode of the packages themselves, which is
    only used for modules that do not compile.

    Raises:
        As `compile_modules`.
    """
    if pyc is None:
        yield from entries
        return
    sources = tuple(modules)
    paths = {module.path: pyc.path_of(module.path) for module in sources}
    replaced = set(paths.values())
    with contextlib.closing(compile_modules(pyc, sources)) as bytecode:
        for entry in entries:
            if entry.path in replaced:
                continue
            yield entry
            if (path := paths.get(entry.path)) is None:
                continue
            if data := next(bytecode):
                compiled[entry.path] = path
                yield Entry(path, 0o644, data=InMemory(data))
            elif path in own:
                yield own[path]


class _Workers:
    """A process for each thread that compiles."""

    def __init__(self, pyc: PycCompiler) -> None:
        self._pyc = pyc
        self._of_thread = threading.local()
        self._all: list[_Worker] = []
        self._is_ending = False
        self._lock = threading.Lock()

    def compile(self, module: SourceModule) -> bytes:
        if not hasattr(self._of_thread, "worker"):
            with self._lock:
                if self._is_ending:
                    raise Cancelled
                worker = _Worker(self._pyc)
                self._all.append(worker)
            worker.check_version()
            self._of_thread.worker = worker
        data: bytes = self._of_thread.worker.compile(module.path, module.read())
        return data

    def kill(self) -> None:
        with self._lock:
            self._is_ending = True
        for worker in self._all:
            worker.kill()

    def close(self) -> None:
        for worker in self._all:
            worker.close()


class _Worker:
    """One process."""

    def __init__(self, pyc: PycCompiler) -> None:
        self._pyc = pyc
        self._has_started = threading.Event()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        command: Sequence[str] = [str(pyc.python), "-s", "-S", "-B", "-W", "ignore", "-X", "utf8", str(WORKER)]
        if pyc.sandbox:
            command = pyc.sandbox.command_for(command)
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the user's own Python, or a confined one of the lock)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_ENVIRON,
                cwd="/",
            )
        except OSError as error:
            self._errors.close()
            raise UnfitMachine(
                f"{pyc.python} can't be started to compile modules ({error.strerror})",
                hint="use another Python of that version, or omit bytecode with --no-compile-bytecode",
            ) from error

        self._stdin, self._stdout = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def check_version(self) -> None:
        """Refuse a Python whose bytecode the image's Python can't load."""
        try:
            version, _, tag = self._answer("its start").decode().partition(" ")
        finally:
            self._has_started.set()
        if tag != self._pyc.tag:
            raise UnfitMachine(
                f"{self._pyc.python} is Python {version} ({tag or 'no CPython'}), the image has {self._pyc.version}",
                hint="use a Python of that version, or omit bytecode with --no-compile-bytecode",
            )

    def compile(self, path: str, source: bytes) -> bytes:
        name = f"/{path}".encode("utf-8", "surrogateescape")
        try:
            self._stdin.write(_LENGTH.pack(len(name)) + name + _LENGTH.pack(len(source)) + source)
            self._stdin.flush()
        except BrokenPipeError as error:
            raise self._failure(path) from error
        return self._answer(path)

    def kill(self) -> None:
        """End the process, even if it is still compiling."""
        # bubblewrap that is killed before it has tied its child to its own end leaves it, with our end of the pipe.
        self._has_started.wait(_START_S)
        self._process.kill()

    def close(self) -> None:
        """Free what the killed process leaves."""
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _answer(self, path: str) -> bytes:
        length = self._stdout.read(_LENGTH.size)
        if len(length) < _LENGTH.size:
            raise self._failure(path)
        (size,) = _LENGTH.unpack(length)
        data = self._stdout.read(size)
        if len(data) < size:
            raise self._failure(path)
        return data

    def _failure(self, path: str) -> CompilerFailed:
        status = self._process.wait()
        self._errors.seek(0)
        output = self._errors.read()[-500:].decode("utf-8", "replace").strip()
        what = f"{self._pyc.python} ended with status {status} at {path}"
        if output:
            what += f": {output}"
        return CompilerFailed(
            what, hint="check that the machine has enough memory, or omit bytecode with --no-compile-bytecode"
        )


class BadPython(EnvspecError, exit_code=5, code="bad-python-build"):
    """A standalone build with an unexpected or unsafe layout."""

    def __init__(self, archive: str, what: str) -> None:
        super().__init__(
            f"{archive}: {what}",
            hint="select another patch release of Python, and report it: the file has the lock's hash, so it was "
            "published like this",
        )


@contextlib.contextmanager
def open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open a standalone build. Raises BadPython: it is damaged. OSError: it can't be read."""
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError) as error:
        raise BadPython(archive.name, f"it can't be unpacked ({error})") from error


def python_members(archive: Path, tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """All files and links by their path below `python/`, in the archive's order.

    Raises:
        BadPython: a path or a link out of the archive, a duplicate path, or another kind of member.
    """
    paths: set[str] = set()
    links: set[str] = set()
    for info in tar:
        path = _inside(archive, info.name)
        if info.isdir():
            continue
        if not path:
            raise BadPython(archive.name, f"{info.name!r} is in it, which is not below {TOP}/")
        if path in paths:
            raise BadPython(archive.name, f"{info.name!r} is in it twice")
        if not links.isdisjoint(parents_of(path)):
            raise BadPython(archive.name, f"{info.name!r} is behind a link of it")
        paths.add(path)
        if info.issym():
            links.add(path)
            _inside(archive, posixpath.join(posixpath.dirname(info.name), info.linkname), info)
        elif info.islnk():
            if _inside(archive, info.linkname, info) not in paths:
                raise BadPython(archive.name, f"{info.name!r} is a link to {info.linkname!r}, which is not before it")
        elif not info.isfile():
            raise BadPython(archive.name, f"{info.name!r} is not a file, folder or link")
        yield path, info


def read_content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    return file.read() if file is not None else b""


def mode_of(info: tarfile.TarInfo) -> int:
    return 0o755 if info.mode & 0o111 else 0o644


def _inside(archive: Path, name: str, link: tarfile.TarInfo | None = None) -> str:
    """The path below `python/` of a member's name, or of the target of `link`."""
    parts = name.rstrip("/").split("/")
    if link is not None:
        parts = posixpath.normpath(name).split("/")
    elif is_whiteout(name):
        raise BadPython(archive.name, f"{name!r} is in it, which would hide files of an image's lower layers")
    is_outside = name.startswith("/") or parts[0] != TOP or not {"", ".", ".."}.isdisjoint(parts) or "\\" in name
    if is_outside or (link is not None and link.linkname.startswith("/")):
        what = f"the link {link.name!r} leads to {link.linkname!r}" if link else f"{name!r} is in it"
        raise BadPython(archive.name, f"{what}, which is not below {TOP}/")
    return "/".join(parts[1:])


class PythonBuild(Struct, frozen=True):
    """A Python that can be fetched. folder: in the cache, by its archive's SHA-256. program: its interpreter, below it.

    unpack: unpacks the archive into an empty folder. is_known: listed in envspec's own data, not only in a lock.
    """

    folder: Path
    program: str
    fetch: Callable[[], Awaitable[Path]]
    unpack: Callable[[Path, Path], Awaitable[None]]
    is_known: bool = False


def standalone_build(
    cache: Path, series: str, sha256: str, fetch: Callable[[], Awaitable[Path]], *, is_known: bool
) -> PythonBuild:
    """A standalone build, by its archive's hash."""
    return PythonBuild(cache / "pythons" / sha256, f"{TOP}/bin/python{series}", fetch, _unpack_in_thread, is_known)


async def unpacked_build(build: PythonBuild) -> Path:
    """The interpreter of a build; fetches and unpacks it if necessary.

    Raises:
        NetworkError, BadPython: it can't be fetched or unpacked. CacheError: the cache can't be written.
    """
    target = build.folder
    if not (target / build.program).exists():
        archive = await build.fetch()
        with as_cache_error(target.parent), contextlib.ExitStack() as undo:
            partial = target.with_name(f"{target.name}.partial")
            lock = target.with_name(f"{target.name}.lock")
            undo.callback(os.close, await lock_file(lock))
            undo.callback(lock.unlink)
            undo.callback(shutil.rmtree, partial, ignore_errors=True)
            if not (target / build.program).exists():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                await build.unpack(archive, partial)
                if not (partial / build.program).exists():
                    raise BadPython(archive.name, f"it has no {build.program}")
                partial.replace(target)
    return target / build.program


async def _unpack_in_thread(archive: Path, folder: Path) -> None:
    await asyncio.to_thread(_unpack, archive, folder)


def _unpack(archive: Path, folder: Path) -> None:
    with open_archive(archive) as tar:
        for name, info in python_members(archive, tar):
            path = folder / TOP / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if info.issym():
                path.symlink_to(info.linkname)
            elif info.islnk():
                path.hardlink_to(folder / info.linkname)
            else:
                path.write_bytes(read_content(tar, info))
                path.chmod(mode_of(info))


class NoCompiler(UnfitMachine, code="no-bytecode-python"):
    """No Python on this machine compiles bytecode that the image's Python can load."""


async def find_compiler(
    python: Python,
    context: Context,
    local: Platform,
    *,
    named: Path | None = None,
    own: PythonBuild | None = None,
    other: PythonBuild | None = None,
) -> PycCompiler:
    """The first of: the user's choice; the image's own build; a local Python of exactly its version; another build of
    that version; a local Python of its series, with a warning.

    local: this machine's platform. named: the user's choice. own: the image's build, if this machine can run it. other:
    one of the same version that it can run.

    The lock decides what the image's own build is. Unless envspec's own data lists it, it runs in a sandbox; without a
    sandbox, another Python of exactly its version is used instead.

    Raises:
        UsageError: the user's choice is no CPython of the series. NoCompiler: there is none. NetworkError: the image's
        own build differs from the lock. NoConfinement: there is only the image's own, and no sandbox.
    """
    if named is not None:
        return await _named(named, python, context)
    no_sandbox: NoConfinement | None = None
    try:
        if (found := await _own(python, own, context)) is not None:
            return found
    except NoConfinement as error:
        no_sandbox = error
    near: Interpreter | None = None
    for path in _local_pythons(python, context.environ):
        candidate = await probe_interpreter(path, context.environ)
        if candidate is None or not _is_compatible(candidate, python):
            continue
        if candidate.version == python.version:
            return _compiler(candidate, python, context)
        near = near or candidate
    if (program := await _unpacked(other, context)) is not None:
        return PycCompiler(program, python.version, context.jobs)
    if no_sandbox is not None:
        raise no_sandbox
    if near is not None:
        return _compiler(near, python, context)
    raise NoCompiler(
        f"this machine ({local.value}) has no Python {python.version}, nor another {python.series}, to compile "
        "modules with",
        hint=f"use --python PATH (`uv python install {python.version}` fetches one), or omit bytecode with "
        "--no-compile-bytecode",
    )


async def _named(path: Path, python: Python, context: Context) -> PycCompiler:
    """The user's choice. Raises UsageError."""
    try:
        local = await named_interpreter(path, python, context.environ)
    except UsageError as error:
        error.hint = f"{error.hint}; or omit bytecode with --no-compile-bytecode"
        raise
    return _compiler(local, python, context)


async def _own(python: Python, build: PythonBuild | None, context: Context) -> PycCompiler | None:
    """The image's own build, in a sandbox unless it is known; None if it can't be fetched. Raises NoConfinement."""
    if build is None:
        return None
    program = None
    if not build.is_known:
        what = f"the lock's own Python {python.version}, which compiles the image's modules,"
        instead = (
            f"use --python PATH with your own Python {python.version}, or omit bytecode with --no-compile-bytecode"
        )
        program = await bubblewrap(context.environ, context.unconfined, what, instead)
    if (path := await _unpacked(build, context)) is None:
        return None
    sandbox = Sandbox(program, (build.folder, WORKER)) if program else None
    return PycCompiler(path, python.version, context.jobs, sandbox)


async def _unpacked(build: PythonBuild | None, context: Context) -> Path | None:
    """Its interpreter; None, with a warning, if it can't be fetched."""
    if build is None:
        return None
    try:
        return await unpacked_build(build)
    except WrongArchive:
        raise
    except NetworkError as error:
        context.reporter.warning(f"a Python to compile with could not be fetched: {error.message}")
        return None


def _compiler(local: Interpreter, python: Python, context: Context) -> PycCompiler:
    if local.version != python.version:
        context.reporter.warning(
            f"the image has Python {python.version}, but its modules are compiled by {local.path}, Python "
            f"{local.version}: another patch release may give another image ID"
        )
    return PycCompiler(local.path, local.version, context.jobs)


async def named_interpreter(path: Path, python: Python, environ: Mapping[str, str]) -> Interpreter:
    """The interpreter that the user names for a locked Python.

    Raises:
        UsageError: it is not a CPython of its series, or a preview of that.
    """
    local = await probe_interpreter(path, environ)
    if local is None:
        raise UsageError(
            f"--python {path} is not a CPython that runs here", hint=f"use an interpreter of Python {python.version}"
        )
    if not _is_compatible(local, python):
        raise UsageError(
            f"--python {path} is Python {local.version}; the lock is for {python.version}",
            hint=f"use an interpreter of Python {python.series}: wheels and bytecode are those of a series",
        )
    return local


def _is_compatible(local: Interpreter, python: Python) -> bool:
    """Previews of a series have other bytecode than its releases."""
    return local.series == python.series and local.magic == _MAGIC.get(python.series, local.magic)


def _local_pythons(python: Python, environ: Mapping[str, str]) -> Iterator[Path]:
    """Usual locations of the series' Pythons, the exact version first; each file once."""
    name = f"python{python.series}"
    found: set[Path] = set()
    for path in (
        Path(sys.executable),
        *_installed(environ, python.version, name),
        *(Path(folder, name) for folder in environ.get("PATH", "").split(":") if folder.startswith("/")),
        *(Path(folder, name) for folder in ("/usr/local/bin", "/usr/bin")),
        *_installed(environ, f"{python.series}.*", name),
    ):
        real = path.resolve()
        if real not in found and path.is_file():
            found.add(real)
            yield path


def _installed(environ: Mapping[str, str], version: str, name: str) -> Iterator[Path]:
    """The Pythons of pyenv and uv. version: may contain `*`."""
    home = environ.get("HOME")
    pyenv, uv = environ.get("PYENV_ROOT"), environ.get("UV_PYTHON_INSTALL_DIR")
    if home:
        data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
        pyenv = pyenv or f"{home}/.pyenv"
        uv = uv or f"{data}/uv/python"
    roots = {f"versions/{version}/bin/{name}": pyenv, f"cpython-{version}-*/bin/{name}": uv}
    for pattern, root in roots.items():
        if root:
            yield from sorted(Path(root).glob(pattern), reverse=True)
