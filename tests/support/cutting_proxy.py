"""A wire to a server on 127.0.0.1 that is cut after so many bytes have gone one way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.loopback import Loopback


@dataclass
class CuttingProxy(Loopback):
    """cuts: for each connection in turn, after how many bytes towards the server it ends; then none does."""

    target: str
    cuts: list[int]
    _left: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._left = iter(self.cuts)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
