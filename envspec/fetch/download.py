"""Archives into envspec's cache: checked by size and SHA-256 before they get their names, and again before use."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envspec.context import Context, Step
from envspec.credentials import shown
from envspec.errors import NetworkError, OfflineMiss
from envspec.fetch.types import (
    Archive,
    OnFetched,
    Transport,
    Truncated,
    WrongArchive,
    archives_folder,
    check,
    ignore_fetched,
    is_transient,
    rattler_error,
    stalled,
)
from envspec.io.cache import as_cache_error
from envspec.io.download import CHUNK, DownloadFile, partial_file
from envspec.io.http_settings import keeps_logins
from envspec.io.http_types import Retry, Timeouts, Unreachable
from envspec.io.tasks import gather_or_cancel
from envspec.models import CondaPackage
from envspec.resolve.conda.channel_client import own_middleware
from envspec.version import VERSION

if TYPE_CHECKING:
    from rattler.networking import Client

#: An interrupted download of at least this many bytes is kept for the next run.
WORTH_KEEPING: Final = 1 << 20
#: rattler's limit on a whole response, in seconds; envspec's own is on the time without a byte.
_WHOLE_S: Final = 7 * 24 * 3600
_TICK_S: Final = 0.1


class Downloads:
    """The files of one run. Nothing is fetched that is whole in the cache.

    transport: where they come from; by default conda channels, by rattler's client. stage: for the user.
    """

    def __init__(self, context: Context, transport: Transport | None = None, stage: str = "fetching archives") -> None:
        self._context = context
        self._stage = stage
        self._transport = transport or ChannelTransport(context.timeouts, context.reporter.warning)
        self._folder = archives_folder(context.cache)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = self._bytes = self._bytes_total = 0

    async def fetch(self, archives: Sequence[Archive], on_fetched: OnFetched = ignore_fetched) -> Mapping[str, Path]:
        """SHA-256 -> the checked file in the cache, for each archive.

        Raises:
            WrongArchive: not the locked content. NetworkError: not available. CacheError: the cache can't be written.
        """
        # The largest first, so that the last to arrive is a small one.
        distinct = {(each.sha256, each.filename): each for each in archives}.values()
        ordered = sorted(distinct, key=lambda each: -(each.size_bytes or 0))
        self._total = len(ordered)
        self._bytes_total = sum(archive.size_bytes or 0 for archive in ordered)
        self._report(0)
        with as_cache_error(self._folder):
            work = [self._ensure(archive, on_fetched) for archive in ordered]
            return dict(await gather_or_cancel(work, self._context.jobs))

    async def _ensure(self, archive: Archive, on_fetched: OnFetched) -> tuple[str, Path]:
        path = archive.path(self._context.cache)
        try:
            if not await self._is_cached(archive, path):
                await self._download(archive, path)
        except BaseException:
            # Ends the threads of the other files too, whose tasks are cancelled.
            self._stopping.set()
            raise
        self._done += 1
        self._report(0)
        on_fetched(archive.sha256)
        return archive.sha256, path

    async def _is_cached(self, archive: Archive, path: Path) -> bool:
        """Whether the cached file is whole: hashed each time, since other programs can have written there."""
        sha256 = await asyncio.to_thread(_sha256_of, path, self._stopping)
        if sha256 == archive.sha256:
            self._report(archive.size_bytes or 0)
            return True
        if sha256 is not None:
            self._context.reporter.warning(f"{path} is damaged: it is fetched again")
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return False

    async def _download(self, archive: Archive, path: Path) -> None:
        if self._context.is_offline and urlsplit(archive.url).scheme != "file":
            raise OfflineMiss(f"{archive.filename} of {archive.of}")
        async with partial_file(path) as partial:
            if await self._is_cached(archive, path):
                return
            file = DownloadFile(partial.file, self._folder, archive.size_bytes, self._report)
            try:
                await self._fill(archive, file)
            except (NetworkError, asyncio.CancelledError) as error:
                is_wrong = isinstance(error, (WrongArchive, Truncated))
                partial.keep = self._transport.resumes and file.size >= WORTH_KEEPING and not is_wrong
                raise
            finally:
                await file.settle()
            partial.finish()

    async def _fill(self, archive: Archive, file: DownloadFile) -> None:
        if urlsplit(archive.url).scheme != "file":
            await self._transport.fetch(archive, file)
            return
        await file.restart()
        await asyncio.to_thread(_copy, archive, file, self._stopping)
        check(archive, file)

    def _report(self, size: int) -> None:
        with self._lock:
            self._bytes += size
            step = Step(self._stage, self._done, self._total, self._bytes, self._bytes_total)
        self._context.reporter.progress(step)


def missing_bytes(archives: Sequence[Archive], cache: Path) -> int:
    """Total size of the archives that are not in the cache, as far as sizes are known."""
    return sum(archive.size_bytes or 0 for archive in archives if not archive.path(cache).is_file())


def conda_archives(packages: Sequence[CondaPackage]) -> list[Archive]:
    """The archives of conda packages."""
    return [
        Archive(f"{each.name} {each.version}", each.url, each.filename, each.sha256, each.size_bytes)
        for each in packages
    ]


class ChannelTransport:
    """rattler's client, which knows conda's logins and URL schemes, with envspec's retries."""

    resumes: Final = False

    def __init__(self, timeouts: Timeouts, warn: Callable[[str], None]) -> None:
        self._timeouts = timeouts
        self._warn = warn
        self._clients: dict[bool, Client] = {}
        self._warned: set[tuple[str, int]] = set()

    async def fetch(self, archive: Archive, file: DownloadFile) -> None:
        """See `Transport.fetch`."""
        retry = Retry(self._timeouts, archive.url)
        while True:
            await file.restart()
            try:
                await self._fetch_once(archive, file)
                check(archive, file)
            except NetworkError as error:
                pause_s = retry.next_pause_s(error, transient=is_transient(error))
                # A server that is down is reported once, however many archives wait for it.
                subject = urlsplit(archive.url).netloc if isinstance(error, Unreachable) else archive.url
                if (subject, retry.failed) not in self._warned:
                    self._warned.add((subject, retry.failed))
                    self._warn(f"{error.message}; trying again in {pause_s:.1f} s")
                await asyncio.sleep(pause_s)
            else:
                return

    async def _fetch_once(self, archive: Archive, file: DownloadFile) -> None:
        from rattler.package_streaming import download_to_writer

        task = asyncio.ensure_future(download_to_writer(self._client(archive.url), archive.url, file))
        try:
            while not (await asyncio.wait({task}, timeout=_TICK_S))[0]:
                if time.monotonic() - file.last_byte_at > self._timeouts.stall_s:
                    raise stalled(archive.url, self._timeouts.stall_s)
            await task
        except (RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise rattler_error(archive.url, error) from error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _client(self, url: str) -> Client:
        kind = keeps_logins(url)
        if kind not in self._clients:
            from rattler.networking import Client

            # Without rattler's retries, which know neither `Timeouts` nor a cancellation.
            self._clients[kind] = Client([*own_middleware(url)], user_agent=f"envspec/{VERSION}", timeout=_WHOLE_S)
        return self._clients[kind]


class _RunEnded(Exception):
    """The run has ended: nothing waits for this thread's result."""


def _chunks(path: Path, stopping: threading.Event) -> Iterator[bytes]:
    with path.open("rb") as file:
        while not stopping.is_set() and (data := file.read(CHUNK)):
            yield data
    if stopping.is_set():
        raise _RunEnded


def _sha256_of(path: Path, stopping: threading.Event) -> str | None:
    """The file's hash; None if there is no such file."""
    digest = hashlib.sha256()
    with contextlib.suppress(FileNotFoundError):
        for data in _chunks(path, stopping):
            digest.update(data)
        return digest.hexdigest()
    return None


def _copy(archive: Archive, file: DownloadFile, stopping: threading.Event) -> None:
    path = Path(url2pathname(urlsplit(archive.url).path))
    try:
        # A device or a pipe may have no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        path.open("rb").close()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NetworkError(
            f"{archive.of}: {shown(archive.url)}: {why}", hint="is the channel's folder mounted on this machine?"
        ) from error
    for data in _chunks(path, stopping):
        file.write(data)
