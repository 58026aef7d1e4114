"""A server on 127.0.0.1 that writes exactly the bytes that a test gives it, and keeps what it was asked.

    async with RawServer(lambda asked: reply(200, b"hello")) as server:
        await http.get(server.url)

An answer is a list of steps: bytes to write, seconds to wait, or `CLOSE` and `RESET` to end the connection there.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tests.support.loopback import Loopback, head_of, read_head, reset


class End(Enum):
    """How a connection ends before its client expects it."""

    CLOSE = "close"
    RESET = "reset"


CLOSE, RESET = End.CLOSE, End.RESET
Step = bytes | float | End
Answer = Iterable[Step]


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
