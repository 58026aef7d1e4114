"""Files being downloaded: bytes are counted and hashed as they arrive, and written by threads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from envspec.io.cache import CacheError, cache_error
from envspec.io.file_locks import lock_file
from envspec.io.files import write_all

#: Bytes buffered before a thread writes and hashes them; each file may have twice as many in memory.
CHUNK: Final = 1 << 20


class PartialFile(Struct):
    """`<path>.part`, locked. keep: leave it for the next run to resume."""

    file: IO[bytes]
    part: Path
    path: Path
    keep: bool = False

    def finish(self) -> None:
        self.part.replace(self.path)
        self.keep = True


@contextlib.asynccontextmanager
async def partial_file(path: Path) -> AsyncIterator[PartialFile]:
    """Lock `<path>.part` against other processes; removed at the end unless finished or kept."""
    part = path.with_name(f"{path.name}.part")
    descriptor = await lock_file(part)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        partial = PartialFile(file, part, path)
        try:
            yield partial
        finally:
            if not partial.keep:
                with contextlib.suppress(OSError):
                    part.unlink()


class DownloadFile:
    """One file being downloaded.

    file: unbuffered. folder: named in errors. limit: the expected size, None if unknown; bytes beyond it are counted
    and not written. algorithm: hashlib's name of the hash.
    size: bytes received. last_byte_at: when, `time.monotonic`. is_resumed: whether an earlier response brought a part.
    """

    def __init__(
        self,
        file: IO[bytes],
        folder: Path,
        limit: int | None,
        on_progress: Callable[[int], None],
        algorithm: str = "sha256",
    ) -> None:
        self.size = 0
        self.last_byte_at = time.monotonic()
        self.is_resumed = False
        self.limit = limit
        self._file = file
        self._folder = folder
        self._on_progress = on_progress
        self._hash = hashlib.new(algorithm)
        self._reported = 0
        self._buffer = bytearray()
        self._writing: asyncio.Future[None] | None = None

    @property
    def digest(self) -> str:
        """Hexadecimal hash of the written bytes; `flush` first."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> int:
        """Write at once; rattler calls it from threads of its own, one at a time."""
        self._count(len(data))
        if self._is_within_limit:
            self._write_now(data)
        return len(data)

    async def feed(self, data: bytes) -> None:
        """Add bytes from the event loop; waits while the disk is slower.

        Raises:
            CacheError: the file can't be written. No OSError, which would count as the connection's.
        """
        self._count(len(data))
        self._buffer += data
        if len(self._buffer) >= CHUNK:
            await self._start_write()

    async def flush(self) -> None:
        """Wait until all bytes are in the file. Raises CacheError."""
        await self._start_write()
        await self._wait_for_write()

    async def settle(self) -> None:
        """`flush`, ignoring errors: afterwards no thread writes and the file can be closed."""
        with contextlib.suppress(CacheError):
            await self.flush()

    async def resume(self) -> None:
        """Continue after the bytes that an interrupted run left in the file. Raises CacheError if it can't be read."""
        try:
            size = await asyncio.to_thread(self._hash_existing)
        except OSError as error:
            raise cache_error(self._folder, error) from error
        self.is_resumed = size > 0
        self._count(size)

    async def restart(self) -> None:
        self._buffer = bytearray()
        await self._wait_for_write()
        if self._reported:
            self._on_progress(-self._reported)
        self.size = self._reported = 0
        self.is_resumed = False
        self._hash = hashlib.new(self._hash.name)
        self._file.seek(0)
        self._file.truncate()

    @property
    def _is_within_limit(self) -> bool:
        return self.limit is None or self.size <= self.limit

    def _count(self, more: int) -> None:
        self.size += more
        self.last_byte_at = time.monotonic()
        within = self.size if self.limit is None else min(self.size, self.limit)
        if within != self._reported:
            self._on_progress(within - self._reported)
            self._reported = within

    def _hash_existing(self) -> int:
        self._file.seek(0)
        size = 0
        while data := self._file.read(CHUNK):
            self._hash.update(data)
            size += len(data)
        return size

    async def _start_write(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        await self._wait_for_write()
        if data and self._is_within_limit:
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._write_now, data)

    async def _wait_for_write(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            # A thread can't be cancelled, and two must not write to one file.
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except OSError as error:
            raise cache_error(self._folder, error) from error

    def _write_now(self, data: bytes | bytearray) -> None:
        self._hash.update(data)
        write_all(self._file, data)
