"""Plain answers without aiohttp: servers that misbehave get the same result as from `Http`, which repeats the request.

Real servers on loopback write every byte of their answers.
"""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from envspec.errors import EnvspecError
from envspec.io import plain_http
from envspec.io.http import UNCHANGED, ZIPPED, open_http
from envspec.io.http_types import Response, Stalled, Timeouts, Unreachable
from envspec.io.lazy_http import LazyHttp, open_lazy_http
from envspec.io.plain_http import NotPlain, PlainHttp
from envspec.origins import Bounds
from tests.support.certificates import self_signed
from tests.support.servers.loopback import CLOSE, RESET, Answer, Asked, End, RawServer, noting, reply

QUICK = Timeouts(connect_s=1.0, stall_s=0.3, total_s=5.0, attempts=1, backoff_s=0.01, retry_after_s=1.0)
OK = b"HTTP/1.1 200 OK\r\n"
PAGE = b"<a>page</a>" * 100
PACKED = gzip.compress(PAGE)
#: Larger than what a connection keeps of an answer that it must not read.
MOST = 100_000


def get(server: RawServer, path: str = "/", **settings: object) -> Awaitable[Response]:
    """What `PlainHttp` alone makes of a server's answer, on a connection of its own."""
    arguments = {"headers": ZIPPED, "max_bytes": MOST, "within": None, **settings}
    return PlainHttp({}, QUICK, 4).get(f"{server.url}{path}", **arguments)  # type: ignore[arg-type]


def serve(answer: Callable[[Asked], Answer] | Answer, scenario: Callable[[RawServer], Awaitable[None]]) -> RawServer:
    """Run a scenario against a server with this behaviour; the server with what it was asked."""

    async def run() -> RawServer:
        async with RawServer(answer if callable(answer) else lambda _: answer) as server:
            await scenario(server)
        return server

    return asyncio.run(run())


async def left(server: RawServer) -> None:
    """Return when the server has no connection any more."""
    until = time.monotonic() + 10
    while server._tasks:
        assert time.monotonic() < until, "the connection is still open"
        await asyncio.sleep(0.01)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (*chunks, b""))


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 5\r\n"
PLAIN: dict[str, Answer] = {
    "length": reply(200, PAGE, {"Content-Type": "text/html", "ETag": '"1"'}),
    "empty": reply(200),
    "chunks": [CHUNKED + b"\r\n", chunked(b"he", b"llo")],
    "split everywhere": [bytes([each]) for each in OK + LENGTH + b"\r\nhello"],
    "chunks split everywhere": [bytes([each]) for each in CHUNKED + b"\r\n" + chunked(b"he", b"llo")],
    "gzip": reply(200, PACKED, {"Content-Encoding": "gzip"}),
    "gzip in chunks": [CHUNKED + b"Content-Encoding: GZIP\r\n\r\n", chunked(PACKED[:9], PACKED[9:])],
    "gzip of nothing": reply(200, b"", {"Content-Encoding": "gzip"}),
    "identity": reply(200, b"x", {"Content-Encoding": "identity"}),
    "not found": reply(404, b"no such page"),
    "gone": reply(410),
    "closes": [OK + LENGTH + b"Connection: close\r\n\r\nhello", CLOSE],
    "repeated": [OK + LENGTH + b"Cache-Control: no-cache\r\nCache-Control: no-store\r\n\r\nhello"],
    "slow to begin": [0.1, *reply(200, b"x")],
    "offers another protocol": [OK + LENGTH + b"Upgrade: h2, h2c\r\nConnection: Upgrade, Keep-Alive\r\n\r\nhello"],
    "tabs around a value": [OK + LENGTH + b'ETag:\t"1"\t\r\nX-More: a\tb \t\r\n\r\nhello'],
    "no reason": [b"HTTP/1.1 200\r\n" + LENGTH + b"\r\nhello"],
}
SLOWLY: Answer = [b"1\r\nx\r\n", 0.02] * 3000
NOT_PLAIN: dict[str, Answer] = {
    # Two readers of such an answer may disagree on its end.
    "two lengths": [OK + LENGTH + b"Content-Length: 6\r\n\r\nhello", CLOSE],
    "a length twice": [OK + LENGTH + LENGTH + b"\r\nhello", CLOSE],
    "a list of lengths": [OK + b"Content-Length: 5, 5\r\n\r\nhello", CLOSE],
    "a signed length": [OK + b"Content-Length: +5\r\n\r\nhello", CLOSE],
    "an endless length": [OK + b"Content-Length: 99999999999999999999\r\n\r\nhello", CLOSE],
    "a length and chunks": [CHUNKED + LENGTH + b"\r\n", chunked(b"hello"), CLOSE],
    "chunks and a length": [OK + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n", chunked(b"hello"), CLOSE],
    "another coding": [OK + b"Transfer-Encoding: xchunked\r\n\r\n", chunked(b"hello"), CLOSE],
    "two codings": [OK + b"Transfer-Encoding: chunked, identity\r\n\r\n", chunked(b"hello"), CLOSE],
    "chunked twice": [CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n", chunked(b"hello"), CLOSE],
    "a space before the colon": [OK + b"Content-Length : 5\r\n\r\nhello", CLOSE],
    "a folded header": [OK + b"X: a\r\n Content-Length: 6\r\n" + LENGTH + b"\r\nhello", CLOSE],
    "lines without CR": [b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", CLOSE],
    "a NUL": [OK + b"X: a\0b\r\n" + LENGTH + b"\r\nhello", CLOSE],
    "not ASCII": [OK + b"X: \xff\r\n" + LENGTH + b"\r\nhello"],
    "two types": [OK + LENGTH + b"Content-Type: text/html\r\nContent-Type: text/plain\r\n\r\nhello"],
    "bytes after the end": [OK + LENGTH + b"\r\nhello!", CLOSE],
    "an answer after the end": [OK + LENGTH + b"\r\nhello" + OK + LENGTH + b"\r\nworld", CLOSE],
    "bytes after the chunks": [CHUNKED + b"\r\n" + chunked(b"hello") + b"!", CLOSE],
    "no length": [OK + b"\r\nhello", CLOSE],
    "no head": [CLOSE],
    "reset": [RESET],
    "half a head": [OK + b"Content-", CLOSE],
    "half a body": [OK + LENGTH + b"\r\nhel", CLOSE],
    "half a body, reset": [OK + LENGTH + b"\r\nhel", 0.05, RESET],
    "half a chunk": [CHUNKED + b"\r\n5\r\nhel", CLOSE],
    "no last chunk": [CHUNKED + b"\r\n5\r\nhello\r\n", CLOSE],
    "a bad size of a chunk": [CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n", CLOSE],
    "a negative chunk": [CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n", CLOSE],
    "an endless chunk": [CHUNKED + b"\r\nffffffffffffffffff\r\nhello", CLOSE],
    "a chunk that is longer": [CHUNKED + b"\r\n3\r\nhello\r\n0\r\n\r\n", CLOSE],
    "a header behind the chunks": [CHUNKED + b"\r\n5\r\nhello\r\n0\r\nX-More: 1\r\n\r\n"],
    "an early hint": [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", *reply(200, b"hello")],
    "continue": [b"HTTP/1.1 100 Continue\r\n\r\n", *reply(200, b"hello")],
    "another protocol": [b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", CLOSE],
    "an older version": [b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\nhello", CLOSE],
    "not HTTP": [b"220 smtp.example ESMTP\r\n", CLOSE],
    "no content": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "a part of it": reply(206, b"hello", {"Content-Range": "bytes 0-4/9"}),
    "not modified": [b"HTTP/1.1 304 Not Modified\r\n\r\n"],
    "login needed": reply(401),
    "forbidden": reply(403, b"hello"),
    "too many requests": reply(429),
    "unavailable": reply(503),
    "no gzip": reply(200, b"hello", {"Content-Encoding": "gzip"}),
    "half of gzip": reply(200, PACKED[:-9], {"Content-Encoding": "gzip"}),
    "another checksum": reply(200, PACKED[:-8] + bytes(8), {"Content-Encoding": "gzip"}),
    "bytes after gzip": reply(200, PACKED + b"hello", {"Content-Encoding": "gzip"}),
    "gzip twice": reply(200, PACKED + PACKED, {"Content-Encoding": "gzip"}),
    "deflate": reply(200, zlib.compress(PAGE), {"Content-Encoding": "deflate"}),
    "two encodings": reply(200, PACKED, {"Content-Encoding": "gzip, gzip"}),
    "a bomb": reply(200, gzip.compress(bytes(50 * MOST)), {"Content-Encoding": "gzip"}),
    "too long": reply(200, bytes(MOST + 1)),
    "too long in chunks": [CHUNKED + b"\r\n", *[b"3e8\r\n%b\r\n" % bytes(1000)] * 200],
    "an endless head": [OK, *[b"X-%d: %b\r\n" % (each, bytes(b"x" * 1000)) for each in range(1000)]],
    "an endless header": [OK + b"X: ", *[b"x" * 10_000] * 100],
    "endless extensions of a chunk": [CHUNKED + b"\r\n5;", *[b"x" * 10_000] * 100],
    "stalled": [OK + LENGTH + b"\r\nhel", 30.0],
    "a byte now and then": [CHUNKED + b"\r\n", *SLOWLY],
}


@pytest.mark.parametrize("name", [*PLAIN, *NOT_PLAIN])
def test_every_answer_has_the_result_of_http(name: str) -> None:
    """Of the whole: response or error. A plain one is requested once, without `Http`."""
    answer = PLAIN.get(name) or NOT_PLAIN[name]

    async def outcome(http: object, server: RawServer) -> tuple[object, ...]:
        try:
            got = await http.request("GET", f"{server.url}/a/b", max_bytes=MOST)  # type: ignore[attr-defined]
        except EnvspecError as error:
            return type(error), error.message, error.hint
        headers = {each: got.headers.get(each) for each in ("Content-Type", "ETag", "Content-Encoding", "X-More")}
        cached = ", ".join(got.headers.getall("Cache-Control", []))
        return got.url, got.status, headers, cached, got.body, got.gzipped, got.with_login

    async def scenario(server: RawServer) -> None:
        async with open_http({}, timeouts=QUICK) as http, open_lazy_http({}, timeouts=QUICK) as lazy:
            expected = await outcome(http, server)
            server.asked.clear()
            assert await outcome(lazy, server) == expected
            # aiohttp repeats some by itself.
            assert (len(server.asked) == 1) is (name in PLAIN)

    serve(answer, scenario)


# A server that sleeps does not notice.
@pytest.mark.parametrize("name", sorted(NOT_PLAIN.keys() - {"stalled"}))
def test_what_is_not_plain_ends_its_connection(name: str) -> None:
    async def scenario(server: RawServer) -> None:
        with pytest.raises(NotPlain):
            await get(server)
        await left(server)

    serve(NOT_PLAIN[name], scenario)


def test_connections_are_kept_and_bounded() -> None:
    async def at_once(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 4)
        for _ in range(3):
            await asyncio.gather(*(ask(plain, f"{server.url}/{number}") for number in range(40)))
        assert server.connections == 4
        plain.close()
        await left(server)

    assert len(serve(reply(200, b"x"), at_once).asked) == 120


def ask(plain: PlainHttp, url: str, **settings: object) -> Awaitable[Response]:
    arguments = {"headers": ZIPPED, "max_bytes": MOST, "within": None, **settings}
    return plain.get(url, **arguments)  # type: ignore[arg-type]


def test_the_request_is_the_one_of_http() -> None:
    seen: list[Asked] = []

    async def scenario(server: RawServer) -> None:
        async with open_http({}) as http, open_lazy_http({}) as lazy:
            for each in (http, lazy):
                for login in ("", "user:pass%2Fword@", "t%20oken@", "user:@", "%C3%BC:%25@"):
                    address = server.url.replace("://", f"://{login}")
                    await each.request(
                        "GET", f"{address}/simple/a/torch-1.0%2Bcu1.whl", headers={"Accept": "text/html"}
                    )
                    assert isinstance(each, LazyHttp) is (each is lazy)
                await each.part(f"{server.url}/x", "bytes=-5", lambda *_: None, max_bytes=9, within=None)

    serve(noting(seen, reply(200, b"x")), scenario)
    half = len(seen) // 2
    assert len(seen) == 12
    assert seen[:half] == seen[half:]


@pytest.mark.parametrize("answer", [[*reply(200, b"one"), CLOSE], [*reply(200, b"one"), 0.05, CLOSE]])
def test_a_connection_that_the_server_closed_is_not_used(answer: Answer) -> None:
    async def scenario(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 4)
        for _ in range(3):
            assert (await ask(plain, f"{server.url}/")).body == b"one"
            await asyncio.sleep(0.2)

    assert serve(answer, scenario).connections == 3


def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "_KEPT_S", 0.2)

    async def scenario(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 4)
        for _ in range(3):
            assert (await ask(plain, f"{server.url}/")).body == b"one"
            await asyncio.sleep(0.3)
        plain.close()
        await left(server)

    assert serve(reply(200, b"one"), scenario).connections == 3


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_request_on_a_connection_that_closes_is_repeated(end: End) -> None:
    """The server decides to close while the request is on its way: no error, and the server stays a plain one."""
    answers: Iterator[Answer] = iter([reply(200, b"first"), [end]])

    async def scenario(server: RawServer) -> None:
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            bodies = [(await lazy.request("GET", f"{server.url}/{number}")).body for number in range(4)]
            assert bodies == [b"first", b"next", b"next", b"next"]
        assert [each.path for each in server.asked] == ["/0", "/1", "/1", "/2", "/3"]
        assert [each.headers.get("connection") for each in server.asked].count(None) == 5

    serve(lambda _: next(answers, reply(200, b"next")), scenario)


def test_an_answer_that_nobody_asked_for_is_never_used() -> None:
    answers: Iterator[Answer] = iter([[*reply(200, b"mine"), 0.05, *reply(200, b"evil")]])

    async def scenario(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 4)
        assert (await ask(plain, f"{server.url}/")).body == b"mine"
        await asyncio.sleep(0.3)
        assert (await ask(plain, f"{server.url}/")).body == b"mine too"
        assert server.connections == 2

    serve(lambda _: next(answers, reply(200, b"mine too")), scenario)


def test_a_server_with_another_answer_is_left_to_http() -> None:
    async def scenario(server: RawServer) -> None:
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            for number in range(3):
                assert (await lazy.request("GET", f"{server.url}/{number}")).status == 403
        assert [each.path for each in server.asked] == ["/0", "/0", "/1", "/2"]

    serve(reply(403), scenario)


@pytest.mark.parametrize(
    ("status", "pause_s", "environ"), [(429, 1, {}), (503, 1, {}), (503, 2, {"ENVSPEC_HTTP_RETRY_AFTER_S": "2"})]
)
def test_a_server_that_wants_a_pause_gets_it(status: int, pause_s: int, environ: dict[str, str]) -> None:
    asked: list[float] = []

    def answer(_: Asked) -> Answer:
        asked.append(time.monotonic())
        return reply(200, b"x") if len(asked) > 1 else reply(status, b"", {"Retry-After": str(pause_s)})

    async def scenario(server: RawServer) -> None:
        async with open_lazy_http(environ, timeouts=QUICK) as lazy:
            assert (await lazy.request("GET", f"{server.url}/")).body == b"x"

    serve(answer, scenario)
    assert asked[1] - asked[0] >= pause_s


def test_a_redirect_is_followed_within_its_bounds() -> None:
    moved = reply(302, b"", {"Location": "/new"})

    async def scenario(server: RawServer) -> None:
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            got = await lazy.request("GET", f"{server.url}/old", within=Bounds("index corp", [server.url], ""))
            assert (got.url, got.body) == (f"{server.url}/new", b"here")

    serve(lambda asked: moved if asked.path == "/old" else reply(200, b"here"), scenario)


def test_another_server_gets_no_request() -> None:
    async def scenario(server: RawServer) -> None:
        with pytest.raises(NotPlain):
            await get(server, within=Bounds("index corp", ["https://index.example"], ""))
        assert server.connections == 0

    serve(reply(200), scenario)


def test_a_proxy_is_left_to_http() -> None:
    async def scenario(server: RawServer) -> None:
        with pytest.raises(NotPlain):
            await ask(PlainHttp({"HTTP_PROXY": server.url}, QUICK, 4), "http://index.invalid/")
        async with open_lazy_http({"HTTP_PROXY": server.url}, timeouts=QUICK) as lazy:
            assert (await lazy.request("GET", "http://index.invalid/")).body == b"x"
        assert [each.target for each in server.asked] == ["http://index.invalid/"]

    serve(reply(200, b"x"), scenario)


def test_a_body_that_is_not_admitted_is_not_read() -> None:
    """A server without ranges, and a wheel of 4 GB."""

    def refuse(status: int, size: int | None) -> None:
        assert (status, size) == (200, 4_000_000_000)
        raise EnvspecError("no ranges")

    head = OK + b"Content-Length: 4000000000\r\n\r\n"
    sent: list[int] = []

    def steps() -> Answer:
        yield head
        for number in range(4000):
            sent.append(number)
            yield bytes(1_000_000)

    async def scenario(server: RawServer) -> None:
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            with pytest.raises(EnvspecError, match="no ranges"):
                await lazy.part(f"{server.url}/x.whl", "bytes=-9", refuse, max_bytes=MOST, within=None)
        await left(server)
        assert len(server.asked) == 1
        assert len(sent) < 40

    serve(lambda _: steps(), scenario)


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_part_has_the_bytes_of_the_file(encoding: str) -> None:
    """A server that packs a part in spite of `Accept-Encoding: identity`: aiohttp unpacks it."""
    body = {"gzip": PACKED, "identity": PAGE}[encoding]
    answer = reply(206, body, {"Content-Encoding": encoding, "Content-Range": "bytes 0-4/9"})

    async def scenario(server: RawServer) -> None:
        headers = {**UNCHANGED, "Range": "bytes=0-4"}
        if encoding == "identity":
            assert (await get(server, headers=headers)).body == PAGE
        else:
            with pytest.raises(NotPlain):
                await get(server, headers=headers)
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            got = await lazy.part(f"{server.url}/", "bytes=0-4", lambda *_: None, max_bytes=MOST, within=None)
            assert (got.status, got.body) == (206, PAGE)

    serve(answer, scenario)


def test_a_page_that_is_still_valid() -> None:
    not_modified = [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 700\r\n\r\n"]

    async def scenario(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 1)
        for _ in range(2):
            got = await ask(plain, f"{server.url}/", headers={**ZIPPED, "If-None-Match": '"1"'})
            assert (got.status, got.body) == (304, b"")
        assert server.connections == 1

    serve(not_modified, scenario)


@pytest.mark.parametrize("etag", ['"1"\r\nX-Evil: 1', '"ü"', '"1"\n'])
def test_a_header_is_one_line(etag: str) -> None:
    async def scenario(server: RawServer) -> None:
        with pytest.raises(NotPlain):
            await get(server, headers={"If-None-Match": etag})
        assert server.connections == 0

    serve(reply(200), scenario)


def test_time_limits_of_the_environment() -> None:
    async def scenario(server: RawServer) -> None:
        environ = {"ENVSPEC_HTTP_STALL_S": "0.2", "ENVSPEC_HTTP_ATTEMPTS": "1"}
        async with open_lazy_http(environ) as lazy:
            started = time.monotonic()
            with pytest.raises(Stalled, match=r"no byte for 0\.2 s"):
                await lazy.request("GET", f"{server.url}/")
            assert time.monotonic() - started < 15

    serve([30.0], scenario)


def test_small_chunks_take_no_more_memory_than_their_body() -> None:
    size = 1_000_000
    piece = b"2\r\nxx\r\n" * 5000

    async def scenario(server: RawServer) -> None:
        tracemalloc.start()
        assert len((await get(server, max_bytes=4 * size)).body) == size
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 12 * size

    serve([CHUNKED + b"\r\n", *[piece] * (size // 10_000), b"0\r\n\r\n"], scenario)


@pytest.mark.parametrize("login", ["%FF:x", "u:%FC", "u:%E4%B8"])
def test_a_login_that_is_not_in_utf8_is_left_to_http(login: str) -> None:
    async def scenario(server: RawServer) -> None:
        async with open_http({}) as http, open_lazy_http({}) as lazy:
            for each in (http, lazy):
                await each.request("GET", server.url.replace("://", f"://{login}@"))
        first, second = server.asked
        assert first.headers["authorization"] == second.headers["authorization"]

    serve(reply(200), scenario)


def test_a_long_answer_has_the_time_that_it_needs() -> None:
    """It takes longer than a server may stall."""
    size = 50_000
    tenths: Answer = [0.1, bytes(size // 10)] * 10
    pieces = [OK + b"Content-Length: %d\r\n\r\n" % size, *tenths]

    async def scenario(server: RawServer) -> None:
        assert len((await get(server)).body) == size

    serve(pieces, scenario)


def test_a_closed_port_is_named() -> None:
    async def run() -> None:
        async with RawServer(lambda _: reply(200)) as server:
            url = f"{server.url}/"
        with pytest.raises(NotPlain):
            await ask(PlainHttp({}, QUICK, 4), url)
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            with pytest.raises(Unreachable, match="no connection"):
                await lazy.request("GET", url)
            with pytest.raises(Unreachable, match="cannot resolve host"):
                await lazy.request("GET", "http://index.invalid/")

    asyncio.run(run())


def test_another_address_of_a_name_is_tried() -> None:
    """`localhost` may be ::1 first, where nothing listens."""

    async def scenario(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 4)
        await asyncio.gather(*(ask(plain, f"http://localhost:{server.port}/") for _ in range(9)))
        plain.close()

    serve(reply(200, b"x"), scenario)


def test_certificates(tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)

    async def run() -> None:
        async with RawServer(lambda _: reply(200, PAGE), tls=context) as server:
            url = f"https://{server.host}/"
            with pytest.raises(NotPlain):
                await ask(PlainHttp({}, QUICK, 4), url)
            async with open_lazy_http({}, timeouts=QUICK) as lazy:
                with pytest.raises(EnvspecError, match=r"not trusted.*self.signed"):
                    await lazy.request("GET", url)
            assert not server.asked
            for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
                plain = PlainHttp({variable: str(certificate)}, QUICK, 4)
                await asyncio.gather(*(ask(plain, f"{url}{number}") for number in range(9)))
                plain.close()
            # Of another name than the certificate's.
            with pytest.raises(NotPlain):
                await ask(
                    PlainHttp({"SSL_CERT_FILE": str(certificate)}, QUICK, 4), url.replace("127.0.0.1", "localhost")
                )
            assert len(server.asked) == 27

    asyncio.run(run())


def test_https_of_a_plain_server() -> None:
    async def scenario(server: RawServer) -> None:
        with pytest.raises(NotPlain):
            await ask(PlainHttp({}, QUICK, 4), f"https://{server.host}/")
        async with open_lazy_http({}, timeouts=QUICK) as lazy:
            with pytest.raises(EnvspecError, match="https://"):
                await lazy.request("GET", f"https://{server.host}/")

    serve(reply(200), scenario)


def test_a_cancelled_request_ends_its_connection() -> None:
    async def scenario(server: RawServer) -> None:
        plain = PlainHttp({}, QUICK, 1)
        waiting = [asyncio.ensure_future(ask(plain, f"{server.url}/slow")) for _ in range(3)]
        await asyncio.sleep(0.1)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await left(server)
        assert (await ask(plain, f"{server.url}/")).body == b"x"

    serve(lambda asked: [0.2, *reply(200, b"late")] if asked.path == "/slow" else reply(200, b"x"), scenario)


@given(st.from_regex(plain_http._URL, fullmatch=True))
def test_urls_are_those_of_http(url: str) -> None:
    """What is requested, stored and joined with links is the same, whichever client answers."""
    try:
        target = plain_http._target(url)
    except NotPlain:
        return
    expected = URL(url)
    assert target.url == str(expected.with_user(None))
    assert (target.path, target.origin.port) == (expected.raw_path_qs, expected.port)
    if target.login is not None:
        assert (target.login.username, target.login.secret) == (expected.user, expected.password or "")
