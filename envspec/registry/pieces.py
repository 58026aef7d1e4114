"""A blob's bytes on their way to a registry: from any place on, and again after a fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

from envspec.errors import EnvspecError
from envspec.registry.blob import Blob, Descriptor

#: What is read at once in a thread, in bytes.
_READ_BYTES: Final = 1024 * 1024

#: Gives a blob's bytes from a position on. It never gives a byte that is not the blob's without an error at its end.
Pieces = Callable[[int], AsyncGenerator[bytes, None]]


class ShortBlob(EnvspecError):
    """A blob of this machine's that ends before its size."""

    exit_code = 1

    def __init__(self, descriptor: Descriptor, found: int) -> None:
        super().__init__(
            f"blob {descriptor.digest}: its copy here has {found} bytes of {descriptor.size_bytes}",
            hint="the cache is damaged: remove it and build again",
        )


async def pieces_of(blob: Blob, start: int) -> AsyncGenerator[bytes, None]:
    """Read a blob in a thread, one piece ahead of what is sent, in pieces of about 1 MiB."""
    iterator = blob.chunks(start)
    ahead = asyncio.ensure_future(asyncio.to_thread(_gather, iterator))
    try:
        while data := await asyncio.shield(ahead):
            ahead = asyncio.ensure_future(asyncio.to_thread(_gather, iterator))
            yield data
    finally:
        # The thread can't be stopped, and a generator can't be closed while it runs.
        await asyncio.wait({ahead})
        ahead.exception()
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def _gather(iterator: Iterator[bytes]) -> bytes:
    """About 1 MiB of what comes; empty at the end. A recipe's pieces may be tiny ones."""
    found, size = [], 0
    for piece in iterator:
        found.append(piece)
        size += len(piece)
        if size >= _READ_BYTES:
            break
    return found[0] if len(found) == 1 else b"".join(found)


class Cursor:
    """A blob that is read on from where the last request ended, or from elsewhere after a fault."""

    def __init__(self, descriptor: Descriptor, pieces: Pieces) -> None:
        self._descriptor = descriptor
        self._pieces = pieces
        self._stream: AsyncGenerator[bytes, None] | None = None
        self._rest = memoryview(b"")
        #: Where the stream stands; None while it is read, and after that was broken off.
        self._at: int | None = None

    async def take(self, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` to `end`.

        Raises:
            ShortBlob: there are less.
        """
        if self._stream is None or self._at != start:
            await self.close()
            self._stream, self._rest = self._pieces(start), memoryview(b"")
        at = start
        while at < end:
            if not self._rest:
                self._at = None
                self._rest = memoryview(await anext(self._stream, b""))
                if not self._rest:
                    raise ShortBlob(self._descriptor, at)
            part, self._rest = self._rest[: end - at], self._rest[end - at :]
            at += len(part)
            self._at = at
            yield part

    async def close(self) -> None:
        """Let go of what it reads from."""
        stream, self._stream, self._at = self._stream, None, None
        if stream is not None:
            await stream.aclose()
