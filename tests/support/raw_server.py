"""A server on 127.0.0.1 that writes exactly the bytes that a test gives it, and keeps what it was asked.

    async with RawServer(lambda asked: reply(200, b"hello")) as server:
        await http.get(server.url)

An answer is a list of steps: bytes to write, seconds to wait, or `CLOSE` and `RESET` to end the connection there.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType


class End(Enum):
    """How a connection ends before its client expects it."""

    CLOSE = "close"
    RESET = "reset"


CLOSE, RESET = End.CLOSE, End.RESET
Step = bytes | float | End
Answer = Sequence[Step]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came. headers: names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


def reply(status: int, body: bytes | object = b"", headers: Mapping[str, str] | None = None) -> list[Step]:
    """A well-formed answer; a body that isn't bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Content-Length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return [f"HTTP/1.1 {status} Because\r\n{head}\r\n".encode(), data]


def noting(seen: list[Asked], answer: Answer) -> Callable[[Asked], Answer]:
    """Answer every request with `answer`, and keep it in `seen`."""

    def note(asked: Asked) -> Answer:
        seen.append(asked)
        return answer

    return note


@dataclass
class RawServer:
    """Serve `answer(asked)` on a free port of 127.0.0.1 until the context ends."""

    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    connections: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def __aenter__(self) -> RawServer:
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
        self.connections += 1
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while asked := await _read(reader):
                self.asked.append(asked)
                for step in self.answer(asked):
                    if step is CLOSE:
                        return
                    if step is RESET:
                        connection = writer.get_extra_info("socket")
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        writer.transport.abort()
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
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
