"""The server on loopback: what clients get that speak HTTP well, badly, slowly or too much."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from envspec.io.http_server import METHODS, NOT_ALLOWED, Answer, BrokenAnswer, Handler, Limits, Request, serve_requests

HOST = b"Host: here\r\n"
LARGE = bytes(range(256)) * 20_000


class Client:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        # Of a socket: it reads, too.
        self.transport = cast("asyncio.Transport", writer.transport)

    def sends(self, *lines: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> None:
        for target in lines:
            self.writer.write(method + b" " + target + b" HTTP/" + version + b"\r\n" + HOST + b"\r\n")

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        return int(first.split(" ")[1]), dict(line.lower().split(": ", 1) for line in lines)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer, which has its length."""
        status, headers = await self.head()
        return status, await self.reader.readexactly(int(headers["content-length"]))

    async def rest(self) -> bytes:
        """All that comes until the connection ends."""
        with suppress(ConnectionError):
            return await self.reader.read()
        return b""


Connect = Callable[[], Awaitable[Client]]


@asynccontextmanager
async def served(handler: Handler, limits: Limits | None = None) -> AsyncIterator[Connect]:
    """A function that connects to the server."""
    clients: list[Client] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]

        async def connect() -> Client:
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            clients.append(client)
            return client

        async with serve_requests(listener, handler, limits):
            yield connect
            for client in clients:
                client.writer.transport.abort()


async def echo(request: Request) -> Answer:
    """The target, after as many milliseconds as it names."""
    if request.method not in METHODS:
        return NOT_ALLOWED
    waits = re.search(r"\d+", request.target)
    await asyncio.sleep(int(waits[0]) / 1000 if waits else 0)
    return Answer(200, request.target.encode(), {"X-Host": request.header("host")})


def at_once(request: Request) -> Answer:
    return Answer(200, request.target.encode())


@pytest.fixture(params=[echo, at_once], ids=["later", "at once"])
def handler(request: pytest.FixtureRequest) -> Handler:
    found: Handler = request.param
    return found


@pytest.fixture(autouse=True)
def _silent(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client brings a traceback to stderr."""
    yield
    assert not [record for record in caplog.records if "handler failed" not in str(record.exc_info)]
    assert capfd.readouterr().err == ""


# --- honest clients


def test_requests_of_one_connection(handler: Handler) -> None:
    async def run() -> None:
        async with served(handler) as connect:
            client = await connect()
            for target in (b"/one", b"/two", b"/three"):
                client.sends(target)
                assert await client.answer() == (200, target)
            client.writer.write(b"\r\nGET /four HTTP/1.1\r\nConnection: close\r\n\r\n")
            status, headers = await client.head()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.rest() == b"/four"

    asyncio.run(run())


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_several_requests_at_once_are_answered_in_their_order(handler: Handler, step: int) -> None:
    async def run() -> None:
        async with served(handler) as connect:
            client = await connect()
            targets = [b"/60", b"/0", b"/30", b"/1", b"/"]
            sent = b"".join(b"GET " + each + b" HTTP/1.1\r\n" + HOST + b"\r\n" for each in targets)
            for start in range(0, len(sent), step):
                client.writer.write(sent[start : start + step])
                await asyncio.sleep(0)
            for target in targets:
                assert await client.answer() == (200, target)

    asyncio.run(run())


def test_clients_of_http_1_0(handler: Handler) -> None:
    async def run() -> None:
        async with served(handler) as connect:
            client = await connect()
            client.writer.write(b"GET /kept HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            status, headers = await client.head()
            assert (status, headers["connection"], headers["content-length"]) == (200, "keep-alive", "5")
            assert await client.reader.readexactly(5) == b"/kept"
            client.sends(b"/last", version=b"1.0")
            assert (await client.rest()).endswith(b"\r\nConnection: close\r\n\r\n/last")

    asyncio.run(run())


def test_head(handler: Handler) -> None:
    async def run() -> None:
        async with served(handler) as connect:
            client = await connect()
            client.sends(b"/five", method=b"HEAD")
            status, headers = await client.head()
            assert (status, headers["content-length"]) == (200, "5")
            client.sends(b"/next")
            assert await client.answer() == (200, b"/next")

    asyncio.run(run())


def test_headers_that_are_repeated_count_as_missing() -> None:
    async def run() -> None:
        async with served(echo) as connect:
            client = await connect()
            client.writer.write(b"GET / HTTP/1.1\r\nHOST:  a \r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n")
            assert (await client.head())[1]["x-host"] == "a"
            await client.reader.readexactly(1)
            assert (await client.head())[1]["x-host"] == ""

    asyncio.run(run())


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "wheel"
    file.write_bytes(LARGE)

    async def run() -> None:
        async with served(lambda request: Answer(200, tmp_path / request.target[1:], {"X-A": "b"})) as connect:
            client = await connect()
            client.sends(b"/wheel", b"/none")
            client.sends(b"/wheel", method=b"HEAD")
            assert await client.answer() == (200, LARGE)
            assert await client.answer() == (404, b"")
            status, headers = await client.head()
            assert (status, headers["content-length"], headers["x-a"]) == (200, str(len(LARGE)), "b")
            client.sends(b"/wheel")
            assert await client.answer() == (200, LARGE)

    asyncio.run(run())


async def pieces(request: Request) -> Answer | None:
    """/LENGTH: five pieces of five bytes each, whatever length is announced; `/` announces none."""
    request.begin(200, {"X-A": "b"}, int(request.target[1:]) if request.target != "/" else None)
    for number in range(5):
        await request.send(str(number).encode() * 5)
        await asyncio.sleep(0)
    return None


def test_an_answer_in_pieces() -> None:
    whole = b"0000011111222223333344444"

    async def run() -> None:
        async with served(pieces) as connect:
            client = await connect()
            client.sends(b"/25", b"/")
            assert await client.answer() == (200, whole)
            status, headers = await client.head()
            assert (status, headers["transfer-encoding"], headers["x-a"]) == (200, "chunked", "b")
            chunks = b"".join(b"5\r\n" + whole[start : start + 5] + b"\r\n" for start in range(0, 25, 5))
            assert await client.reader.readexactly(len(chunks) + 5) == chunks + b"0\r\n\r\n"
            client.sends(b"/", version=b"1.0")
            assert (await client.rest()).endswith(b"Connection: close\r\n\r\n" + whole)

    asyncio.run(run())


@pytest.mark.parametrize("length", [24, 26])
def test_an_answer_of_another_length_than_announced_is_broken_off(length: int) -> None:
    async def run() -> None:
        async with served(pieces) as connect:
            client = await connect()
            client.sends(b"/%d" % length)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.answer()

    asyncio.run(run())


def test_an_answer_that_breaks_does_not_look_complete() -> None:
    async def breaks(request: Request) -> Answer | None:
        request.begin(200, {}, None)
        await request.send(b"some")
        raise BrokenAnswer

    async def run() -> None:
        async with served(breaks) as connect:
            client = await connect()
            client.sends(b"/")
            assert not (await client.rest()).endswith(b"0\r\n\r\n")

    asyncio.run(run())


def test_a_client_that_disconnects_cancels_its_request() -> None:
    async def run() -> None:
        cancelled = asyncio.Event()

        async def waits(request: Request) -> Answer:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return Answer(200)

        async with served(waits) as connect:
            client = await connect()
            client.sends(b"/", b"/next")
            await asyncio.sleep(0.05)
            client.writer.transport.abort()
            await asyncio.wait_for(cancelled.wait(), 10)

    asyncio.run(run())


@pytest.mark.parametrize("target", [b"/", b"/1", b"/20"])
def test_a_client_that_disconnects_between_its_requests(handler: Handler, target: bytes) -> None:
    async def run() -> None:
        async with served(handler) as connect:
            for pause in (0, 0.001, 0.02):
                client = await connect()
                client.sends(*[target] * 60)
                await asyncio.sleep(pause)
                raw = client.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.writer.transport.abort()
            await asyncio.sleep(0.05)

    asyncio.run(run())


def test_the_end_of_the_server_ends_connections_and_requests() -> None:
    async def run() -> None:
        ended: list[str] = []

        async def waits(request: Request) -> Answer:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(request.target)
            return Answer(200)

        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
            async with serve_requests(listener, waits):
                busy, idle = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
                busy.sends(b"/busy")
                await asyncio.sleep(0.05)
            assert ended == ["/busy"]
            assert [await busy.rest(), await idle.rest()] == [b"", b""]
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", port)
            for client in (busy, idle):
                client.writer.transport.abort()

    asyncio.run(run())


def test_an_error_of_the_handler_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(request: Request) -> Answer:
        raise RuntimeError("handler failed")

    def fails_at_once(request: Request) -> Answer:
        raise RuntimeError("handler failed")

    async def run() -> None:
        for handler in (fails, fails_at_once):
            async with served(handler) as connect:
                client = await connect()
                client.sends(b"/")
                assert await client.answer() == (500, b"")
                assert await client.rest() == b""

    asyncio.run(run())
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["handler failed"] * 2


# --- others

SECOND = b"GET /smuggled HTTP/1.1\r\nHost: here\r\n\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST
REFUSED: dict[str, tuple[bytes, int]] = {
    "a body": (GET + b"Content-Length: 5\r\n\r\nhello", 413),
    "a large body": (GET + b"Content-Length: 99999999999999\r\n\r\nhello", 413),
    "a length too large for a number": (GET + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "a negative length": (GET + b"Content-Length: -1\r\n\r\n", 400),
    "a signed length": (GET + b"Content-Length: +0\r\n\r\n", 400),
    "a hidden length": (GET + b"Content-Length: 0, 5\r\n\r\n", 400),
    "two lengths": (GET + b"Content-Length: 0\r\nContent-Length: 38\r\n\r\n", 400),
    "chunks": (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
    "a body of an unknown encoding": (GET + b"Transfer-Encoding: xchunked\r\n\r\n", 413),
    "chunks and a length": (GET + b"Content-Length: 38\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a length and chunks": (GET + b"Transfer-Encoding: chunked\r\nContent-Length: 38\r\n\r\n0\r\n\r\n", 400),
    "a space before the colon": (GET + b"Content-Length : 38\r\n\r\n", 400),
    "a folded header": (GET + b"X: 1\r\n Content-Length: 38\r\n\r\n", 400),
    "a header without a name": (GET + b": 1\r\n\r\n", 400),
    "a header without a colon": (GET + b"hello\r\n\r\n", 400),
    "a NUL": (GET + b"X: a\0b\r\n\r\n", 400),
    "a bare LF": (b"GET / HTTP/1.1\nHost: here\n\n", 400),
    "a bare CR": (b"GET / HTTP/1.1\rHost: here\r\r", 400),
    "a space in the target": (b"GET /a b HTTP/1.1\r\n\r\n", 400),
    "bytes in the target": (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a version": (b"GET / HTTP/2.0\r\n\r\n", 505),
    "no version": (b"GET / HTTP/1.1.1\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", 400),
    "a method in lower case": (b"get / HTTP/1.1\r\n\r\n", 400),
    "an unknown method": (b"HELLO / HTTP/1.1\r\n\r\n", 400),
    "POST": (b"POST / HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "CONNECT": (b"CONNECT here:80 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "OPTIONS": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "a long target": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
    "a long header": (GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "a long name": (GET + b"a" * 70_000 + b": 1\r\n\r\n", 431),
    "many headers": (GET + b"a: 1\r\n" * 101 + b"\r\n", 431),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("in_pieces", [False, True], ids=["at once", "in pieces"])
def test_what_is_refused_ends_its_connection(name: str, in_pieces: bool) -> None:
    sent, expected = REFUSED[name]

    async def run() -> None:
        async with served(echo) as connect:
            client = await connect()
            client.sends(b"/before")
            assert await client.answer() == (200, b"/before")
            step = max(1, len(sent) // 8) if in_pieces else len(sent)
            for start in range(0, len(sent), step):
                client.writer.write(sent[start : start + step])
                await asyncio.sleep(0.002 if in_pieces else 0)
            client.writer.write(SECOND)
            assert await client.answer() == (expected, b"")
            assert await client.rest() == b""
            # The server goes on.
            after = await connect()
            after.sends(b"/after")
            assert await after.answer() == (200, b"/after")

    asyncio.run(run())


def test_a_refusal_follows_the_answers_before_it() -> None:
    async def run() -> None:
        async with served(echo) as connect:
            client = await connect()
            client.sends(b"/50", b"/20")
            client.writer.write(b"nonsense\r\n\r\n" + SECOND)
            assert [await client.answer(), await client.answer()] == [(200, b"/50"), (200, b"/20")]
            assert await client.answer() == (400, b"")
            assert await client.rest() == b""

    asyncio.run(run())


def test_nothing_is_read_after_an_upgrade_or_the_last_request() -> None:
    async def run() -> None:
        async with served(echo) as connect:
            for line in (b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Connection: close\r\n"):
                client = await connect()
                client.writer.write(b"GET /20 HTTP/1.1\r\n" + HOST + line + b"\r\n" + SECOND)
                await asyncio.sleep(0.01)
                client.writer.write(SECOND)
                assert await client.answer() == (200, b"/20")
                assert await client.rest() == b""

    asyncio.run(run())


def test_too_many_requests_at_once_end_the_connection() -> None:
    async def run() -> None:
        async with served(echo, Limits(waiting=10)) as connect:
            client = await connect()
            client.sends(*[b"/60000"] * 12)
            assert await client.rest() == b""

    asyncio.run(run())


def test_slow_clients() -> None:
    async def ends(client: Client) -> bytes:
        return await asyncio.wait_for(client.rest(), 10)

    async def run() -> None:
        async with served(lambda _: Answer(200, LARGE), Limits(client_s=0.3)) as connect:
            silent, slow, idle, full = [await connect() for _ in range(4)]
            slow.writer.write(GET)
            idle.sends(b"/")
            await idle.answer()
            # More than the sockets' buffers have room for.
            full.transport.pause_reading()
            full.sends(*[b"/"] * 20)
            assert await ends(silent) == await ends(idle) == b""
            assert (await ends(slow)).startswith(b"HTTP/1.1 408 ")
            await asyncio.sleep(1)
            full.transport.resume_reading()
            assert len(await ends(full)) < 20 * len(LARGE)

    asyncio.run(run())


def test_a_client_that_has_read_an_answer_has_the_whole_time_again() -> None:
    async def run() -> None:
        async with served(lambda _: Answer(200, LARGE * 4), Limits(client_s=3)) as connect:
            client = await connect()
            client.transport.pause_reading()
            client.sends(b"/")
            await asyncio.sleep(2.2)
            client.transport.resume_reading()
            assert (await client.answer())[0] == 200
            await asyncio.sleep(1.5)
            client.sends(b"/")
            assert (await client.answer())[0] == 200

    asyncio.run(run())


@pytest.mark.parametrize("is_ready", [False, True], ids=["later", "at once"])
def test_answers_that_are_not_read_are_not_prepared(is_ready: bool) -> None:
    prepared: list[str] = []

    def large(request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        async def later() -> Answer:
            prepared.append(request.target)
            return Answer(200, LARGE)

        if is_ready and request.target == "/first":
            return Answer(200, LARGE * 4)
        return later()

    async def run() -> None:
        async with served(large) as connect:
            client = await connect()
            client.transport.pause_reading()
            client.sends(b"/first", *[b"/"] * 20)
            await asyncio.sleep(0.3)
            assert len(prepared) < 4
            client.transport.resume_reading()
            for _ in range(21):
                status, body = await client.answer()
                assert (status, body[: len(LARGE)]) == (200, LARGE)

    asyncio.run(run())


def test_a_slow_answer_is_waited_for() -> None:
    async def run() -> None:
        async with served(echo, Limits(client_s=0.1)) as connect:
            client = await connect()
            client.sends(b"/500")
            assert await client.answer() == (200, b"/500")

    asyncio.run(run())


def test_many_connections() -> None:
    async def run() -> None:
        async with served(echo, Limits(connections=8)) as connect:
            busy = [await connect() for _ in range(4)]
            for client in busy:
                client.sends(b"/1000")
            await asyncio.sleep(0.05)
            idle = [await connect() for _ in range(100)]
            last = await connect()
            last.sends(b"/last")
            assert await last.answer() == (200, b"/last")
            for client in busy:
                assert await client.answer() == (200, b"/1000")
            # The oldest ended first.
            for client in idle[:90]:
                assert await asyncio.wait_for(client.rest(), 10) == b""

    asyncio.run(run())


def test_more_connections_than_open_files() -> None:
    """In a process of its own, since the limit is its."""
    script = (
        "import asyncio, resource, sys; from envspec.io import http_server as server, loopback\n"
        "async def main():\n"
        "  with loopback.listening() as on:\n"
        "    async with server.serve_requests(on.socket, lambda _: server.Answer(200)):\n"
        "      print(on.socket.getsockname()[1], flush=True)\n"
        "      await asyncio.to_thread(sys.stdin.read)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "asyncio.run(main())\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        with ExitStack() as stack:
            for _ in range(500):
                last = stack.enter_context(socket.create_connection(address, 10))
            last.sendall(GET + b"\r\n")
            assert last.recv(12) == b"HTTP/1.1 200"
        assert process.communicate(b"", 10) == (b"", b"")


def test_busy_connections_are_not_ended_for_more() -> None:
    async def run() -> None:
        async with served(echo, Limits(connections=4)) as connect:
            busy = [await connect() for _ in range(4)]
            for client in busy:
                client.sends(b"/300")
            await asyncio.sleep(0.05)
            assert await (await connect()).rest() == b""
            for client in busy:
                assert await client.answer() == (200, b"/300")

    asyncio.run(run())
