"""Archives into envspec's cache: checked by size and SHA-256 before they get their names, and again before use."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envspec.context import Context, Step
from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.fetch.download import ChannelTransport
from envspec.fetch.types import (
    Archive,
    OnFetched,
    Transport,
    Truncated,
    WrongArchive,
    archives_folder,
    check,
    ignore_fetched,
)
from envspec.io.cache import as_cache_error
from envspec.io.download import CHUNK, DownloadFile
from envspec.io.file_locks import lock_file

#: What came of a file before a run ended is kept for the next from this size on, in bytes.
WORTH_KEEPING: Final = 1 << 20


class Downloads:
    """The files of one run. Nothing is fetched that the cache holds whole.

    transport: where they come from; by default conda's channels, by rattler's client. stage: in words for the user.
    """

    def __init__(self, context: Context, transport: Transport | None = None, stage: str = "fetching archives") -> None:
        self._context = context
        self._stage = stage
        self._transport = transport or ChannelTransport(context.timeouts, context.reporter.warning)
        self._slots = asyncio.Semaphore(context.jobs)
        self._folder = archives_folder(context.cache)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = self._bytes = self._bytes_total = 0

    async def fetch(self, archives: Sequence[Archive], arrived: OnFetched = ignore_fetched) -> Mapping[str, Path]:
        """SHA-256 -> the checked file in the cache, for each archive.

        Raises:
            WrongArchive: other content than the lock's; NetworkError: not to be had.
            CannotKeep: the cache can't be written.
        """
        # The largest first: the last to come is then a small one, and not the one that all the others waited for.
        distinct = {(each.sha256, each.filename): each for each in archives}.values()
        wanted = sorted(distinct, key=lambda each: -(each.size_bytes or 0))
        self._total = len(wanted)
        self._bytes_total = sum(archive.size_bytes or 0 for archive in wanted)
        self._tell(0)
        tasks = [asyncio.ensure_future(self._have(archive, arrived)) for archive in wanted]
        try:
            with as_cache_error(self._folder):
                return dict(await asyncio.gather(*tasks))
        finally:
            self._stopping.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _have(self, archive: Archive, arrived: OnFetched) -> tuple[str, Path]:
        async with self._slots:
            path = archive.path(self._context.cache)
            if not await self._is_kept(archive, path):
                await self._bring(archive, path)
            self._done += 1
            self._tell(0)
            arrived(archive.sha256)
            return archive.sha256, path

    async def _is_kept(self, archive: Archive, path: Path) -> bool:
        """Whether the cache holds the archive whole: hashed each time, since anyone may have written there since."""
        sha256 = await asyncio.to_thread(_sha256_of, path, self._stopping)
        if sha256 == archive.sha256:
            self._tell(archive.size_bytes or 0)
            return True
        if sha256 is not None:
            self._context.reporter.warning(f"{path} is damaged: it is fetched again")
            _remove(path)
        return False

    async def _bring(self, archive: Archive, path: Path) -> None:
        if self._context.is_offline and urlsplit(archive.url).scheme != "file":
            raise NetworkError(
                f"{archive.of}: {archive.filename} is not in the cache, and --offline forbids fetching it",
                hint="run once without --offline",
            )
        unfinished = path.with_name(f"{path.name}.part")
        descriptor = await lock_file(unfinished)
        with os.fdopen(descriptor, "r+b", buffering=0) as file, _Unfinished(unfinished, path) as kept:
            if await self._is_kept(archive, path):
                return
            sink = DownloadFile(file, self._folder, archive.size_bytes, self._tell)
            try:
                await self._fill(archive, sink)
            except (NetworkError, asyncio.CancelledError) as fault:
                wrong = isinstance(fault, (WrongArchive, Truncated))
                if self._transport.resumes and sink.size >= WORTH_KEEPING and not wrong:
                    kept.stay()
                raise
            finally:
                await sink.rest()
            kept.finish()

    async def _fill(self, archive: Archive, sink: DownloadFile) -> None:
        if urlsplit(archive.url).scheme != "file":
            await self._transport.fetch(archive, sink)
            return
        await sink.restart()
        try:
            await asyncio.to_thread(_copy, Path(url2pathname(urlsplit(archive.url).path)), sink, self._stopping)
        except _Unreadable as fault:
            raise NetworkError(
                f"{archive.of}: {shown(archive.url)}: {fault}",
                hint="is the channel's folder at hand on this machine?",
            ) from fault.__cause__
        check(archive, sink)

    def _tell(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            step = Step(self._stage, self._done, self._total, self._bytes, self._bytes_total)
        self._context.reporter.progress(step)


def missing_bytes(archives: Sequence[Archive], cache: Path) -> int:
    """How much of it the cache lacks, in bytes, as far as sizes are known."""
    return sum(archive.size_bytes or 0 for archive in archives if not archive.path(cache).is_file())


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


class _Unfinished:
    """A file that gets its name when it is finished, and else goes, unless the next run can use it."""

    def __init__(self, unfinished: Path, path: Path) -> None:
        self._unfinished = unfinished
        self._path = path
        self._stays = False

    def finish(self) -> None:
        self._unfinished.replace(self._path)

    def stay(self) -> None:
        self._stays = True

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stays:
            with contextlib.suppress(OSError):
                self._unfinished.unlink()


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
        while data := file.read(CHUNK):
            if stopping.is_set():
                raise _Stopped
            digest.update(data)
    return digest.hexdigest()


class _Unreadable(Exception):
    """A local file that can't be read; its cause is the system's."""


def _copy(path: Path, sink: DownloadFile, stopping: threading.Event) -> None:
    try:
        # A device or a pipe may have no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        opened = _pieces(path, stopping)
    except OSError as fault:
        raise _Unreadable(fault.strerror) from fault
    except ValueError as fault:
        raise _Unreadable(str(fault)) from fault
    with opened as file:
        while data := file.read(CHUNK):
            if stopping.is_set():
                raise _Stopped
            sink.write(data)
