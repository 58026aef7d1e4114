"""Where a fetch's bytes go: into a file of the cache, counted and hashed while they come, and written by threads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from envspec.io.cache import CacheError
from envspec.io.files import write_all

#: How much is gathered before a thread writes and hashes it; twice as much may be in memory for each file.
CHUNK: Final = 1 << 20


class DownloadFile:
    """One file that is being fetched.

    file: unbuffered. folder: what a fault is told of. limit: how many bytes it has, where that is known; what comes
    beyond is not written. algorithm: hashlib's name of the hash.
    size: how many bytes came. moved: when the last of them did. is_joined: whether what an earlier answer brought, in
    this run or in another, is a part of it.
    """

    def __init__(
        self,
        file: IO[bytes],
        folder: Path,
        limit: int | None,
        progress: Callable[[int], None],
        algorithm: str = "sha256",
    ) -> None:
        self.size = 0
        self.moved = time.monotonic()
        self.is_joined = False
        self.limit = limit
        self._file = file
        self._folder = folder
        self._progress = progress
        self._hash = hashlib.new(algorithm)
        self._told = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._writing: asyncio.Future[None] | None = None

    @property
    def digest(self) -> str:
        """Of what was written, hexadecimal; `settle` first."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> int:
        """Take bytes at once; rattler calls it from threads of its own, one at a time."""
        self._count(len(data))
        if self._is_within:
            self._put(data)
        return len(data)

    async def take(self, data: bytes) -> None:
        """Take bytes from the event loop; waits while the disk is behind.

        Raises:
            CannotKeep: the file can't be written. No OSError, which would count as the connection's.
        """
        self._count(len(data))
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= CHUNK:
            await self._flush()

    async def settle(self) -> None:
        """Wait until all that was taken is in the file.

        Raises:
            CannotKeep
        """
        await self._flush()
        await self._written()

    async def rest(self) -> None:
        """Have in the file what came, as far as that goes, and wait until no thread writes: then it can be closed."""
        with contextlib.suppress(CacheError):
            await self.settle()

    async def adopt(self) -> None:
        """Begin behind what the file holds already, from a run that did not come to its end.

        Raises:
            CannotKeep: it can't be read.
        """
        try:
            size = await asyncio.to_thread(self._read)
        except OSError as fault:
            raise CacheError(self._folder, fault) from fault
        self.is_joined = size > 0
        self._count(size)

    async def restart(self) -> None:
        """Begin anew with an empty file."""
        self._gathered.clear()
        self._gathered_bytes = 0
        await self._written()
        if self._told:
            self._progress(-self._told)
        self.size = self._told = 0
        self.is_joined = False
        self._hash = hashlib.new(self._hash.name)
        self._file.seek(0)
        self._file.truncate()

    @property
    def _is_within(self) -> bool:
        return self.limit is None or self.size <= self.limit

    def _count(self, more: int) -> None:
        self.size += more
        self.moved = time.monotonic()
        told = self.size if self.limit is None else min(self.size, self.limit)
        if told != self._told:
            self._progress(told - self._told)
            self._told = told

    def _read(self) -> int:
        self._file.seek(0)
        size = 0
        while data := self._file.read(CHUNK):
            self._hash.update(data)
            size += len(data)
        return size

    async def _flush(self) -> None:
        data = b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        await self._written()
        if data and self._is_within:
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._put, data)

    async def _written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        try:
            # A thread can't be cancelled, and two must not write to one file.
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except OSError as fault:
            raise CacheError(self._folder, fault) from fault

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        write_all(self._file, data)
