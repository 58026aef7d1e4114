"""The HTTP client.

aiohttp is imported when a session opens, never before: it costs 0.15 s of CPU.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.io import http_settings
from envspec.io.http_settings import Proxies, ca_bundle, is_loopback, leads_inward, proxies, tls_context
from envspec.io.http_types import (
    SLOWEST_BYTES_S,
    Admit,
    BadStatus,
    Credential,
    RequestError,
    Response,
    Retry,
    Timeouts,
    TooLarge,
    WrongServer,
    describe,
    is_transient,
    retry_after_s,
)
from envspec.origins import Bounds
from envspec.structs import replace
from envspec.version import VERSION

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, ClientTimeout
    from yarl import URL

    from envspec.io.http_body import Streamed


def next_hop(url: URL, location: str | None) -> URL:
    """The target of a `Location`, without a user name.

    Raises:
        RequestError: no target, from https to plain http on another machine, or from another machine into this one.
    """
    target = None
    with suppress(ValueError):
        if location:
            target = url.join(type(url)(location))
    if target is None or target.scheme not in {"http", "https"} or not target.host:
        raise RequestError(str(url), "redirects to no http(s) URL", hint="look at the URL with curl -v")
    if url.scheme == "https" and target.scheme == "http" and not is_loopback(target.host):
        raise RequestError(
            str(url),
            f"redirects from https to {shown(str(target))}, where anyone on the way can change the answer",
            hint="use the https URL of the server that has it",
        )
    if leads_inward(url.host or "", target.host):
        raise RequestError(
            str(url),
            f"redirects to {shown(str(target))}, which is a service of this machine's own",
            hint="contact the server's operator, or use that URL itself if you trust it",
        )
    return target.with_user(None).with_fragment(None)


async def read_whole(
    response: ClientResponse, max_bytes: int, longest_s: float = math.inf, stall_s: float = math.inf
) -> Response:
    """The response in memory; raises TooLarge as early as possible, and TimeoutError after `longest_s`.

    stall_s: see `read_chunks`.
    """
    until = time.monotonic() + longest_s
    if response.method != "HEAD" and (response.content_length or 0) > max_bytes:
        raise TooLarge(str(response.url), max_bytes)
    chunks, total = [], 0
    async for chunk in read_chunks(response, stall_s):
        total += len(chunk)
        if total > max_bytes:
            raise TooLarge(str(response.url), max_bytes)
        if time.monotonic() > until:
            raise asyncio.TimeoutError
        chunks.append(chunk)
    with_login = has_login(response)
    return Response(str(response.url), response.status, response.headers, b"".join(chunks), with_login=with_login)


async def read_chunks(response: ClientResponse, stall_s: float) -> AsyncIterator[bytes]:
    """The body as it arrives.

    Raises:
        TimeoutError: in `stall_s` it got fewer bytes than any network carries: a server that sends one now and then
            has no end, and each wait for the next byte is short.
    """
    since, received = time.monotonic(), 0
    async for chunk in response.content.iter_any():
        received += len(chunk)
        if (now := time.monotonic()) - since > stall_s:
            if received < stall_s * SLOWEST_BYTES_S:
                raise asyncio.TimeoutError
            since, received = now, 0
        yield chunk


def has_login(response: ClientResponse) -> bool:
    """Whether its request had a login; after redirects, the last one."""
    return "Authorization" in response.request_info.headers


def status_error(response: ClientResponse) -> BadStatus:
    """The error for a response whose status is not 2xx."""
    retry_after = response.headers.get("Retry-After")
    return BadStatus(str(response.url), response.status, retry_after=retry_after, with_login=has_login(response))


async def _read_unzipped(response: ClientResponse, max_bytes: int, stall_s: float) -> Response:
    """`read_whole` of a response to ZIPPED, which aiohttp leaves as it is."""
    found = await read_whole(response, max_bytes, stall_s=stall_s)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if not found.body or encoding == "identity":
        return found
    from aiohttp import ClientPayloadError

    rest, body = found.body, b""
    try:
        while rest:
            member = zlib.decompressobj(_ANY_ZLIB)
            body += member.decompress(rest, max_bytes + 1 - len(body))
            if len(body) > max_bytes:
                raise TooLarge(str(response.url), max_bytes)
            if not member.eof:
                raise ClientPayloadError
            rest = member.unused_data
    except zlib.error as error:
        raise ClientPayloadError(str(error)) from error
    return replace(found, body=body, gzipped=found.body if encoding == "gzip" else None)


#: Of zlib: the header says which of its forms follows.
_ANY_ZLIB: Final = 47
ZIPPED: Final = {"Accept-Encoding": "gzip"}
#: Connections to one host at a time.
PER_HOST: Final = 32
#: A simple page of the largest projects is below 20 MB; what is larger than this is no page.
PAGE_BYTES: Final = 64 * 1024 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TRANSIENT_STATUS: Final = frozenset({429, 502, 503, 504})
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
UNCHANGED: Final = {"Accept-Encoding": "identity"}
_T = TypeVar("_T")


class RetryableError(Exception):
    """A response that a retry may improve. error: to raise if none does. wait_s: the server's `Retry-After`."""

    def __init__(self, error: NetworkError, wait_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait_s = wait_s


class _HttpRequest(Struct, frozen=True):
    """more: gives further headers for each attempt. within: the servers that it may reach; None: any."""

    method: str
    url: URL
    headers: Mapping[str, str]
    timeout: ClientTimeout
    within: Bounds | None
    body: bytes | Streamed | None = None
    more: Callable[[], Mapping[str, str]] = dict
    auto_decompress: bool = True


class Http:
    """An HTTP client with retries, bounds and clear errors; `open_http` makes it."""

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
        self._on_retry = on_retry
        self._url = URL
        limits = partial(ClientTimeout, sock_connect=timeouts.connect_s)
        self._streaming = limits(sock_read=timeouts.stall_s)
        #: Of a whole response.
        self.whole = limits(sock_read=timeouts.stall_s, total=timeouts.total_s)
        #: Of a response that the server may prepare for long.
        self.late = limits(sock_read=timeouts.total_s)
        self._proxy_of: dict[tuple[str, str | None, int | None], str | None] = {}

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
        """Fetch a whole response of any status; only GET and HEAD follow redirects.

        A user and password in `url` are sent as basic authentication, to that origin only. within: the servers that
        may be reached, by redirects too; None: any.

        Raises:
            WrongServer: the URL or a redirect is not within `within`.
            NetworkError: no response after all retries, or one larger than `max_bytes`.
        """
        request = self._request_for(method, url, {**ZIPPED, **(headers or {})}, within)
        request = replace(request, body=body, timeout=self.whole, auto_decompress=False)
        return await self._with_retries(
            request, lambda response: _read_unzipped(response, max_bytes, self.timeouts.stall_s)
        )

    async def download(self, url: str, file: IO[bytes], max_bytes: int, *, within: Bounds | None = None) -> str:
        """Write the body of a 2xx response, as sent, to `file`; its SHA-256.

        Raises:
            NetworkError: no response, another status, a body larger than `max_bytes` or an incomplete one.
        """

        async def write(response: ClientResponse) -> str:
            if not 200 <= response.status < 300:
                raise status_error(response)
            file.seek(0)
            file.truncate()
            digest = hashlib.sha256()
            async for chunk in read_chunks(response, self.timeouts.stall_s):
                if file.tell() + len(chunk) > max_bytes:
                    raise TooLarge(str(response.url), max_bytes)
                file.write(chunk)
                digest.update(chunk)
            return digest.hexdigest()

        return await self._with_retries(self._request_for("GET", url, UNCHANGED, within), write)

    async def stream(
        self,
        url: str,
        use: Callable[[ClientResponse], Awaitable[_T]],
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        within: Bounds | None = None,
    ) -> _T:
        """The result of `use` on the response to a GET, of any status; `use` reads as much of the body as it needs.

        headers: called for every attempt, which can so resume. use: an OSError in it counts as the connection's.

        Raises:
            NetworkError: no complete response after all retries.
        """
        request = self._request_for("GET", url, UNCHANGED, within)
        return await self._with_retries(replace(request, more=headers), use)

    async def part(self, url: str, span: str, admit: Admit, *, max_bytes: int, within: Bounds | None) -> Response:
        """A part of a file, or all of it from a server without ranges. span: as `bytes=0-99`.

        Raises:
            NetworkError: as `request`; what `admit` raises passes unchanged.
        """

        async def use(response: ClientResponse) -> Response:
            admit(response.status, response.content_length)
            return await read_whole(response, max_bytes, self.timeouts.total_s, self.timeouts.stall_s)

        return await self.stream(url, use, headers=lambda: {"Range": span}, within=within)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Streamed | None = None,
        timeout: ClientTimeout | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """Send one request once; the response, of any status, with its body unread.

        body: of `streamed`, or bytes. timeout: `whole` or `late`; by default `stall_s` for each byte.

        Raises:
            NetworkError: no response, or an incomplete one. Errors of a streamed body's source pass unchanged.
        """
        request = self._request_for(method, url, headers, None)
        async with self._open(replace(request, body=body, timeout=timeout or request.timeout)) as response:
            yield response

    def streamed(self, pieces: Callable[[], AsyncGenerator[bytes | memoryview, None]], size_bytes: int) -> Streamed:
        """A body generated while it is sent. pieces: yields it from its start; called for each attempt."""
        from envspec.io.http_body import Streamed

        return Streamed(pieces, size_bytes, self.timeouts.stall_s)

    async def wait_to_retry(self, retry: Retry, error: NetworkError | RetryableError, reached: int = 0) -> None:
        """Wait before the next attempt. reached: progress in bytes, see `Retry.next_pause_s`.

        Raises:
            NetworkError: the error is permanent, or no attempt is left.
        """
        wait_s = None
        if isinstance(error, RetryableError):
            known, transient, wait_s = error.error, True, error.wait_s
        else:
            known, cause = error, error.__cause__
            transient = isinstance(error, RequestError) and cause is not None and is_transient(cause)
        pause_s = retry.next_pause_s(known, transient=transient, requested_s=wait_s, reached=reached)
        self._on_retry(f"{known.message}; trying again in {pause_s:.1f} s")
        await asyncio.sleep(pause_s)

    def _request_for(
        self, method: str, url: str, headers: Mapping[str, str] | None, within: Bounds | None
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
            raise RequestError(url, "not an http(s) URL", hint="use a URL of the form https://host/path") from None
        return _HttpRequest(method, target.with_fragment(None), headers or {}, self._streaming, within)

    @asynccontextmanager
    async def _open(self, request: _HttpRequest) -> AsyncIterator[ClientResponse]:
        from aiohttp import ClientError

        body = None if isinstance(request.body, bytes) else request.body
        response = None
        try:
            response = await self._follow(request)
            yield response
        except (ClientError, asyncio.TimeoutError, OSError) as error:
            if body is not None:
                body.check(shown(str(request.url)))
            raise describe(error, str(request.url), self.timeouts.connect_s, self.timeouts.stall_s) from error
        finally:
            if response is not None:
                response.release()
            if body is not None:
                await body.settle()

    async def _with_retries(self, request: _HttpRequest, use: Callable[[ClientResponse], Awaitable[_T]]) -> _T:
        url = str(request.url)
        retry = Retry(self.timeouts, url)
        while True:
            try:
                async with self._open(request) as response:
                    wait_s = retry_after_s(response.headers.get("Retry-After"))
                    is_retried = response.status in _TRANSIENT_STATUS and not retry.is_last
                    if not is_retried or (wait_s or 0) > self.timeouts.retry_after_s:
                        return await use(response)
                    raise RetryableError(NetworkError(f"{shown(url)}: HTTP {response.status}"), wait_s)
            except (NetworkError, RetryableError) as error:
                await self.wait_to_retry(retry, error)

    async def _follow(self, request: _HttpRequest) -> ClientResponse:
        """Send, and follow redirects of GET and HEAD.

        Each hop carries the credentials of its own origin only; a user name in a `Location` is dropped.

        Raises:
            WrongServer: a hop is not within `request.within`.
        """
        url, headers = request.url, {**request.headers, **request.more()}
        for hop in range(self.timeouts.redirects + 1):
            if request.within is not None and not request.within.allows(str(url), redirected=hop > 0):
                raise WrongServer(str(request.url), str(url), request.within, redirected=hop > 0)
            if self._credentials and "Authorization" not in headers and (mine := self._credentials.get(_origin(url))):
                headers = {**headers, "Authorization": mine}
            response = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=request.body,
                timeout=request.timeout,
                proxy=self._proxy(url),
                allow_redirects=False,
                auto_decompress=request.auto_decompress,
            )
            if response.status not in _REDIRECTS or request.method not in {"GET", "HEAD"}:
                return response
            response.release()
            following = next_hop(url, response.headers.get("Location"))
            if following.origin() != url.origin():
                headers = {name: value for name, value in headers.items() if name.lower() not in _SECRET_HEADERS}
            url = following
        raise RequestError(str(request.url), "redirects without an end", hint="look at the URL with curl -L")

    def _proxy(self, url: URL) -> str | None:
        origin = _origin(url)
        if origin not in self._proxy_of:
            self._proxy_of[origin] = self._routes.of(url.scheme, url.host or "", url.port)
        return self._proxy_of[origin]


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    return (url.scheme, url.host, url.port)


@asynccontextmanager
async def open_http(
    environ: Mapping[str, str],
    *,
    credentials: Mapping[str, Credential] | None = None,
    timeouts: Timeouts | None = None,
    per_host: int = PER_HOST,
    on_retry: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Http]:
    """An `Http` whose connections are kept alive and shared until the context ends.

    environ: names the CA bundle, the proxies and changes to `timeouts`. netrc is not read: locks must not depend on it.
    credentials: by origin (`https://host`, `https://host:8443`), sent to that origin only.
    per_host: connections to one host at a time.
    on_retry: called with one line for every retry.

    Raises:
        UsageError: the environment names a CA bundle or a proxy that cannot be used.
    """
    routes, bundle = proxies(environ), ca_bundle(environ)
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector

    # aiohttp builds OpenSSL's default context while it is imported, and that one honours SSL_CERT_FILE of this process
    # or the built-in path: a second one would cost 20 ms for the same certificates.
    trusted: bool | ssl.SSLContext = True
    if bundle is not None and str(bundle) != ssl.get_default_verify_paths().cafile:
        trusted = tls_context(bundle)
    connector = TCPConnector(
        limit=4 * per_host,
        limit_per_host=per_host,
        ttl_dns_cache=300,
        keepalive_timeout=60,
        ssl=trusted,
    )
    async with ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        headers={"User-Agent": f"envspec/{VERSION}"},
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
