"""The HTTP client.

aiohttp is imported when a session opens, never before: it costs 0.15 s of CPU.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

import envspec
from envspec.credentials import shown
from envspec.io import http_settings
from envspec.io.http_settings import Proxies, ca_bundle, is_loopback, leads_inward, proxies, tls_context
from envspec.io.http_types import (
    BadRedirect,
    BadStatus,
    BadUrl,
    Credential,
    Response,
    Stalled,
    Timeouts,
    TooLarge,
    Writable,
    WrongServer,
    describe,
    is_transient,
    retry_after_s,
)
from envspec.origins import Bounds

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, ClientTimeout
    from yarl import URL

    from envspec.io.http_body import Streamed


def next_hop(url: URL, location: str | None) -> URL:
    """Where a `Location` leads, without a user name.

    Raises:
        BadRedirect: nowhere, from https to plain http on another machine, or from another machine into this one.
    """
    try:
        target = url.join(type(url)(location)) if location else None
    except ValueError:
        target = None
    if target is None or target.scheme not in {"http", "https"} or not target.host:
        raise BadRedirect(str(url), "redirects to no http(s) URL", hint="look at the URL with curl -v")
    if url.scheme == "https" and target.scheme == "http" and not is_loopback(target.host):
        raise BadRedirect(
            str(url),
            f"redirects from https to {shown(str(target))}, where anyone on the way can change the answer",
            hint="name the https address of the server that has it",
        )
    if leads_inward(url.host or "", target.host):
        raise BadRedirect(
            str(url),
            f"redirects to {shown(str(target))}, which is a service of this machine's own",
            hint="tell whoever runs the server, or name the address itself if you trust it",
        )
    return target.with_user(None).with_fragment(None)


async def read_whole(answer: ClientResponse, max_bytes: int, longest_s: float = math.inf) -> bytes:
    """The body in memory; TooLarge as soon as it is known to be, a timeout where it still comes after `longest_s`."""
    until = time.monotonic() + longest_s
    if answer.method != "HEAD" and (answer.content_length or 0) > max_bytes:
        raise TooLarge(str(answer.url), max_bytes)
    chunks, total = [], 0
    async for chunk in answer.content.iter_any():
        total += len(chunk)
        if total > max_bytes:
            raise TooLarge(str(answer.url), max_bytes)
        if time.monotonic() > until:
            raise asyncio.TimeoutError
        chunks.append(chunk)
    return b"".join(chunks)


#: A simple page of the largest projects is below 20 MB; what is larger than this is no page.
PAGE_BYTES: Final = 64 * 1024 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PASSING_STATUS: Final = frozenset({429, 502, 503, 504})
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """One request as the caller wants it. more: headers that each attempt asks for anew.

    within: the servers that it may reach; None: any.
    """

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | Streamed | None
    timeout: ClientTimeout
    more: Callable[[], Mapping[str, str]] = dict
    within: Bounds | None = None


class Http:
    """Requests with retries, bounds and clear errors. Open one with `open_http`."""

    def __init__(
        self,
        session: ClientSession,
        *,
        routes: Proxies,
        credentials: Mapping[str, Credential],
        timeouts: Timeouts,
        on_retry: Callable[[str], None],
    ) -> None:
        from aiohttp import ClientTimeout
        from yarl import URL

        self._session = session
        self._routes = routes
        self._credentials = {_origin(URL(url)): credential.basic for url, credential in credentials.items()}
        self.timeouts = timeouts
        self.on_retry = on_retry
        self._url = URL
        self._whole = ClientTimeout(total=timeouts.total_s, sock_connect=timeouts.connect_s, sock_read=timeouts.stall_s)
        self._open_ended = ClientTimeout(sock_connect=timeouts.connect_s, sock_read=timeouts.stall_s)
        self._proxy_of: dict[tuple[str, str, int | None], str | None] = {}

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = PAGE_BYTES,
        within: Bounds | None = None,
    ) -> Response:
        """Fetch a whole answer, whatever its status (`Response.checked` refuses other than 2xx).

        A user and password in `url` are sent as basic authentication, to that origin only. within: the servers that
        may be reached, by redirects too; None: any.

        Raises:
            Elsewhere: it leads to another server than `within` allows.
            NetworkError: no answer, after the retries that `Timeouts` allows, or one larger than `max_bytes`.
        """
        return await self.request("GET", url, headers=headers, max_bytes=max_bytes, within=within)

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_bytes: int = PAGE_BYTES,
        within: Bounds | None = None,
    ) -> Response:
        """As `get`, with another method; only GET and HEAD follow redirects."""
        ask = self._ask(method, url, headers, body, self._whole, within)

        async def read(answer: ClientResponse) -> Response:
            return Response(str(answer.url), answer.status, answer.headers, await read_whole(answer, max_bytes))

        return await self._persist(ask, read)

    async def download(
        self,
        url: str,
        start: Callable[[], Writable],
        *,
        headers: Mapping[str, str] | None = None,
        max_bytes: int,
        within: Bounds | None = None,
    ) -> int:
        """Write the body of a 2xx answer, as it was sent, to `start()`; the number of bytes.

        start: called for every attempt, so that one which broke off leaves nothing in the next one's sink.
        within: as in `get`.

        Raises:
            NetworkError: no answer, another status, a body larger than `max_bytes` or one that broke off.
        """
        wanted = {"Accept-Encoding": "identity", **(headers or {})}
        ask = self._ask("GET", url, wanted, None, self._open_ended, within)

        async def pour(answer: ClientResponse) -> int:
            if not 200 <= answer.status < 300:
                raise BadStatus(str(answer.url), answer.status, retry_after=answer.headers.get("Retry-After"))
            sink, total = start(), 0
            async for chunk in answer.content.iter_any():
                total += len(chunk)
                if total > max_bytes:
                    raise TooLarge(str(answer.url), max_bytes)
                sink.write(chunk)
            return total

        return await self._persist(ask, pour)

    async def stream(
        self,
        url: str,
        use: Callable[[ClientResponse], Awaitable[_T]],
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        within: Bounds | None = None,
    ) -> _T:
        """What `use` makes of the answer to a GET, whatever its status; it reads as much of the body as it wants.

        headers: called for every attempt, which may so go on where the one before broke off. use: an OSError in it
        counts as the connection's. within: as in `get`.

        Raises:
            NetworkError: no answer, or one that broke off, after the retries that `Timeouts` allows.
        """
        ask = self._ask("GET", url, {"Accept-Encoding": "identity"}, None, self._open_ended, within)
        return await self._persist(replace(ask, more=headers), use)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Streamed | None = None,
        answer_s: float | None = None,
        within: Bounds | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """One request, sent once; its answer, of any status, with its body still to be read inside the context.

        For whoever can do better after a fault than to ask the same again. body: of `streamed`, or bytes. answer_s:
        seconds to wait for the next byte of the answer, where that is more than a server usually needs. within: as in
        `get`.

        Raises:
            NetworkError: no answer, or one that breaks off while it is read. What a streamed body's source raises
                comes as it is.
        """
        from aiohttp import ClientError

        timeout = self._open_ended
        if answer_s is not None:
            timeout = type(timeout)(sock_connect=self.timeouts.connect_s, sock_read=answer_s)
        ask = self._ask(method, url, headers, body, timeout, within)
        answer = None
        try:
            answer = await self._follow(ask)
            yield answer
        except (ClientError, asyncio.TimeoutError, OSError) as fault:
            if body is not None and not isinstance(body, bytes):
                body.check(shown(str(ask.url)))
            raise describe(fault, str(ask.url), self.timeouts.connect_s, self.timeouts.stall_s) from fault
        finally:
            if answer is not None:
                answer.release()
            if body is not None and not isinstance(body, bytes):
                await body.settle()

    def streamed(self, pieces: Callable[[], AsyncGenerator[bytes | memoryview, None]], size_bytes: int) -> Streamed:
        """A body that is made while it is sent. pieces: gives it from its start, and may be called more than once."""
        from envspec.io.http_body import Streamed

        return Streamed(pieces, size_bytes, self.timeouts.stall_s)

    def _ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | Streamed | None,
        timeout: ClientTimeout,
        within: Bounds | None,
    ) -> _HttpRequest:
        try:
            target = self._url(url)
            if target.scheme not in {"http", "https"} or not target.host:
                raise ValueError("not an http(s) URL")
            if target.user is not None or target.password is not None:
                credential = Credential(target.user or "", target.password or "")
                headers = {**(headers or {}), "Authorization": credential.basic}
                target = target.with_user(None)
        except ValueError:
            raise BadUrl(url) from None
        return _HttpRequest(method, target.with_fragment(None), headers or {}, body, timeout, within=within)

    async def _persist(self, ask: _HttpRequest, use: Callable[[ClientResponse], Awaitable[_T]]) -> _T:
        """Try until there is an answer, the fault is not one that passes, or patience ends."""
        from aiohttp import ClientError

        stalls = 0
        for attempt in count(1):
            try:
                answer = await self._follow(ask)
                try:
                    pause = self._pause_before_retry(answer, attempt)
                    if pause is None:
                        return await use(answer)
                    what = f"{shown(str(ask.url))}: HTTP {answer.status}"
                finally:
                    answer.release()
            except (ClientError, asyncio.TimeoutError, OSError) as fault:
                known = describe(fault, str(ask.url), self.timeouts.connect_s, self.timeouts.stall_s)
                stalls += isinstance(known, Stalled)
                if attempt >= self.timeouts.attempts or stalls >= 2 or not is_transient(fault):
                    raise known from fault
                pause, what = self.timeouts.pause_s(str(ask.url), attempt), known.message
            self.on_retry(f"{what}; trying again in {pause:.1f} s")
            await asyncio.sleep(pause)
        raise AssertionError("count() has no end")

    async def _follow(self, ask: _HttpRequest) -> ClientResponse:
        """Send, and follow redirects of GET and HEAD.

        Each hop carries the credentials of its own origin and nothing else: what was meant for the first origin does
        not reach the second, nor does a user name that a server writes into `Location`.

        Raises:
            Elsewhere: a hop is not within the servers that may answer.
        """
        url, headers = ask.url, {**ask.headers, **ask.more()}
        for hop in range(self.timeouts.redirects + 1):
            if ask.within is not None and not ask.within.allows(str(url), redirected=hop > 0):
                raise WrongServer(str(ask.url), str(url), ask.within, redirected=hop > 0)
            if self._credentials and "Authorization" not in headers and (mine := self._credentials.get(_origin(url))):
                headers = {**headers, "Authorization": mine}
            answer = await self._session.request(
                ask.method,
                url,
                headers=headers,
                data=ask.body,
                timeout=ask.timeout,
                proxy=self._proxy(url),
                allow_redirects=False,
            )
            if answer.status not in _REDIRECTS or ask.method not in {"GET", "HEAD"}:
                return answer
            answer.release()
            following = next_hop(url, answer.headers.get("Location"))
            if following.origin() != url.origin():
                headers = {name: value for name, value in headers.items() if name.lower() not in _SECRET_HEADERS}
            url = following
        raise BadRedirect(str(ask.url), "redirects without an end", hint="look at the URL with curl -L")

    def _pause_before_retry(self, answer: ClientResponse, attempt: int) -> float | None:
        """Seconds to wait before asking again; None to take the answer as it is."""
        if answer.status not in _PASSING_STATUS or attempt >= self.timeouts.attempts:
            return None
        wanted = retry_after_s(answer.headers.get("Retry-After"))
        if wanted is None:
            return self.timeouts.pause_s(str(answer.url), attempt)
        return wanted if wanted <= self.timeouts.retry_after_s else None

    def _proxy(self, url: URL) -> str | None:
        key = (url.scheme, url.host or "", url.port)
        if key not in self._proxy_of:
            self._proxy_of[key] = self._routes.of(*key)
        return self._proxy_of[key]


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    return (url.scheme, url.host, url.port)


@asynccontextmanager
async def open_http(
    environ: Mapping[str, str],
    *,
    credentials: Mapping[str, Credential] | None = None,
    timeouts: Timeouts | None = None,
    per_host: int = 32,
    on_retry: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Http]:
    """Open the door: connections are kept alive and shared until the context ends.

    environ: CA bundle, proxies and changes to `timeouts` are read from it; netrc never is: what a lock holds must not
    depend on it. credentials: by origin (`https://host`, `https://host:8443`), sent to that origin alone. per_host:
    connections to one host at a time. notice: told of every retry, one line each.

    Raises:
        UsageError: the environment names a CA bundle or a proxy that cannot be used.
    """
    routes, bundle = proxies(environ), ca_bundle(environ)
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector

    # aiohttp builds OpenSSL's default context while it is imported, and that one honours SSL_CERT_FILE: a second one
    # would cost 20 ms for the same certificates.
    same = bundle is None or str(bundle) == _openssl_bundle()
    connector = TCPConnector(
        limit=4 * per_host,
        limit_per_host=per_host,
        ttl_dns_cache=300,
        keepalive_timeout=60,
        ssl=True if same else tls_context(bundle),
    )
    async with ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        headers={"User-Agent": f"envspec/{envspec.__version__}"},
        trust_env=False,
        auto_decompress=True,
    ) as session:
        yield Http(
            session,
            routes=routes,
            credentials=credentials or {},
            timeouts=http_settings.timeouts(environ, timeouts or Timeouts()),
            on_retry=on_retry,
        )


def _openssl_bundle() -> str | None:
    """The CA file that OpenSSL's default context reads: SSL_CERT_FILE of this process, or the built-in path."""
    return ssl.get_default_verify_paths().cafile
