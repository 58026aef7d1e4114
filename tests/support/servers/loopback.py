"""Servers on 127.0.0.1 for one test: the bytes that it gives, a wire that is cut, and what all of them share.

    async with RawServer(lambda asked: reply(200, b"hello")) as server:
        await http.request("GET", server.url)

An answer is a list of steps: bytes to write, seconds to wait, or `CLOSE` and `RESET` to end the connection there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

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


def basic(user: str, password: str) -> str:
    """A login as HTTP's basic authentication writes it."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


#: The first byte of a client that tries TLS first, as skopeo does: without an answer it waits 10 s.
_TLS_HANDSHAKE: Final = b"\x16"


async def read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    """Method, target and headers (names in lower case) of the next request; None where there is none."""
    try:
        first_byte = await reader.readexactly(1)
        if first_byte == _TLS_HANDSHAKE:
            return None
        head = (first_byte + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
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


class End(Enum):
    """How a connection ends before its client expects it."""

    CLOSE = "close"
    RESET = "reset"


CLOSE, RESET = End.CLOSE, End.RESET
Step = bytes | float | End
Answer = Iterable[Step]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came. headers: names in lower case. number: how many of its method came before, if counted."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    number: int = 0

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def size(self) -> int:
        return int(self.headers.get("content-length", "0"))


def reply(status: int, body: bytes | object = b"", headers: Mapping[str, str] | None = None) -> list[Step]:
    """A well-formed answer; a body that isn't bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Content-Length": str(len(data)), **(headers or {})}
    return [head_of(status, lines), data]


def noting(seen: list[Asked], answer: Answer) -> Callable[[Asked], Answer]:
    """Answer every request with `answer`, and keep it in `seen`."""

    def note(asked: Asked) -> Answer:
        seen.append(asked)
        return answer

    return note


@dataclass
class RawServer(Loopback):
    """Serves `answer(asked)`."""

    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    tls: ssl.SSLContext | None = None

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while asked := await _read(reader):
                self.asked.append(asked)
                for step in self.answer(asked):
                    if step is CLOSE:
                        return
                    if step is RESET:
                        reset(writer)
                        return
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    elif isinstance(step, (int, float)):
                        await asyncio.sleep(step)
        except ConnectionError:
            return  # the client went, as it should after some of these answers
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await read_head(reader)
    if head is None:
        return None
    return Asked(*head, await reader.readexactly(int(head[2].get("content-length", "0"))))


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
