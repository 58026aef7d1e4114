"""What servers of tests share: a free port of 127.0.0.1, a task for each connection, and HTTP's words as bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import TypeVar

_T = TypeVar("_T", bound="Loopback")


class Loopback:
    """A server from the beginning of a context to its end, whose connections end with it."""

    port: int = 0
    #: What it speaks TLS with, None for plain http.
    tls: ssl.SSLContext | None = None
    #: How many there were.
    connections: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is over."""
        raise NotImplementedError

    async def __aenter__(self: _T) -> _T:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
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
        self.connections += 1
        task = asyncio.ensure_future(self.converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """Method, target and headers (names in lower case) of the next request; None where there is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    return method, target, {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def head_of(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Because\r\n{lines}\r\n".encode()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a server does that crashes."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
