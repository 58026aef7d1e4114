"""Streamed request bodies. Importing this imports aiohttp: only `Http` does, and late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ServerTimeoutError
from aiohttp.payload import Payload

from envspec.io.http_types import Stalled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiohttp.abc import AbstractStreamWriter

#: Bytes written at once: a server counts as stalled if it accepts none of them for `stall_s`.
_WRITE_BYTES: Final = 256 * 1024


class Streamed(Payload):
    """A body of known size, generated from its start for each attempt.

    aiohttp's own body of an iterator continues where the last attempt ended, and aiohttp retries a PUT by itself: the
    second request would then carry the blob's end only. An error of the source, or a server that stops reading,
    appears in aiohttp as a broken connection: `check` raises the cause.
    """

    def __init__(
        self, pieces: Callable[[], AsyncGenerator[bytes | memoryview, None]], size_bytes: int, stall_s: float
    ) -> None:
        super().__init__(pieces, content_type="application/octet-stream")
        self._size = self._size_bytes = size_bytes
        self._stall_s = stall_s
        self._fault: Exception | None = None
        self._writing = asyncio.Lock()

    def check(self, url: str) -> None:
        """Raise the source's error, or Stalled if the server accepted no byte for `stall_s`."""
        if isinstance(self._fault, ServerTimeoutError):
            raise Stalled(
                url,
                f"the server stalled: it accepted no byte for {self._stall_s:g} s",
                hint="try again; if it persists, check the server",
            ) from self._fault
        if self._fault is not None:
            raise self._fault

    async def settle(self) -> None:
        """Wait until its source is no longer read: aiohttp cancels the writing of a body without waiting."""
        async with self._writing:
            return

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError(f"a streamed body can't be decoded ({encoding}, {errors})")

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        left = self._size_bytes if content_length is None else content_length
        async with self._writing:
            async for piece in self._pieces():
                view = memoryview(piece)[:left]
                left -= len(view)
                for start in range(0, len(view), _WRITE_BYTES):
                    await self._write_part(writer, view[start : start + _WRITE_BYTES])

    async def _write_part(self, writer: AbstractStreamWriter, part: memoryview) -> None:
        # Not `wait_for`: before Python 3.12 it loses the cancellation of a body that the server refuses.
        writing = asyncio.ensure_future(writer.write(part))
        try:
            await asyncio.wait({writing}, timeout=self._stall_s)
            if not writing.done():
                self._fault = ServerTimeoutError("the server accepts no more bytes")
                raise self._fault
            writing.result()
        finally:
            writing.cancel()

    async def _pieces(self) -> AsyncIterator[bytes | memoryview]:
        source: Any = self._value()
        async with aclosing(source):
            while True:
                try:
                    piece = await anext(source)
                except StopAsyncIteration:
                    return
                except Exception as error:
                    self._fault = error
                    raise
                yield piece
