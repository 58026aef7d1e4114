"""The base of servers whose requests are handled by threads: index, channel, git, forge, apt."""

from __future__ import annotations

import contextlib
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType
from typing import TypeVar

from tests.support.servers.faults import Answer

_T = TypeVar("_T", bound="Threaded")


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version = "HTTP/1.1"
    # Without this each small answer waits 40 ms for the client's delayed ACK.
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self.server.owner.handle(self)

    do_HEAD = do_POST = do_DELETE = do_GET

    def body(self) -> bytes:
        """What the request brings, in chunks or not."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def answer(self, answer: Answer) -> int:
        """Send it; the number of bytes, headers included."""
        length = {} if answer.status == 304 else {"Content-Length": str(len(answer.body))}
        fields = {"Date": self.date_time_string(), **answer.headers, **length}
        phrase = self.responses.get(HTTPStatus(answer.status), ("",))[0]
        lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        # One write for headers and body: as a real server does, and half the system calls.
        data = head if self.command == "HEAD" else head + answer.body
        self.wfile.write(data)
        return len(data)

    def log_message(self, format: str, *args: object) -> None:
        """Tests read what the servers record."""


class Threaded:
    """A server on 127.0.0.1 from the beginning of a context to its end. stopping: set when it closes."""

    def __init__(self) -> None:
        self.stopping = Event()
        self._server = _Server(self)
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def handle(self, request: Exchange) -> None:
        raise NotImplementedError

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self: _T) -> _T:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it, also before its context ends."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, owner: Threaded) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), Exchange)

    def process_request(self, request: object, client_address: object) -> None:
        if isinstance(request, socket.socket):
            self._open.add(request)
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def hang_up(self) -> None:
        """Close the connections that clients keep alive."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # the client was first
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Some tests are about clients that leave in the middle of a page: only other errors are printed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]
