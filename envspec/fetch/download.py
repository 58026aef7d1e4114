"""Archives into envspec's cache: checked by size and SHA-256 before they get their names, and again before use."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import envspec
from envspec.effects.http_faults import Unreachable, shown
from envspec.errors import NetworkError
from envspec.fetch.faults import Truncated, WrongArchive, is_passing, of_rattler, stalled
from envspec.fetch.held import try_hold
from envspec.fetch.values import Archive, Count, Fetching, Network
from envspec.resolve.conda.channel_client import own_middleware

if TYPE_CHECKING:
    from rattler.networking import Client

_CHUNK: Final = 1 << 20
#: rattler's bound on a whole answer, in seconds; what counts here is that bytes keep coming.
_WHOLE_S: Final = 7 * 24 * 3600
_TICK_S: Final = 0.1


@dataclass(slots=True)
class _Sink:
    """Counts and hashes what is written through it; rattler calls `write` from threads of its own, one at a time."""

    file: IO[bytes]
    limit: int | None
    progress: Callable[[int], None]
    size: int = 0
    moved: float = field(default_factory=time.monotonic)
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self.moved = time.monotonic()
        if self.limit is None or self.size <= self.limit:
            self._hash.update(data)
            self.file.write(data)
            self.progress(len(data))
        return len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class Downloads:
    """The files of one run. Nothing is fetched that the cache holds whole."""

    def __init__(self, how: Fetching) -> None:
        self._how = how
        self._slots = asyncio.Semaphore(how.jobs)
        self._folder = archives_folder(how.cache)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = self._bytes = self._bytes_total = 0
        self._client: Client | None = None
        self._told: set[tuple[str, int]] = set()

    async def fetch(self, archives: Sequence[Archive]) -> Mapping[str, Path]:
        """SHA-256 -> the checked file in the cache, for each archive.

        Raises:
            WrongArchive: other content than the lock's; NetworkError: not to be had.
            OSError: the cache can't be written.
        """
        self._total = len(archives)
        self._bytes_total = sum(archive.size_bytes or 0 for archive in archives)
        self._tell(0)
        tasks = [asyncio.ensure_future(self._have(archive)) for archive in archives]
        try:
            return dict(await asyncio.gather(*tasks))
        finally:
            self._stopping.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _have(self, archive: Archive) -> tuple[str, Path]:
        async with self._slots:
            path = self._folder / archive.sha256 / archive.filename
            if not await self._is_kept(archive, path):
                await self._bring(archive, path)
            self._done += 1
            self._tell(0)
            return archive.sha256, path

    async def _is_kept(self, archive: Archive, path: Path) -> bool:
        """Whether the cache holds the archive whole: hashed each time, since anyone may have written there since."""
        sha256 = await asyncio.to_thread(_sha256_of, path, self._stopping)
        if sha256 == archive.sha256:
            self._tell(archive.size_bytes or 0)
            return True
        if sha256 is not None:
            self._how.warn(f"{path} is damaged: it is fetched again")
            _remove(path)
        return False

    async def _bring(self, archive: Archive, path: Path) -> None:
        if self._how.network is Network.OFFLINE and urlsplit(archive.url).scheme != "file":
            raise NetworkError(
                f"{archive.of}: {archive.filename} is not in the cache, and --offline forbids fetching it",
                hint="run once without --offline",
            )
        unfinished = path.with_name(f"{path.name}.part")
        descriptor = await _hold(unfinished)
        with os.fdopen(descriptor, "r+b", buffering=0) as file, _named_or_removed(unfinished, path) as keep:
            if not await self._is_kept(archive, path):
                await self._persist(archive, file)
                keep()

    async def _persist(self, archive: Archive, file: IO[bytes]) -> None:
        """Try until the archive is there, the fault is not one that passes, or patience ends."""
        stalls = 0
        for attempt in count(1):
            file.seek(0)
            file.truncate()
            sink = _Sink(file, archive.size_bytes, self._tell)
            try:
                await self._pour(archive, sink)
                _check(archive, sink)
            except NetworkError as fault:
                self._tell(-min(sink.size, sink.limit or sink.size))
                stalls += "stalled" in fault.message
                if attempt >= self._how.patience.attempts or stalls >= 2 or not is_passing(fault):
                    raise
                pause = self._how.patience.pause_s(archive.url, attempt)
                # A server that is down is one thing to tell, however many archives wait for it.
                subject = (urlsplit(archive.url).netloc if isinstance(fault, Unreachable) else archive.url, attempt)
                if subject not in self._told:
                    self._told.add(subject)
                    self._how.warn(f"{fault.message}; trying again in {pause:.1f} s")
                await asyncio.sleep(pause)
            else:
                return

    async def _pour(self, archive: Archive, sink: _Sink) -> None:
        if urlsplit(archive.url).scheme == "file":
            try:
                await asyncio.to_thread(_copy, Path(url2pathname(urlsplit(archive.url).path)), sink, self._stopping)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as fault:
                raise NetworkError(
                    f"{archive.of}: {shown(archive.url)}: {fault.strerror}",
                    hint="is the channel's folder at hand on this machine?",
                ) from fault
            return
        from rattler.package_streaming import download_to_writer

        task = asyncio.ensure_future(download_to_writer(self._rattler(), archive.url, sink))
        try:
            while not (await asyncio.wait({task}, timeout=_TICK_S))[0]:
                if time.monotonic() - sink.moved > self._how.patience.stall_s:
                    raise stalled(archive.url, self._how.patience.stall_s)
            await task
        except (RuntimeError, OSError) as fault:
            if isinstance(fault, OSError) and fault.errno is not None:
                raise
            raise of_rattler(archive.url, fault) from fault
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _rattler(self) -> Client:
        if self._client is None:
            from rattler.networking import Client

            # Without rattler's retries, which know neither patience nor a user who waits.
            self._client = Client(
                [*own_middleware()],
                user_agent=f"envspec/{envspec.__version__}",
                timeout=_WHOLE_S,
            )
        return self._client

    def _tell(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            count = Count(self._done, self._total, self._bytes, self._bytes_total)
        self._how.report(count)


def archives_folder(cache: Path) -> Path:
    """Where archives are kept: `<sha256>/<file name>`."""
    return cache / "archives"


def missing_bytes(archives: Sequence[Archive], cache: Path) -> int:
    """How much of it the cache lacks, in bytes, as far as sizes are known."""
    folder = archives_folder(cache)
    return sum(
        archive.size_bytes or 0 for archive in archives if not (folder / archive.sha256 / archive.filename).is_file()
    )


def _check(archive: Archive, sink: _Sink) -> None:
    if archive.size_bytes is not None and sink.size != archive.size_bytes:
        raise Truncated(archive.of, archive.url, sink.size, archive.size_bytes)
    if sink.sha256 != archive.sha256:
        raise WrongArchive(archive.of, archive.url, sink.sha256, archive.sha256)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


async def _hold(unfinished: Path) -> int:
    """Opens the file and holds it; where another run fetches the same archive at this moment, when that has ended."""
    for _ in count():
        descriptor = try_hold(unfinished, lambda: _open(unfinished))
        if descriptor is not None:
            return descriptor
        await asyncio.sleep(_TICK_S)
    raise AssertionError("count() has no end")


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


@contextlib.contextmanager
def _named_or_removed(unfinished: Path, path: Path) -> Iterator[Callable[[], object]]:
    """Gives what puts the file in its place; where that was not called the file goes."""
    try:
        yield lambda: unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


class _Stopped(Exception):
    """The run ends, and nobody waits for this thread's result any more."""


def _pieces(path: Path, stopping: threading.Event) -> IO[bytes]:
    if stopping.is_set():
        raise _Stopped
    return path.open("rb")


def _sha256_of(path: Path, stopping: threading.Event) -> str | None:
    """The file's hash; None where there is no such file."""
    digest = hashlib.sha256()
    try:
        opened = _pieces(path, stopping)
    except FileNotFoundError:
        return None
    with opened as file:
        while data := file.read(_CHUNK):
            if stopping.is_set():
                raise _Stopped
            digest.update(data)
    return digest.hexdigest()


def _copy(path: Path, sink: _Sink, stopping: threading.Event) -> None:
    with _pieces(path, stopping) as file:
        while data := file.read(_CHUNK):
            if stopping.is_set():
                raise _Stopped
            sink.write(data)
