"""The .pyc files of an image, and the Python that compiles them.

It is bound to its source by hash and not by time, which no layer keeps.

Source: python-build-standalone, `docs/distributions.rst`: all of an `install_only` archive is below `python/`.

The bytes follow from the exact version: patch releases have changed what the compiler makes of a module.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from envspec.errors import EnvspecError, NetworkError, UnfitMachine, UsageError
from envspec.fetch.types import WrongArchive
from envspec.io.archives import parents_of
from envspec.io.cache import as_cache_error
from envspec.io.confine import NoConfinement, Sandbox, Unconfined, bubblewrap
from envspec.io.file_locks import is_same_file, lock_folder
from envspec.io.process import Interpreter, probe_interpreter
from envspec.models import Platform, Python
from envspec.names import is_whiteout

WORKER: Final = Path(__file__).with_name("bytecode_worker.py")
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
        """What the bytes follow from, for a layer's key: the Python, and what `bytecode_worker.py` makes."""
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
                pyc.sandbox.command_for(words) if pyc.sandbox else words,
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


#: The one folder of such an archive.
TOP: Final = "python"


class BadPython(EnvspecError):
    """A standalone build that is not laid out as those builds are, or must not be unpacked."""

    exit_code = 5

    def __init__(self, archive: str, what: str) -> None:
        super().__init__(
            f"{archive}: {what}",
            hint="its hash is the lock's, so it was published like this: take another patch of Python, and report it",
        )


@dataclass(frozen=True, slots=True)
class Member:
    """A file or link of the archive. path: below `python/`. target: a link's, in the archive's own terms."""

    path: str
    info: tarfile.TarInfo

    @property
    def is_program(self) -> bool:
        return bool(self.info.mode & 0o111)


@contextmanager
def reading(archive: Path) -> Iterator[tarfile.TarFile]:
    """The archive, open.

    Raises:
        BadPython: it is damaged. OSError: it can't be read.
    """
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError) as fault:
        raise BadPython(archive.name, f"it can't be unpacked ({fault})") from fault


def members(archive: Path, tar: tarfile.TarFile) -> Iterator[Member]:
    """All files and links, in the archive's order.

    Raises:
        BadPython: a path or a link that leads out, one path twice, or something that is no file, folder or link.
    """
    seen: set[str] = set()
    links: set[str] = set()
    for info in tar:
        path = _inside(archive, info.name)
        if info.isdir():
            continue
        if not path:
            raise BadPython(archive.name, f"{info.name!r} is in it, which is not below {TOP}/")
        if path in seen:
            raise BadPython(archive.name, f"{info.name!r} is in it twice")
        if not links.isdisjoint(parents_of(path)):
            raise BadPython(archive.name, f"{info.name!r} is behind a link of it")
        seen.add(path)
        if info.issym():
            links.add(path)
            _inside(archive, posixpath.join(posixpath.dirname(info.name), info.linkname), info)
        elif info.islnk():
            if _inside(archive, info.linkname, info) not in seen:
                raise BadPython(archive.name, f"{info.name!r} is a link to {info.linkname!r}, which is not before it")
        elif not info.isfile():
            raise BadPython(archive.name, f"{info.name!r} is no file, folder or link")
        yield Member(path, info)


def content(tar: tarfile.TarFile, member: Member) -> bytes:
    """The bytes of a file."""
    file: IO[bytes] | None = tar.extractfile(member.info)
    return file.read() if file is not None else b""


def _inside(archive: Path, name: str, link: tarfile.TarInfo | None = None) -> str:
    """The path below `python/` that a name of the archive means. link: whose target it is."""
    parts = name.rstrip("/").split("/")
    if link is not None:
        parts = posixpath.normpath(name).split("/")
    if link is None and is_whiteout(name):
        raise BadPython(archive.name, f"{name!r} is in it, which would hide files of an image's lower layers")
    bad = name.startswith("/") or parts[0] != TOP or not {"", ".", ".."}.isdisjoint(parts) or "\\" in name
    if bad or (link is not None and link.linkname.startswith("/")):
        what = f"the link {link.name!r} leads to {link.linkname!r}" if link else f"{name!r} is in it"
        raise BadPython(archive.name, f"{what}, which is not below {TOP}/")
    return "/".join(parts[1:])


@dataclass(frozen=True, slots=True)
class Build:
    """A Python that can be had. sha256: of its archive. fetch: brings that. unpack: puts it into an empty folder.

    program: its interpreter, below that folder. is_known: whether envspec's own data names it, and not only a lock.
    """

    cache: Path
    sha256: str
    program: str
    fetch: Callable[[], Awaitable[Path]]
    unpack: Callable[[Path, Path], Awaitable[None]]
    is_known: bool = False

    @property
    def folder(self) -> Path:
        """Where it is unpacked."""
        return self.cache / "pythons" / self.sha256


async def made_of(build: Build) -> Path:
    """The interpreter of a build, fetched and unpacked where it is not yet.

    Raises:
        NetworkError, BadPython: it is not to be had. CacheError: the cache can't be written.
    """
    made = build.folder
    folder = made.parent
    if not (made / build.program).exists():
        archive = await build.fetch()
        with as_cache_error(folder):
            async with _alone(folder / f"{build.sha256}.partial") as partial:
                if not (made / build.program).exists():
                    await build.unpack(archive, partial)
                    if not (partial / build.program).exists():
                        raise BadPython(archive.name, f"it has no {build.program}")
                    partial.replace(made)
    return made / build.program


def standalone_program(series: str) -> str:
    """The interpreter of an unpacked standalone build."""
    return f"{TOP}/bin/python{series}"


async def unpack_standalone(archive: Path, folder: Path) -> None:
    """Unpack a checked standalone build; nothing of it can get out of the folder.

    Raises:
        BadPython
    """
    await asyncio.to_thread(_unpack, archive, folder)


def _unpack(archive: Path, folder: Path) -> None:
    with reading(archive) as tar:
        for member in members(archive, tar):
            place = folder / TOP / member.path
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.info.issym():
                place.symlink_to(member.info.linkname)
            elif member.info.islnk():
                place.hardlink_to(folder / member.info.linkname)
            else:
                place.write_bytes(content(tar, member))
                place.chmod(0o755 if member.is_program else 0o644)


@contextlib.asynccontextmanager
async def _alone(partial: Path) -> AsyncIterator[Path]:
    """An empty folder that is held against other runs; what is left in it in the end goes."""
    descriptor = await lock_folder(partial)
    try:
        _empty(partial)
        yield partial
    finally:
        # After it got its name, nothing is at the old one but what another run has made since.
        if is_same_file(partial, descriptor):
            shutil.rmtree(partial, ignore_errors=True)
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for item in folder.iterdir():
        shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()


#: Of each series from its first release on. Source: CPython, Lib/importlib/_bootstrap_external.py of 3.9 to 3.13.
_MAGIC: Final = {"3.9": 3425, "3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571}


class NoCompiler(UnfitMachine):
    """No Python on this machine makes bytecode that the image's takes."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Where to look. here: this machine's platform. named: an interpreter that the user names.

    own: the build that the image has, where this machine can run it. other: one of the same version that it can run.
    jobs: how many processes compile one layer. unconfined: whether a Python that only the lock names may run where
    nothing confines it.
    """

    here: Platform
    environ: Mapping[str, str]
    named: Path | None
    own: Build | None
    other: Build | None
    warn: Callable[[str], None]
    jobs: int = 1
    unconfined: Unconfined = Unconfined.REFUSED


async def find(python: Python, looking: Looking) -> Pyc:
    """The first of: the one that is named; the image's own build; one of exactly its version that is here; another
    build of that version; one of its series, with a warning.

    The image's own is whatever the lock says. Unless envspec's own data names it, it runs confined; where nothing
    confines it, another of exactly its version does as well.

    Raises:
        UsageError: the named one is no CPython of the series. NoCompiler: there is none. NetworkError: the image's own
        build is not the locked file. NoConfinement: there is only the image's own, and nothing confines it.
    """
    if looking.named is not None:
        return _pyc(await _named(looking.named, python, looking), python, looking)
    loose: NoConfinement | None = None
    try:
        if (found := await _own(python, looking)) is not None:
            return found
    except NoConfinement as fault:
        loose = fault
    near: Interpreter | None = None
    for place in _places(python, looking.environ):
        there = await probe_interpreter(place, looking.environ)
        if there is None or not _takes(there, python):
            continue
        if there.version == python.version:
            return _pyc(there, python, looking)
        near = near or there
    if (path := await _made(looking.other, looking)) is not None:
        return Pyc(path, python.version, looking.jobs)
    if loose is not None:
        raise loose
    if near is not None:
        return _pyc(near, python, looking)
    raise NoCompiler(
        f"this machine ({looking.here.value}) has no Python {python.version}, nor another {python.series}, to compile "
        "modules with",
        hint=f"name one by --python PATH (`uv python install {python.version}` fetches it), or leave bytecode out with "
        "--no-pyc",
    )


async def _own(python: Python, looking: Looking) -> Pyc | None:
    """The image's own build, confined unless it is known; None where there is none to be had.

    Raises:
        NoConfinement
    """
    build = looking.own
    if build is None:
        return None
    program = None
    if not build.is_known:
        what = f"the lock's own Python {python.version}, which compiles the image's modules,"
        instead = f"name a Python {python.version} of yours by --python PATH; or leave bytecode out with --no-pyc"
        program = await bubblewrap(looking.environ, looking.unconfined, what, instead)
    if (path := await _made(build, looking)) is None:
        return None
    return Pyc(path, python.version, looking.jobs, Sandbox(program, (build.folder, WORKER)) if program else None)


async def _made(build: Build | None, looking: Looking) -> Path | None:
    """Its interpreter; None where it can't be fetched: then there may be others."""
    try:
        return await made_of(build) if build is not None else None
    except WrongArchive:
        raise
    except NetworkError as fault:
        looking.warn(f"a Python to compile with could not be fetched: {fault.message}")
        return None


def _pyc(there: Interpreter, python: Python, looking: Looking) -> Pyc:
    if there.version != python.version:
        looking.warn(
            f"the image has Python {python.version}, and {there.path}, which compiles its modules, is {there.version}: "
            "where another patch compiles them, the image ID may be another one"
        )
    return Pyc(there.path, there.version, looking.jobs)


async def _named(path: Path, python: Python, looking: Looking) -> Interpreter:
    there = await probe_interpreter(path, looking.environ)
    if there is None:
        raise UsageError(
            f"--python {path} is not a CPython that runs here", hint=f"name an interpreter of Python {python.version}"
        )
    if not _takes(there, python):
        raise UsageError(
            f"--python {path} is Python {there.version}, whose bytecode the image's {python.version} does not take",
            hint=f"name an interpreter of Python {python.version}, or leave bytecode out with --no-pyc",
        )
    return there


def _takes(there: Interpreter, python: Python) -> bool:
    """Whether the image's Python takes its bytecode: previews of a series have other forms than its releases."""
    return there.series == python.series and there.magic == _MAGIC.get(python.series, there.magic)


def _places(python: Python, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where Pythons usually are, those of the exact version first; each once."""
    name = f"python{python.series}"
    seen: set[Path] = set()
    for path in (
        Path(sys.executable),
        *_versions(environ, python.version, name),
        *(Path(folder, name) for folder in environ.get("PATH", "").split(":") if folder.startswith("/")),
        *(Path(folder, name) for folder in ("/usr/local/bin", "/usr/bin")),
        *_versions(environ, f"{python.series}.*", name),
    ):
        real = path.resolve()
        if real not in seen and path.is_file():
            seen.add(real)
            yield path


def _versions(environ: Mapping[str, str], version: str, name: str) -> Iterator[Path]:
    """The Pythons of pyenv and uv. version: may have `*` in it."""
    home = environ.get("HOME")
    roots = {
        f"versions/{version}/bin/{name}": environ.get("PYENV_ROOT") or (home and f"{home}/.pyenv"),
        f"cpython-{version}-*/bin/{name}": environ.get("UV_PYTHON_INSTALL_DIR")
        or (home and f"{environ.get('XDG_DATA_HOME') or f'{home}/.local/share'}/uv/python"),
    }
    for pattern, root in roots.items():
        if root:
            yield from sorted(Path(root).glob(pattern), reverse=True)
