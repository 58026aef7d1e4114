"""The door to HTTP against servers that misbehave in every way that was seen in the wild."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from envspec.io import http_types
from envspec.io.http import Http, open_http
from envspec.io.http_types import Credential, Response, Timeouts
from envspec.structs import replace
from tests.support.certificates import self_signed
from tests.support.servers.loopback import CLOSE, RESET, Answer, Asked, RawServer, noting, reply

QUICK = Timeouts(connect_s=1.0, stall_s=0.3, total_s=5.0, backoff_s=0.01, retry_after_s=1.0)


def talk(
    answer: Callable[[Asked], Answer],
    scenario: Callable[[Http, RawServer], Awaitable[object]],
    *,
    credentials: dict[str, Credential] | None = None,
    timeouts: Timeouts = QUICK,
    environ: dict[str, str] | None = None,
    on_retry: Callable[[str], None] = lambda _: None,
) -> RawServer:
    """Run a scenario against a server with this behaviour; the server with what it was asked."""

    async def run() -> RawServer:
        async with RawServer(answer) as server:
            given = {key.replace("SERVER", server.url): value for key, value in (credentials or {}).items()}
            settings = {key: value.replace("SERVER", server.url) for key, value in (environ or {}).items()}
            async with open_http(settings, credentials=given, timeouts=timeouts, on_retry=on_retry) as http:
                await scenario(http, server)
        return server

    return asyncio.run(run())


def fetch(answer: Callable[[Asked], Answer], **settings: object) -> Response:
    """GET / from a server with this behaviour."""
    got: list[Response] = []

    async def scenario(http: Http, server: RawServer) -> None:
        got.append(await http.request("GET", f"{server.url}/"))

    talk(answer, scenario, **settings)  # type: ignore[arg-type]
    return got[0]


def after(times: int, first: Answer, then: Answer) -> Callable[[Asked], Answer]:
    """`first` for the first requests, `then` for all later ones."""
    left = iter([first] * times)
    return lambda _: next(left, then)


def test_a_response_and_its_request() -> None:
    seen: list[Asked] = []
    got = fetch(noting(seen, reply(200, b"page", {"X-Kind": "simple"})))
    assert (got.status, got.body, got.headers.get("x-kind")) == (200, b"page", "simple")
    assert seen[0].headers["user-agent"].startswith("envspec/")


def test_connections_are_kept_alive_and_bounded() -> None:
    async def one_by_one(http: Http, server: RawServer) -> None:
        for _ in range(10):
            await http.request("GET", f"{server.url}/")

    async def at_once(http: Http, server: RawServer) -> None:
        await asyncio.gather(*(http.request("GET", f"{server.url}/{n}") for n in range(100)))

    assert talk(lambda _: reply(200, b"x"), one_by_one).connections == 1
    server = talk(lambda _: [0.01, *reply(200, b"x")], at_once)
    assert len(server.asked) == 100
    assert 1 < server.connections <= 32


HEAD = b"HTTP/1.1 200 OK\r\n"
SHORT: Answer = [HEAD + b"Content-Length: 100\r\n\r\nonly this", CLOSE]


@pytest.mark.parametrize("fault", [[CLOSE], [RESET], SHORT, reply(502), reply(503), reply(504), reply(429)])
def test_a_fault_that_passes_is_tried_again(fault: Answer) -> None:
    notices: list[str] = []
    got = fetch(after(2, fault, reply(200, b"at last")), on_retry=notices.append)
    assert got.body == b"at last"
    assert 1 <= len(notices) <= 2  # aiohttp itself asks once more where a connection ends without an answer
    assert all("trying again" in line for line in notices)


ENDLESS: Answer = [b"x" * 65536] * 100
BOMB = reply(200, gzip.compress(b"\0" * 10_000_000), {"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    ("answer", "kind", "text", "attempts"),
    [
        (SHORT, http_types.IncompleteResponse, "response ended early", 4),
        (
            [HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", CLOSE],
            http_types.IncompleteResponse,
            "ended early",
            4,
        ),
        ([b"220 ftp.example.com ready\r\n\r\n"], http_types.IncompleteResponse, "not HTTP", 4),
        ([30.0], http_types.Stalled, r"no byte for 0\.3 s", 2),
        ([HEAD + b"Content-Length: 100\r\n\r\nhalf", 30.0], http_types.Stalled, r"no byte for 0\.3 s", 2),
        ([HEAD + b"\r\n", *(b".", 0.1) * 100], http_types.Stalled, "within the time limit", 2),
        ([HEAD + b"\r\n", *ENDLESS], http_types.TooLarge, "larger than 100000 bytes", 1),
        ([HEAD + b"Content-Length: 999999999\r\n\r\n", *ENDLESS], http_types.TooLarge, "larger than 100000", 1),
        (BOMB, http_types.TooLarge, "larger than 100000", 1),
        (reply(302), http_types.RequestError, "redirects to no", 1),
        (reply(302, b"", {"Location": "ftp://host/x"}), http_types.RequestError, "redirects to no", 1),
        (reply(302, b"", {"Location": "http://[bad/"}), http_types.RequestError, "redirects to no", 1),
        (reply(302, b"", {"Location": "/"}), http_types.RequestError, "without an end", 9),
    ],
)
def test_responses_that_fail(answer: Answer, kind: type[Exception], text: str, attempts: int) -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        with pytest.raises(kind, match=text):
            await http.request("GET", f"{server.url}/", max_bytes=100_000)

    assert len(talk(lambda _: answer, scenario, timeouts=replace(QUICK, total_s=0.8)).asked) == attempts


def test_retries_end() -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        with pytest.raises(http_types.Unreachable, match="the connection broke"):
            await http.request("GET", f"{server.url}/")

    # aiohttp sends it once more within each attempt that ends without a response.
    assert QUICK.attempts <= len(talk(lambda _: [RESET], scenario).asked) <= 2 * QUICK.attempts


@pytest.mark.parametrize(
    ("status", "attempts"), [*((each, 1) for each in (400, 401, 403, 404, 500, 501)), (503, 4), (429, 4)]
)
def test_a_permanent_status_is_the_response(status: int, attempts: int) -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        got = await http.request("GET", f"{server.url}/")
        with pytest.raises(http_types.BadStatus, match=f"HTTP {status}"):
            got.checked()

    assert len(talk(lambda _: reply(status), scenario).asked) == attempts


def test_retry_after_is_waited_for() -> None:
    start = time.monotonic()
    assert fetch(after(1, reply(429, b"", {"Retry-After": "1"}), reply(200, b"x"))).status == 200
    assert time.monotonic() - start >= 1.0


def test_a_retry_after_beyond_patience_is_told_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(http_types.BadStatus, match="try again in 3600 s"):
        fetch(lambda _: reply(429, b"", {"Retry-After": "3600"})).checked()
    assert time.monotonic() - start < 60


def test_a_closed_port_is_named() -> None:
    async def run() -> None:
        async with RawServer(lambda _: []) as server:
            url = f"{server.url}/simple/?key=secret"
        async with open_http({}, timeouts=QUICK) as http:
            with pytest.raises(http_types.Unreachable, match="no connection") as caught:
                await http.request("GET", url)
            assert "secret" not in str(caught.value)
            assert caught.value.exit_code == 5

    asyncio.run(run())


@pytest.mark.parametrize("url", ["ftp://host/x", "http://", "no url", "http://[bad/", "/simple/", "file:///etc/passwd"])
def test_what_is_no_url_is_refused(url: str) -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        with pytest.raises(http_types.RequestError):
            await http.request("GET", url)

    talk(lambda _: reply(200), scenario)


def test_credentials_of_a_url_are_sent_and_never_told() -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        got = await http.request("GET", server.url.replace("://", "://user:hunter2@"))
        assert "hunter2" not in got.url
        with pytest.raises(http_types.BadStatus) as caught:
            got.checked()
        assert "hunter2" not in str(caught.value)

    asked = talk(lambda _: reply(401), scenario).asked
    assert asked[0].headers["authorization"] == "Basic dXNlcjpodW50ZXIy"


def test_credentials_belong_to_an_origin() -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        async with RawServer(lambda _: reply(200)) as other:
            await http.request("GET", server.url)
            await http.request("GET", other.url)
        assert "authorization" in server.asked[0].headers
        assert "authorization" not in other.asked[0].headers

    talk(lambda _: reply(200), scenario, credentials={"SERVER": Credential("user", "hunter2")})


def test_a_redirect_is_followed_within_its_origin_with_credentials() -> None:
    def answer(asked: Asked) -> Answer:
        return reply(200, b"there") if asked.path == "/b" else reply(302, b"", {"Location": "b"})

    async def scenario(http: Http, server: RawServer) -> None:
        got = await http.request("GET", f"{server.url}/a", headers={"Authorization": "Bearer token"})
        assert (got.body, got.url) == (b"there", f"{server.url}/b")

    assert [asked.headers.get("authorization") for asked in talk(answer, scenario).asked] == ["Bearer token"] * 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_carries_no_credentials_to_another_origin(status: int) -> None:
    async def run() -> None:
        async with (
            RawServer(lambda _: reply(200, b"there")) as other,
            RawServer(
                lambda _: reply(status, b"", {"Location": other.url.replace("://", "://planted:name@") + "/file"})
            ) as server,
            open_http({}, credentials={server.url: Credential("user", "hunter2")}, timeouts=QUICK) as http,
        ):
            headers = {"Authorization": "Bearer token", "Cookie": "a=b", "X-Plain": "kept"}
            assert (await http.request("GET", server.url, headers=headers)).body == b"there"
            assert server.asked[0].headers["authorization"] == "Bearer token"
            arrived = other.asked[0].headers
            assert "authorization" not in arrived
            assert "cookie" not in arrived
            assert arrived["x-plain"] == "kept"
            await http.request("GET", server.url)
            assert "authorization" not in other.asked[1].headers

    asyncio.run(run())


def test_the_netrc_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password hunter2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    seen: list[Asked] = []
    fetch(noting(seen, reply(200)))
    assert "authorization" not in seen[0].headers


def test_a_proxy_is_used_for_other_hosts_and_not_for_loopback() -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        assert (await http.request("GET", "http://index.invalid/simple/")).body == b"by proxy"
        await http.request("GET", f"{server.url}/direct")

    server = talk(lambda _: reply(200, b"by proxy"), scenario, environ={"http_proxy": "SERVER"})
    assert [asked.target for asked in server.asked] == ["http://index.invalid/simple/", "/direct"]


def test_a_proxy_that_refuses_is_named() -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        with pytest.raises(http_types.RequestError, match="HTTP 407"):
            await http.request("GET", "https://index.invalid/simple/")

    talk(lambda _: reply(407), scenario, environ={"HTTPS_PROXY": "SERVER"})


def test_https_to_a_plain_server_is_explained() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with open_http({}, timeouts=QUICK) as http:
            with pytest.raises(http_types.RequestError, match="check whether the server speaks http://"):
                await http.request("GET", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        server.close()

    asyncio.run(run())


def test_a_download_starts_afresh_after_a_broken_attempt_and_is_bounded(tmp_path: Path) -> None:
    async def scenario(http: Http, server: RawServer) -> None:
        with (tmp_path / "x.whl").open("w+b") as file:
            digest = await http.download(f"{server.url}/x.whl", file, 5)
            assert digest == hashlib.sha256(b"wheel").hexdigest()
            file.seek(0)
            assert file.read() == b"wheel"
            with pytest.raises(http_types.TooLarge):
                await http.download(f"{server.url}/x.whl", file, 3)
            with pytest.raises(http_types.BadStatus, match="not found"):
                await http.download(f"{server.url}/none", file, 3)

    broken: Answer = [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwh", CLOSE]
    answers = after(1, broken, reply(200, b"wheel"))
    talk(lambda asked: answers(asked) if asked.path == "/x.whl" else reply(404), scenario)


def test_an_untrusted_certificate_is_explained(tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)

    async def run() -> None:
        async with RawServer(lambda _: reply(200, b"safe"), tls=context) as server:
            url = f"https://{server.host}/"
            async with open_http({}, timeouts=QUICK) as http:
                with pytest.raises(http_types.RequestError, match=r"not trusted.*self.signed"):
                    await http.request("GET", url)
            for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
                async with open_http({variable: str(certificate)}, timeouts=QUICK) as http:
                    assert (await http.request("GET", url)).body == b"safe"

    asyncio.run(run())
