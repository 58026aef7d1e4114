"""Bodies of requests that are sent piece by piece. Importing this imports aiohttp: only `Http` does, and late."""

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

#: What is handed to the system at once, in bytes: a server counts as stalled when it takes none of it for `stall_s`.
_WRITE_BYTES: Final = 256 * 1024


class Streamed(Payload):
    """A body of known size that is made while it is sent, from its start on each time that it is sent.

    aiohttp's own body of an iterator goes on where the last try ended, and aiohttp tries a PUT again by itself: the
    second request would then carry the blob's end alone.

    What ends it early (the source's own error, a server that takes nothing more) aiohttp shows as a broken connection:
    `check` raises what it was.
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
        """Raise what the source raised, or Stalled where the server took no byte for `stall_s`."""
        if isinstance(self._fault, ServerTimeoutError):
            raise Stalled(
                url,
                f"the server stalled: it took no byte for {self._stall_s:g} s",
                hint="try again; if it stays, look at the server",
            ) from self._fault
        if self._fault is not None:
            raise self._fault

    async def settle(self) -> None:
        """Wait until its source is not read any more: aiohttp cancels the writing of a body, and doesn't wait."""
        async with self._writing:
            return

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """It is never text."""
        raise TypeError(f"a body that is streamed can't be decoded ({encoding}, {errors})")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send its first `content_length` bytes."""
        left = self._size_bytes if content_length is None else content_length
        async with self._writing:
            async for piece in self._pieces():
                view = memoryview(piece)[:left]
                left -= len(view)
                for start in range(0, len(view), _WRITE_BYTES):
                    await self._hand_over(writer, view[start : start + _WRITE_BYTES])

    async def _hand_over(self, writer: AbstractStreamWriter, part: memoryview) -> None:
        # Not `wait_for`: before Python 3.12 it loses the cancellation by which aiohttp ends a body that is refused.
        writing = asyncio.ensure_future(writer.write(part))
        try:
            await asyncio.wait({writing}, timeout=self._stall_s)
            if not writing.done():
                self._fault = ServerTimeoutError("the server takes no more bytes")
                raise self._fault
            writing.result()
        finally:
            writing.cancel()

    async def _pieces(self) -> AsyncIterator[bytes | memoryview]:
        """What the source gives, and what it raises kept."""
        source: Any = self._value()
        async with aclosing(source):
            while True:
                try:
                    piece = await anext(source)
                except StopAsyncIteration:
                    return
                except Exception as fault:
                    self._fault = fault
                    raise
                yield piece
