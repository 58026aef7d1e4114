"""Ways in which an index misbehaves; `IndexServer.fail` switches one on for a path.

Whatever never ends here ends by itself: when the client goes, when the server closes, or at the fault's own limit.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from envspec.structs import replace


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer; Content-Length is added when it is sent."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wire:
    """One connection in the middle of a request.

    target: path and query as asked. honest: what the server answers when nothing is wrong.
    write: sends bytes, and counts them. stopping: set when the server closes.
    """

    target: str
    honest: Callable[[], Answer]
    write: Callable[[bytes], None]
    connection: socket.socket
    stopping: threading.Event

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Fault", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        self.write("\r\n".join(lines).encode())

    def reset(self) -> None:
        """Close with RST, as a machine that crashes or a middlebox does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


class Fault(Protocol):
    def play(self, wire: Wire) -> Answer | None:
        """An answer to send in the usual way, or None where the fault wrote on the wire itself (which then closes)."""


@dataclass(frozen=True, slots=True)
class Status:
    """An error status: `Status(500)`, `Status(429, {"Retry-After": "1"})`."""

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"the server fails on purpose\n"

    def play(self, wire: Wire) -> Answer | None:
        return Answer(self.code, self.body, self.headers)


@dataclass(frozen=True, slots=True)
class Body:
    """Status 200 with other content: malformed HTML or JSON, an empty page, another type."""

    body: bytes
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def play(self, wire: Wire) -> Answer | None:
        honest = wire.honest()
        headers = {key: value for key, value in honest.headers.items() if key not in ("ETag", "Content-Encoding")}
        kind = {"Content-Type": self.content_type} if self.content_type else {}
        return Answer(200, self.body, {**headers, **kind, **self.headers})


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The right length, one byte in the middle flipped: the hash no longer matches."""

    def play(self, wire: Wire) -> Answer | None:
        honest = wire.honest()
        body = bytearray(honest.body)
        if body:
            body[len(body) // 2] ^= 0xFF
        return replace(honest, body=bytes(body))


@dataclass(frozen=True, slots=True)
class Truncate:
    """Only the first bytes, with a Content-Length that matches them: HTTP sees nothing wrong."""

    keep_bytes: int

    def play(self, wire: Wire) -> Answer | None:
        honest = wire.honest()
        return replace(honest, body=honest.body[: self.keep_bytes])


@dataclass(frozen=True, slots=True)
class Drop:
    """The right headers, some of the body, then the connection is gone."""

    after_bytes: int

    def play(self, wire: Wire) -> Answer | None:
        honest = wire.honest()
        wire.start(honest.status, {**honest.headers, "Content-Length": str(len(honest.body))})
        wire.write(honest.body[: self.after_bytes])
        # Without the pause the reset can overtake the bytes, and the client sees no body at all.
        wire.stopping.wait(0.05)
        wire.reset()
        return None


@dataclass(frozen=True, slots=True)
class Stall:
    """The request is taken, and nothing comes."""

    limit_s: float = 120

    def play(self, wire: Wire) -> Answer | None:
        wire.stopping.wait(self.limit_s)
        return None


@dataclass(frozen=True, slots=True)
class Drip:
    """The real body's beginning, then a byte now and then, without end: each read succeeds."""

    pause_s: float = 0.05
    limit_s: float = 120

    def play(self, wire: Wire) -> Answer | None:
        honest = wire.honest()
        _start_endless(wire, honest)
        _write_chunk(wire, honest.body[: len(honest.body) // 2])
        until = time.monotonic() + self.limit_s
        while time.monotonic() < until and not wire.stopping.wait(self.pause_s):
            _write_chunk(wire, b" ")
        return None


@dataclass(frozen=True, slots=True)
class Flood:
    """A page that never ends, as fast as the client reads it."""

    limit_bytes: int = 1 << 30
    limit_s: float = 60

    def play(self, wire: Wire) -> Answer | None:
        honest = wire.honest()
        _start_endless(wire, honest)
        _write_chunk(wire, honest.body[: len(honest.body) // 2])
        until = time.monotonic() + self.limit_s
        for chunk in _endless_links(self.limit_bytes):
            if wire.stopping.is_set() or time.monotonic() > until:
                break
            _write_chunk(wire, chunk)
        return None


@dataclass(frozen=True, slots=True)
class Redirects:
    """This many redirects before the answer; each to the same path with another query."""

    count: int = 1000

    def play(self, wire: Wire) -> Answer | None:
        asked = urlsplit(wire.target)
        hop = int(parse_qs(asked.query).get("hop", ["0"])[0])
        if hop >= self.count:
            return wire.honest()
        return Answer(302, b"", {"Location": f"{asked.path}?hop={hop + 1}"})


def _start_endless(wire: Wire, honest: Answer) -> None:
    """With the status and the headers of an answer whose length is not known before."""
    known = {key: value for key, value in honest.headers.items() if key in ("Content-Type", "Content-Range")}
    wire.start(honest.status, {"Content-Type": "text/html", **known, "Transfer-Encoding": "chunked"})


def _write_chunk(wire: Wire, data: bytes) -> None:
    if data:
        wire.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _endless_links(limit_bytes: int) -> Iterator[bytes]:
    sent = number = 0
    while sent < limit_bytes:
        links = "".join(f'<a href="f-{number + i}.0-py3-none-any.whl">f-{number + i}.0</a>\n' for i in range(1000))
        number += 1000
        sent += len(links)
        yield links.encode()
