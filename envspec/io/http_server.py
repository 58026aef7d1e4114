"""An HTTP server on loopback for the programs that a command starts: GET and HEAD by HTTP/1.1 and 1.0.

Every user of the machine can connect. A request that is not well-formed, too large or has a body is refused, and its
connection ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct, field

from envspec.io.loopback import BACKLOG

#: What handlers answer; to other methods `NOT_ALLOWED`.
METHODS: Final = frozenset({"GET", "HEAD"})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_PHRASES: Final = {
    **{200: "OK", 206: "Partial Content", 304: "Not Modified"},
    **{400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 407: "Proxy Authentication Required"},
    **{408: "Request Timeout", 413: "Content Too Large", 424: "Failed Dependency"},
    **{431: "Request Header Fields Too Large", 500: "Internal Server Error", 505: "HTTP Version Not Supported"},
}
#: The client is not one of ours, or does not speak HTTP as it should: its connection ends.
_ENDING: Final = frozenset({400, 405, 407, 408, 413, 431, 500, 505})
_BODILESS: Final = frozenset({204, 304})
_PIECE_BYTES: Final = 1024 * 1024
#: Of connections that asyncio accepts at once, before any counts. It reports on stderr if it cannot open more files.
_ACCEPTED: Final = 16


class Limits(Struct, frozen=True):
    """Limits of one server.

    head_bytes: of a request.
    headers: of a request.
    waiting: requests of one connection that wait while an earlier one is answered.
    connections: at a time, and at most half of the files that this process may open; for one more, the one that has
        waited longest for its client ends.
    client_s: how long a connection waits for its client: for a whole head, or for answers to be read.
    """

    head_bytes: int = 64 * 1024
    headers: int = 100
    waiting: int = 64
    connections: int = 512
    client_s: float = 120.0


class Answer(Struct, frozen=True):
    """An answer. body: bytes, or a file, which is sent in pieces."""

    status: int
    body: bytes | Path = b""
    headers: Mapping[str, str] = field(default_factory=dict)


NOT_ALLOWED: Final = Answer(405, headers={"Allow": "GET, HEAD"})


class BrokenAnswer(Exception):
    """The rest of an answer is missing: its connection is aborted, so that the client does not take it as complete."""


class Request:
    """A request without a body.

    target: as the client sent it: a path, or a URL if the server is the client's proxy.
    keeps_alive: whether the client may send another request.
    """

    __slots__ = ("_connection", "_fields", "is_old", "keeps_alive", "method", "target")

    def __init__(self, connection: _Connection, fields: list[tuple[bytes, bytes]], url: bytes) -> None:
        parser = connection.parser
        self._connection = connection
        self._fields = fields
        self.target = url.decode("ascii", "surrogateescape")
        self.method = parser.get_method().decode()
        self.is_old = parser.get_http_version() == "1.0"
        self.keeps_alive = parser.should_keep_alive() and not parser.should_upgrade()

    def header(self, name: str) -> str:
        """The header's value; empty if it is missing or repeated. name: in lower case."""
        wanted = name.encode()
        values = [value for key, value in self._fields if key == wanted]
        if len(values) != 1:
            return ""
        return values[0].strip().decode(errors="surrogateescape")

    def begin(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        """Send the head of an answer; `send` sends its body. length: of the body in bytes, None if it is unknown."""
        self._connection.begin(self, status, headers, length)

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body, once the client has read enough of those before.

        Raises:
            BrokenAnswer: the body is longer than announced, or the client has disconnected.
        """
        await self._connection.send(piece)


#: Returns the answer if it is known at once. None: it was sent by `begin` and `send`.
Handler = Callable[[Request], Answer | Coroutine[Any, Any, Answer | None]]


@asynccontextmanager
async def serve_requests(
    listener: socket.socket, handler: Handler, limits: Limits | None = None
) -> AsyncIterator[None]:
    """Answer what connects to a listener, until the context ends. A client that disconnects cancels its request."""
    service = _Service(handler, limits or Limits())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(service), sock=listener, backlog=_ACCEPTED)
    listener.listen(BACKLOG)
    sweeping = asyncio.ensure_future(service.sweep())
    try:
        yield
    finally:
        server.close()
        sweeping.cancel()
        await service.close()


def _most_files() -> float:
    """How many files this process may open."""
    try:
        import resource
    except ImportError:
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


class _Service:
    """The connections of one server."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self.handler = handler
        self.limits = limits
        self._most = min(limits.connections, _most_files() / 2)
        self.connections: set[_Connection] = set()
        self.is_closed = False

    def add(self, connection: _Connection) -> None:
        if len(self.connections) >= self._most:
            longest = min(self._waiting(), key=lambda each: each.waits_since or 0.0, default=connection)
            longest.transport.abort()
            self.connections.discard(longest)
        if self.is_closed:
            connection.transport.abort()
        self.connections.add(connection)

    def _waiting(self) -> list[_Connection]:
        return [each for each in self.connections if each.waits_since is not None]

    async def sweep(self) -> None:
        """End connections whose client is too slow."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.client_s / 4)
            oldest = loop.time() - self.limits.client_s
            for connection in self._waiting():
                if connection.waits_since is not None and connection.waits_since < oldest:
                    connection.expire()

    async def close(self) -> None:
        self.is_closed = True
        tasks = []
        for connection in self.connections:
            connection.transport.abort()
            if connection.task is not None:
                connection.task.cancel()
                tasks.append(connection.task)
        # asyncio closes sockets of aborted connections in the loop's next round.
        await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)


class _Connection(asyncio.Protocol):
    """One client's connection: its requests are answered in turn.

    transport: set once it is connected.
    task: answers the current request, if its answer was not known at once.
    waits_since: since when it waits for the client, by the loop's clock; None: the client waits for an answer.
    """

    def __init__(self, service: _Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.parser = HttpRequestParser(self)
        self.task: asyncio.Task[None] | None = None
        self.waits_since: float | None = self._loop.time()
        # The head that is being read.
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._has_body = False
        self._head_bytes = 0
        # Whether no further request is read.
        self._is_last = False
        self._queue: deque[Request | Answer] = deque()
        # The answer that is being sent in pieces. length: what is left; None: chunked or until the connection ends.
        self._has_begun = False
        self._length: int | None = None
        self._is_chunked = False
        self._is_silent = False
        self._writable: asyncio.Future[None] | None = None

    # --- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 (for types)
        self.transport = transport
        self._service.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self._service.connections.discard(self)
        self._is_last = True
        self._queue.clear()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_last:
            return
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            # Nothing is read after such a request, which is answered as any other.
            return
        except HttpParserError:
            self._refuse(400)
        if self._head_bytes > self._service.limits.head_bytes:
            self._refuse(431)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self.waits_since = self._loop.time()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        # What was sent has been read: from now on it waits for the next request.
        self.waits_since = self._loop.time() if self.task is None else None
        self.transport.resume_reading()

    # --- of the parser

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            self._has_body = True
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_last:
            return
        url, fields, has_body = self._url, self._fields, self._has_body
        self._url, self._fields, self._has_body, self._head_bytes = b"", [], False, 0
        limits = self._service.limits
        size = len(url) + sum(len(name) + len(value) for name, value in fields)
        if self.parser.get_http_version() not in _VERSIONS:
            self._refuse(505)
        elif size > limits.head_bytes or len(fields) > limits.headers:
            self._refuse(431)
        elif has_body:
            self._refuse(413)
        else:
            request = Request(self, fields, url)
            self._is_last = not request.keeps_alive
            self._take(request)

    # --- requests, in turn

    def expire(self) -> None:
        """End, since the client is too slow."""
        if self._head_bytes and not self._is_last and self._writable is None:
            self._refuse(408)
        else:
            self.transport.abort()

    def _refuse(self, status: int) -> None:
        if not self._is_last:
            self._is_last = True
            self._take(Answer(status))

    def _take(self, each: Request | Answer) -> None:
        if self.task is None:
            self._answer(each)
        elif len(self._queue) < self._service.limits.waiting:
            self._queue.append(each)
        else:
            self.transport.abort()

    def _answer(self, each: Request | Answer) -> None:
        if self.transport.is_closing():
            return
        if isinstance(each, Answer):
            self.transport.write(_head(each.status, {**each.headers, "Content-Length": "0", "Connection": "close"}))
            self._end(is_last=True)
            return
        try:
            answer = self._service.handler(each)
        except Exception as error:
            self._fail(each, error)
            return
        if isinstance(answer, Answer) and isinstance(answer.body, bytes):
            self._write(each, answer)
            return
        if self._writable is None:
            self.waits_since = None
        self.task = self._loop.create_task(self._answer_later(each, answer))
        if not isinstance(answer, Answer):
            # Python warns of a coroutine that was never started: its task may be cancelled before.
            self.task.add_done_callback(lambda _: answer.close())

    async def _answer_later(self, request: Request, answer: Answer | Coroutine[Any, Any, Answer | None]) -> None:
        try:
            found = answer if isinstance(answer, Answer) else await answer
            if found is None:
                self._end_body(request)
            elif isinstance(found.body, bytes):
                self._write(request, found)
            else:
                await self._send_file(request, found, found.body)
        except BrokenAnswer:
            self.transport.abort()
        except Exception as error:
            self._fail(request, error)
        if self._writable is not None:
            await self._writable
        self.task = None
        self.waits_since = self._loop.time()
        while self._queue and self.task is None:
            self._answer(self._queue.popleft())

    def _fail(self, request: Request, error: Exception) -> None:
        """Report an error of envspec's own."""
        self._loop.call_exception_handler({"message": "no answer to a request on loopback", "exception": error})
        if self._has_begun:
            self.transport.abort()
        else:
            self._write(request, Answer(500))

    # --- answers

    def _write(self, request: Request, answer: Answer) -> None:
        """Send an answer whose body is known."""
        assert isinstance(answer.body, bytes)  # noqa: S101 (for types)
        if answer.status in _ENDING:
            request.keeps_alive = False
        head = self._begin(request, answer.status, answer.headers, len(answer.body))
        self.transport.write(head if self._is_silent else head + answer.body)
        self._end(is_last=not request.keeps_alive)

    def _begin(self, request: Request, status: int, headers: Mapping[str, str], length: int | None) -> bytes:
        """The head of an answer; from here on its body is sent."""
        framing: dict[str, str] = {}
        self._has_begun = True
        self._is_silent = request.method == "HEAD" or status in _BODILESS
        self._length = length
        self._is_chunked = length is None and not self._is_silent and not request.is_old
        if self._is_chunked:
            framing["Transfer-Encoding"] = "chunked"
        elif length is None and not self._is_silent:
            # The end of the connection is the end of the body.
            request.keeps_alive = False
        elif length is not None and status not in _BODILESS:
            framing["Content-Length"] = str(length)
        if not request.keeps_alive:
            framing["Connection"] = "close"
        elif request.is_old:
            framing["Connection"] = "keep-alive"
        return _head(status, {**headers, **framing})

    def begin(self, request: Request, status: int, headers: Mapping[str, str], length: int | None) -> None:
        self.transport.write(self._begin(request, status, headers, length))

    async def send(self, piece: bytes) -> None:
        if self._is_silent or not piece:
            return
        if self._length is not None:
            self._length -= len(piece)
            if self._length < 0:
                raise BrokenAnswer
        if self._is_chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        if self.transport.is_closing():
            raise BrokenAnswer
        self.transport.write(piece)
        if self._writable is not None:
            await self._writable

    def _end_body(self, request: Request) -> None:
        """The last piece was sent."""
        if self._length and not self._is_silent:
            raise BrokenAnswer
        if self._is_chunked:
            self.transport.write(b"0\r\n\r\n")
        self._end(is_last=not request.keeps_alive)

    def _end(self, *, is_last: bool) -> None:
        """An answer was sent."""
        self._has_begun = False
        self.waits_since = self._loop.time()
        if is_last:
            self._is_last = True
            self._queue.clear()
            # What still comes is read: closing with unread bytes could take the answer from the client (RFC 9112, 9.6).
            with suppress(OSError):
                self.transport.write_eof()

    async def _send_file(self, request: Request, answer: Answer, path: Path) -> None:
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except OSError:
            self._write(request, Answer(404))
            return
        with file:
            self.begin(request, answer.status, answer.headers, os.fstat(file.fileno()).st_size)
            while not self._is_silent and (piece := await asyncio.to_thread(file.read, _PIECE_BYTES)):
                await self.send(piece)
        self._end_body(request)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    # pip stores no answer without a date.
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}", f"Date: {date}"]
    for name, value in headers.items():
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape")
