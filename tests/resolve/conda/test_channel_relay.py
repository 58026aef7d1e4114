"""The relay between rattler and channels, asked by a client of plain HTTP."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from envspec.resolve.conda.channel_relay import Relay, run_relay
from envspec.resolve.types import Channel
from tests.support.servers.loopback import CLOSE, RESET, Answer, Asked, RawServer, reply

QUICK = {"ENVSPEC_HTTP_ATTEMPTS": "1", "ENVSPEC_HTTP_TOTAL_S": "5"}
REPODATA = b'{"packages":{}}' + b" " * 100_000
FILE = "linux-64/repodata.json"


@dataclass
class World:
    """A channel's server, and its relay."""

    server: RawServer
    relay: Relay

    async def sends(self, head: str, *lines: str, path: str | None = None) -> bytes:
        """All that comes back for one request. head: method and file of the channel."""
        method, _, file = head.partition(" ")
        address = urlsplit(next(iter(self.relay.mirrors.values())))
        target = address.path + file if path is None else path
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        request = [f"{method} {target} HTTP/1.1", f"Host: {address.netloc}", "Connection: close", *lines, "", ""]
        writer.write("\r\n".join(request).encode())
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            writer.transport.abort()


@asynccontextmanager
async def world(answer: Callable[[Asked], Answer], path: str = "/forge") -> AsyncIterator[World]:
    async with RawServer(answer) as server:
        channel = Channel("forge", f"{server.url}/forge", f"{server.url}{path}")
        async with run_relay([channel], QUICK) as relay:
            yield World(server, relay)


def ask(answer: Callable[[Asked], Answer] | Answer, head: str, *lines: str) -> tuple[bytes, list[Asked], Relay]:
    """What the relay answers to one request, what the channel's server was asked, and the relay."""

    async def run() -> tuple[bytes, list[Asked], Relay]:
        async with world(answer if callable(answer) else lambda _: answer) as found:
            return await found.sends(head, *lines), found.server.asked, found.relay

    return asyncio.run(run())


def parts(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode(errors="surrogateescape").split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def test_a_whole_file() -> None:
    answer, (asked,), _ = ask(reply(200, REPODATA, {"ETag": '"1"', "X-Own": "2"}), f"GET {FILE}", "X-Theirs: 1")
    status, headers, body = parts(answer)
    assert (status, headers["content-length"], headers["etag"], body) == (200, str(len(REPODATA)), '"1"', REPODATA)
    assert "x-own" not in headers and "x-theirs" not in asked.headers
    assert asked.path == f"/forge/{FILE}"


@pytest.mark.parametrize("etag", ['"é"', "caf\udce9"])
def test_a_header_that_is_not_ascii(etag: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(REPODATA)}\r\nETag: {etag}\r\n\r\n"
    answer, _, _ = ask([head.encode(errors="surrogateescape"), REPODATA], f"GET {FILE}")
    status, headers, _ = parts(answer)
    assert (status, headers["etag"]) == (200, etag.lower())


def test_a_part_of_a_file() -> None:
    def ranged(asked: Asked) -> Answer:
        return reply(206, b"0123", {"Content-Range": "bytes 10-13/99", "Accept-Ranges": "bytes"})

    answer, (asked,), _ = ask(ranged, "GET linux-64/repodata_shards.msgpack.zst", "Range: bytes=10-13")
    status, headers, body = parts(answer)
    assert (status, headers["content-range"], headers["content-length"], body) == (206, "bytes 10-13/99", "4", b"0123")
    assert asked.headers["range"] == "bytes=10-13"


def test_a_file_that_has_not_changed() -> None:
    answer, (asked,), _ = ask([b'HTTP/1.1 304 Same\r\nETag: "1"\r\n\r\n'], f"GET {FILE}", 'If-None-Match: "1"')
    status, headers, body = parts(answer)
    assert (status, headers["etag"], body) == (304, '"1"', b"")
    assert "content-length" not in headers and "transfer-encoding" not in headers
    assert asked.headers["if-none-match"] == '"1"'


def test_a_compressed_answer_is_passed_on_plain_in_chunks() -> None:
    answer, _, _ = ask(reply(200, gzip.compress(REPODATA), {"Content-Encoding": "gzip"}), f"GET {FILE}")
    status, headers, body = parts(answer)
    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    assert "content-encoding" not in headers and body.endswith(b"\r\n0\r\n\r\n")
    chunks = re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", body)
    assert chunks.removesuffix(b"\r\n") == REPODATA


@pytest.mark.parametrize(("status", "expected"), [(200, 200), (404, 404), (403, 424), (500, 424)])
def test_head(status: int, expected: int) -> None:
    head = [f"HTTP/1.1 {status} So\r\nContent-Length: 99\r\n\r\n".encode()]
    answer, (asked,), relay = ask(head, f"HEAD {FILE}.zst")
    found, _, body = parts(answer)
    assert (found, body, asked.method) == (expected, b"", "HEAD")
    assert bool(relay.errors) == (expected == 424)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_platform_that_is_missing_is_recorded(method: str) -> None:
    answer, _, relay = ask(lambda asked: reply(404, b"" if asked.method == "HEAD" else b"none"), f"{method} {FILE}")
    assert parts(answer)[0] == 404
    assert [subdir for _, subdir in relay.missing] == ["linux-64"] and not relay.errors


def test_a_server_without_shards() -> None:
    answer, _, relay = ask(reply(501, b"no"), "GET linux-64/repodata_shards.msgpack.zst")
    status, _, body = parts(answer)
    assert (status, body) == (404, b"no")
    assert not relay.missing and not relay.errors


FAULTS: dict[str, tuple[Answer, str]] = {
    "status": (reply(500), "HTTP 500"),
    "html": (reply(200, b"<html>"), "not a channel's repodata"),
    "reset": ([RESET], "the connection broke"),
    "not http": ([b"hello\r\n\r\n"], "not HTTP"),
    "redirect": (reply(302, b"", {"Location": "http://127.0.0.2:9/forge"}), "redirect"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_error_is_recorded_and_not_retried(name: str) -> None:
    fault, message = FAULTS[name]
    answer, _, relay = ask(fault, f"GET {FILE}")
    status, _, body = parts(answer)
    assert (status, body) == (424, b"")
    (error,) = relay.errors.values()
    assert message in str(error)


@pytest.mark.parametrize("end", [RESET, CLOSE], ids=["reset", "close"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_an_answer_that_is_cut_off_is_cut_off(end: Sequence[object], is_chunked: bool) -> None:
    half = REPODATA[:50_000]
    if is_chunked:
        steps = [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n" % (len(half), half),
            0.2,
            end,
        ]
    else:
        steps = [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", half, 0.2, end]
    answer, _, relay = ask(steps, f"GET {FILE}")  # type: ignore[arg-type]
    assert not answer.endswith(b"0\r\n\r\n") and len(answer) < len(REPODATA)
    assert not relay.errors


def test_other_programs_get_nothing() -> None:
    async def run() -> None:
        async with world(lambda _: reply(200, REPODATA)) as found:
            address = urlsplit(next(iter(found.relay.mirrors.values())))
            _, token, number, _ = address.path.split("/")
            for path in (
                "/",
                f"/{number}/{FILE}",
                f"/{token[:-1]}/{number}/{FILE}",
                f"/{token}/7/{FILE}",
                f"/{token}/{number}",
                f"http://{address.netloc}/{token}/{number}/{FILE}",
            ):
                assert parts(await found.sends("GET", path=path))[0] == 404
            assert parts(await found.sends(f"POST {FILE}"))[0] == 405
            assert parts(await found.sends(f"GET {FILE}", "Host: evil.example"))[0] == 404
            assert not found.server.asked

    asyncio.run(run())


def test_a_client_that_disconnects_ends_the_request_to_the_channel() -> None:
    async def run() -> None:
        gone = asyncio.Event()

        class Watched(RawServer):
            async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + REPODATA[:10_000])
                await reader.read()
                gone.set()
                writer.close()

        async with Watched(lambda _: []) as server:
            async with run_relay([Channel("forge", f"{server.url}/forge", f"{server.url}/forge")], QUICK) as relay:
                address = urlsplit(next(iter(relay.mirrors.values())))
                reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
                writer.write(f"GET {address.path}{FILE} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
                await reader.readuntil(b"\r\n\r\n")
                writer.transport.abort()
                await asyncio.wait_for(gone.wait(), 4)
            assert not relay.errors

    asyncio.run(run())
