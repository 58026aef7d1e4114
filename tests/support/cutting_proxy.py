"""A wire to a server on 127.0.0.1 that is cut after so many bytes have gone one way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType


@dataclass
class CuttingProxy:
    """cuts: for each connection in turn, after how many bytes towards the server it ends; then none does."""

    target: str
    cuts: list[int]
    port: int = 0
    _left: Iterator[int] = field(init=False)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> CuttingProxy:
        self._left = iter(self.cuts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._wire(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wire(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.partition(":")
        back, forth = await asyncio.open_connection(host, int(port))
        ways = [
            asyncio.ensure_future(_pour(reader, forth, next(self._left, None))),
            asyncio.ensure_future(_pour(back, writer, None)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            forth.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            part = data if left is None else data[:left]
            writer.write(part)
            await writer.drain()
            if left is not None:
                left -= len(part)
                if not left:
                    return
