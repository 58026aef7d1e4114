"""Archives of conda channels, by rattler's client: it knows their logins and all forms of their addresses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import envspec
from envspec.errors import NetworkError
from envspec.fetch.types import Archive, check, is_transient, rattler_error, stalled
from envspec.io.download import DownloadFile
from envspec.io.http_settings import keeps_logins
from envspec.io.http_types import Timeouts, Unreachable
from envspec.models import CondaPackage
from envspec.resolve.conda.channel_client import own_middleware

if TYPE_CHECKING:
    from rattler.networking import Client

#: rattler's bound on a whole answer, in seconds; what counts here is that bytes keep coming.
_WHOLE_S: Final = 7 * 24 * 3600
_TICK_S: Final = 0.1


def conda_archives(packages: Sequence[CondaPackage]) -> list[Archive]:
    """The archives of conda's packages."""
    return [
        Archive(f"{each.name} {each.version}", each.url, each.filename, each.sha256, each.size_bytes)
        for each in packages
    ]


class ChannelTransport:
    """rattler's client, with envspec's patience. warn: told of every try that failed."""

    resumes: Final = False

    def __init__(self, timeouts: Timeouts, warn: Callable[[str], None]) -> None:
        self._patience = timeouts
        self._warn = warn
        self._clients: dict[bool, Client] = {}
        self._told: set[tuple[str, int]] = set()

    async def bring(self, archive: Archive, sink: DownloadFile) -> None:
        """See `Transport.fetch`."""
        stalls = 0
        for attempt in count(1):
            await sink.restart()
            try:
                await self._pour(archive, sink)
                check(archive, sink)
            except NetworkError as fault:
                stalls += "stalled" in fault.message
                if attempt >= self._patience.attempts or stalls >= 2 or not is_transient(fault):
                    raise
                pause = self._patience.pause_s(archive.url, attempt)
                # A server that is down is one thing to tell, however many archives wait for it.
                subject = (urlsplit(archive.url).netloc if isinstance(fault, Unreachable) else archive.url, attempt)
                if subject not in self._told:
                    self._told.add(subject)
                    self._warn(f"{fault.message}; trying again in {pause:.1f} s")
                await asyncio.sleep(pause)
            else:
                return

    async def _pour(self, archive: Archive, sink: DownloadFile) -> None:
        from rattler.package_streaming import download_to_writer

        task = asyncio.ensure_future(download_to_writer(self._rattler(archive.url), archive.url, sink))
        try:
            while not (await asyncio.wait({task}, timeout=_TICK_S))[0]:
                if time.monotonic() - sink.moved > self._patience.stall_s:
                    raise stalled(archive.url, self._patience.stall_s)
            await task
        except (RuntimeError, OSError) as fault:
            if isinstance(fault, OSError) and fault.errno is not None:
                raise
            raise rattler_error(archive.url, fault) from fault
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _rattler(self, url: str) -> Client:
        kind = keeps_logins(url)
        if kind not in self._clients:
            from rattler.networking import Client

            # Without rattler's retries, which know neither patience nor a user who waits.
            self._clients[kind] = Client(
                [*own_middleware(url)], user_agent=f"envspec/{envspec.__version__}", timeout=_WHOLE_S
            )
        return self._clients[kind]
