"""HTTP/1.1 for plain answers, which pages and parts of wheels nearly always are, without aiohttp.

Plain is an answer with status 200, 206, 304, 404 or 410 and a length or chunks, as it is or packed by gzip, from a
server that no proxy is for. Of everything else nothing is used: `LazyHttp` repeats the request with `Http`, which has
the redirects, retries and messages.

Sources: RFC 9110 (semantics) and RFC 9112 (messages; 6.3 and 11.2 for lengths that disagree).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import unquote

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser
from isal import isal_zlib
from msgspec import Struct, field

from envspec.io import http_settings
from envspec.io.http_types import SLOWEST_BYTES_S, Admit, Credential, Headers, Response, Timeouts, retry_after_s
from envspec.origins import Bounds
from envspec.version import VERSION

if TYPE_CHECKING:
    import ssl

#: Heads of the real indexes have 1 to 2 KB.
_HEAD_BYTES: Final = 64 * 1024
#: Before the next address of a host is tried: IPv6 may lead nowhere. RFC 8305, section 5, has the same.
_NEXT_ADDRESS_S: Final = 0.25
#: How long an idle connection may be used again: firewalls forget it after some minutes, and the server would seem to
#: have stalled. `open_http` has the same.
_KEPT_S: Final = 60.0
#: Of zlib: gzip's header and trailer.
_GZIP: Final = 31
_INFLATE_ERROR: Final = cast("type[Exception]", isal_zlib.error)
#: URLs that aiohttp would send and return unchanged, with a login or without.
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?:(?P<user>[\w.~%-]+)(?::(?P<password>[\w.~%-]+))?@)?"
    r"(?P<host>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<path>(?:/(?!\.\.?(?:/|$))(?:[\w.~!$&'()*+,;=:@-]|%2B)*)*)",
    re.ASCII,
)
_IPV4: Final = re.compile(r"[0-9.]+")
_PORTS: Final = {"http": 80, "https": 443}
_LAST_PORT: Final = 0xFFFF
#: Headers that decide what is read; twice they contradict each other.
_SINGLE: Final = frozenset(
    {"content-encoding", "content-length", "content-range", "content-type", "etag", "transfer-encoding"}
)


class NotPlain(Exception):
    """No plain answer. wait_s: how long the server wants to get no request (`Retry-After`)."""

    def __init__(self, reason: str = "", wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _ClosedWhileIdle(NotPlain):
    """The server closed a connection that it had kept open, before it read the request: nothing is wrong with it."""


class _Answer(Struct):
    """One answer while it arrives. sent: the headers of its request. received: bytes, of head and body.

    body: not a list of pieces: those of a server that sends chunks of one byte would be 30 times as large.
    """

    sent: Mapping[str, str]
    max_bytes: int
    admit: Admit | None
    done: asyncio.Future[None]
    fields: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    status: int = 0
    received: int = 0
    is_complete: bool = False

    def add_header(self, name: bytes, value: bytes) -> None:
        # They may follow the last chunk, too.
        if self.status or not (name.isascii() and value.isascii()):
            raise NotPlain("a header behind the head, or not in ASCII")
        # httptools leaves tabs behind a value.
        key, text = name.decode().lower(), value.decode().strip(" \t")
        if key in self.fields:
            if key in _SINGLE:
                raise NotPlain(f"{key} twice")
            text = f"{self.fields[key]}, {text}"
        self.fields[key] = text

    def check_head(self, version: str) -> None:
        """Raises NotPlain, or what `admit` raises."""
        length, coding = self.fields.get("content-length"), self.fields.get("transfer-encoding")
        size = None if length is None else int(length)
        if version != "1.1" or not self._is_plain_status():
            raise NotPlain(f"HTTP/{version} {self.status}", retry_after_s(self.fields.get("retry-after")) or 0.0)
        if self._encoding not in {"identity", self.sent.get("Accept-Encoding")}:
            raise NotPlain(f"content encoding {self._encoding}")
        if self.status != 304 and (coding or "").lower() != ("chunked" if size is None else ""):
            raise NotPlain("the answer has no length")
        if self.admit is not None:
            self.admit(self.status, size)
        if self.status != 304 and (size or 0) > self.max_bytes:
            raise NotPlain("the answer is too large")

    def unpacked(self) -> tuple[bytes, bytes | None]:
        """The body, and as it was sent if that was with gzip."""
        body = bytes(self.body)
        if not body or self._encoding == "identity":
            return body, None
        return _unzipped(body, self.max_bytes), body

    @property
    def _encoding(self) -> str:
        return self.fields.get("content-encoding", "identity").lower()

    def _is_plain_status(self) -> bool:
        if self.status == 206:
            return "Range" in self.sent
        if self.status == 304:
            return "If-None-Match" in self.sent
        return self.status in {200, 404, 410}

    def add_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > self.max_bytes:
            raise NotPlain("the answer is too large")


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time; any fault of the server ends it."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeouts = timeouts
        self._parser = HttpResponseParser(self)
        self._answer: _Answer | None = None
        self._is_used = False
        self._keeps_alive = True
        self._idle_since = self._loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether it can be used for a request."""
        if self._answer is not None or self._transport.is_closing():
            return False
        return self._keeps_alive and self._loop.time() - self._idle_since < _KEPT_S

    def close(self) -> None:
        self._transport.abort()

    async def fetch(self, request: bytes, answer: _Answer) -> None:
        """Send a request and fill `answer`; raises NotPlain, or what `answer.admit` raises."""
        self._answer = answer
        self._until = self._loop.time() + self._timeouts.total_s
        self._checked_bytes = 0
        self._watch()
        self._transport.write(request)
        try:
            await answer.done
        finally:
            self._timer.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            # Not requested.
            self.close()
            return
        answer.received += len(data)
        try:
            self._parser.feed_data(data)
            if not answer.status and answer.received > _HEAD_BYTES:
                raise NotPlain("the head is too long")
            if answer.received > 2 * answer.max_bytes + _HEAD_BYTES:
                raise NotPlain("most of the answer is not its body")
        except HttpParserCallbackError as error:
            # Of one of the methods below.
            self._fail(error.__context__ or NotPlain(str(error)))
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(NotPlain(str(error)))
        except NotPlain as error:
            self._fail(error)
        else:
            if answer.is_complete:
                self._is_used = True
                self._idle_since = self._loop.time()
                self._answer = None
                _settle(answer.done, None)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        if self._is_used and self._answer is not None and not self._answer.received:
            self._fail(_ClosedWhileIdle())
        else:
            self._fail(NotPlain("the connection broke"))

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.status:
            raise NotPlain("an answer that was not requested")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            self._answer.add_header(name, value)

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()
            self._answer.check_head(self._parser.get_http_version())

    def on_body(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.add_body(data)

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._answer.is_complete = True
        self._keeps_alive = self._parser.should_keep_alive()

    def _watch(self) -> None:
        self._timer = self._loop.call_later(min(self._timeouts.stall_s, self._timeouts.total_s), self._check_progress)

    def _check_progress(self) -> None:
        answer = self._answer
        if answer is None:
            return
        progress, self._checked_bytes = answer.received - self._checked_bytes, answer.received
        if progress < self._timeouts.stall_s * SLOWEST_BYTES_S or self._loop.time() > self._until:
            self._fail(NotPlain("the server stalled"))
        else:
            self._watch()

    def _fail(self, error: BaseException) -> None:
        self._transport.abort()
        answer, self._answer = self._answer, None
        if answer is not None:
            _settle(answer.done, error)


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    # It may be cancelled meanwhile.
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


class _Target(NamedTuple):
    """Of a URL. url: without its login. host: with the port, if it is not the scheme's."""

    origin: _Origin
    url: str
    host: str
    path: str
    login: Credential | None


def _target(url: str) -> _Target:
    parts = _URL.fullmatch(url)
    if parts is None:
        raise NotPlain("not a plain URL")
    scheme, name, port = parts["scheme"], parts["host"], parts["port"]
    origin = _Origin(scheme, name, int(port or _PORTS[scheme]))
    # aiohttp leaves out the port of the scheme.
    if origin.port > _LAST_PORT or (port and origin.port == _PORTS[scheme]):
        raise NotPlain("not a plain port")
    host = f"{name}:{port}" if port else name
    login = None
    if parts["user"]:
        try:
            user = unquote(parts["user"], errors="strict")
            login = Credential(user, unquote(parts["password"] or "", errors="strict"))
        except UnicodeDecodeError:
            # aiohttp sends such bytes as they are written.
            raise NotPlain("a login that is not in UTF-8") from None
    return _Target(origin, f"{scheme}://{host}{parts['path']}", host, parts["path"] or "/", login)


class _Server:
    """The connections to one origin. is_plain: whether all its answers were, and no proxy is for it."""

    def __init__(self, origin: _Origin, timeouts: Timeouts, per_host: int, *, is_plain: bool) -> None:
        self.is_plain = is_plain
        self.slots = asyncio.Semaphore(per_host)
        self._origin = origin
        self._timeouts = timeouts
        self._idle: list[_Connection] = []
        self._addresses: asyncio.Future[list[str]] | None = None

    async def connection(self, tls: ssl.SSLContext | None) -> _Connection:
        """One that is idle, else a new one; raises NotPlain if there is none."""
        while self._idle:
            idle = self._idle.pop()
            if idle.is_idle:
                return idle
            idle.close()
        try:
            return await self._connect(tls)
        except (OSError, asyncio.TimeoutError, UnicodeError) as error:
            raise NotPlain(str(error)) from error

    def put_back(self, connection: _Connection) -> None:
        if connection.is_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for each in self._idle:
            each.close()

    async def _connect(self, tls: ssl.SSLContext | None) -> _Connection:
        if self._addresses is None:
            self._addresses = asyncio.ensure_future(self._resolved())
        addresses = await asyncio.shield(self._addresses)
        *others, last = addresses
        for address in others:
            with suppress(OSError, asyncio.TimeoutError):
                found = await self._connect_to(address, tls, min(_NEXT_ADDRESS_S, self._timeouts.connect_s))
                addresses[:] = [address]
                return found
        found = await self._connect_to(last, tls, self._timeouts.connect_s)
        # Later connections do not try the others again.
        addresses[:] = [last]
        return found

    async def _connect_to(self, address: str, tls: ssl.SSLContext | None, limit_s: float) -> _Connection:
        loop, port = asyncio.get_running_loop(), self._origin.port
        name = None if tls is None else self._origin.host
        connecting = loop.create_connection(
            lambda: _Connection(self._timeouts), address, port, ssl=tls, server_hostname=name
        )
        _, connection = await asyncio.wait_for(connecting, limit_s)
        return connection

    async def _resolved(self) -> list[str]:
        """The first address of each family, in the system's order: looked up once."""
        if _IPV4.fullmatch(self._origin.host):
            return [self._origin.host]
        import socket

        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
        first: dict[int, str] = {}
        for family, _, _, _, address in found:
            first.setdefault(family, str(address[0]))
        return list(first.values())


class PlainHttp:
    """GET requests with plain answers. environ: as of `open_http`. per_host: connections to one host at a time.

    A server whose answer is not plain is left to `Http` from then on, else each request would be sent twice.
    """

    def __init__(self, environ: Mapping[str, str], timeouts: Timeouts, per_host: int) -> None:
        self._routes, self._bundle = http_settings.proxies(environ), http_settings.ca_bundle(environ)
        self._timeouts = timeouts
        self._per_host = per_host
        self._servers: dict[_Origin, _Server] = {}
        self._context: asyncio.Future[ssl.SSLContext] | None = None

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        max_bytes: int,
        within: Bounds | None,
        admit: Admit | None = None,
    ) -> Response:
        """As `Http.request`. admit: called before the body is read.

        Raises:
            NotPlain: the answer is not plain, or the URL not within `within`.
            UsageError: the CA bundle in the environment cannot be used.
        """
        target = _target(url)
        if not (within is None or within.allows(target.url, redirected=False)):
            raise NotPlain("not within its bounds")
        fields = {"Host": target.host, "User-Agent": f"envspec/{VERSION}", "Accept": "*/*", **headers}
        if target.login is not None:
            fields["Authorization"] = target.login.basic
        if not all(map(_is_line, fields.values())):
            raise NotPlain("not plain headers")
        lines = [f"GET {target.path} HTTP/1.1", *(f"{key}: {value}" for key, value in fields.items()), "", ""]
        answer = _Answer(fields, max_bytes, admit, asyncio.get_running_loop().create_future())
        body, gzipped = await self._fetch(target.origin, "\r\n".join(lines).encode(), answer)
        with_login = target.login is not None
        return Response(target.url, answer.status, Headers(answer.fields), body, gzipped, with_login=with_login)

    async def _fetch(self, origin: _Origin, request: bytes, answer: _Answer) -> tuple[bytes, bytes | None]:
        server = self._server(origin)
        async with server.slots:
            if not server.is_plain:
                raise NotPlain("not a plain server")
            try:
                connection = await server.connection(await self._tls() if origin.scheme == "https" else None)
                try:
                    await connection.fetch(request, answer)
                finally:
                    server.put_back(connection)
                return answer.unpacked()
            except _ClosedWhileIdle:
                raise
            except NotPlain:
                server.is_plain = False
                server.close()
                raise

    def close(self) -> None:
        """Close the connections; requests must have ended."""
        for server in self._servers.values():
            server.close()

    def _server(self, origin: _Origin) -> _Server:
        if origin not in self._servers:
            is_plain = self._routes.of(*origin) is None
            self._servers[origin] = _Server(origin, self._timeouts, self._per_host, is_plain=is_plain)
        return self._servers[origin]

    async def _tls(self) -> ssl.SSLContext:
        """In a thread: reading the system's certificates takes 20 ms."""
        if self._context is None:
            self._context = asyncio.ensure_future(asyncio.to_thread(http_settings.tls_context, self._bundle))
        return await asyncio.shield(self._context)


def _is_line(value: str) -> bool:
    return value.isascii() and value.isprintable()


def _unzipped(body: bytes, max_bytes: int) -> bytes:
    member = isal_zlib.decompressobj(_GZIP)
    try:
        plain = member.decompress(body, max_bytes + 1)
    except _INFLATE_ERROR as error:
        raise NotPlain(str(error)) from error
    if len(plain) > max_bytes or not member.eof or member.unused_data:
        raise NotPlain("not one whole gzip member of this size")
    return plain
