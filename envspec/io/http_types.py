"""Timeouts, credentials, responses and errors of HTTP."""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, overload

from msgspec import Struct

from envspec.credentials import shown
from envspec.errors import EnvspecError, NetworkError
from envspec.origins import Bounds

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy


#: Bytes per second; a modem has five times as many. A server that is slower for `stall_s` counts as stalled.
SLOWEST_BYTES_S: Final = 1024
#: Decides by status and Content-Length whether a body is read: raises if not.
Admit = Callable[[int, "int | None"], None]


class RequestError(NetworkError):
    """A request without a usable response. url: without credentials."""

    def __init__(self, url: str, what: str, *, hint: str) -> None:
        self.url = shown(url)
        super().__init__(f"{self.url}: {what}", hint=hint)


class Unreachable(RequestError, code="unreachable"):
    """No connection: the name is unknown, the port is closed, or the connection broke before an answer."""


class Stalled(RequestError, code="timeout"):
    """The server took longer than `Timeouts` allow."""


class IncompleteResponse(RequestError, code="incomplete-response"):
    """The response ended early or is not HTTP."""


class TooLarge(RequestError, code="response-too-large"):
    def __init__(self, url: str, max_bytes: int) -> None:
        limit = f"{max_bytes / 1e6:.0f} MB" if max_bytes >= 1e6 else f"{max_bytes} bytes"
        super().__init__(
            url,
            f"the response is larger than {limit}",
            hint="look at the URL with curl: the server sends something other than the requested document",
        )


class WrongServer(RequestError, code="wrong-server"):
    """A request or redirect to a server outside the allowed bounds. target: its URL."""

    def __init__(self, url: str, target: str, bounds: Bounds, *, redirected: bool) -> None:
        self.target = shown(target)
        what = f"is not on a server of {bounds.of}: nothing was read"
        if redirected:
            what = f"redirects to {self.target}, which {what}"
        super().__init__(url, what, hint=bounds.way_out(target))


class BadStatus(RequestError, code="http-status"):
    """A response whose status is not 2xx. retry_after: the header as sent. with_login: whether the request had one;
    None: unknown.
    """

    def __init__(
        self, url: str, status: int, *, retry_after: str | None = None, with_login: bool | None = None
    ) -> None:
        self.status = status
        self.retry_after = retry_after
        what, hint = _LOGIN[with_login] if status == 401 else _status_words(status, retry_after)
        super().__init__(url, f"HTTP {status}{what}", hint=hint)


_IN_URL: Final = "put the login into the URL, in a spec as https://${TEAM_USER}:${TEAM_PASSWORD}@HOST/"
#: Status 401, by `with_login`.
_LOGIN: Final[Mapping[bool | None, tuple[str, str]]] = {
    True: (" (the login is wrong)", "check the user, and the password or token: it may have expired"),
    False: (" (a login is needed)", _IN_URL),
    None: (" (a login is needed, or the login is wrong)", _IN_URL),
}

_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    403: (" (forbidden)", "the credentials for this host don't allow it, or the host blocks this machine"),
    404: (" (not found)", "check the spelling, and that the URL belongs to the server that has it"),
    407: (" (the proxy requires credentials)", "put them into HTTPS_PROXY: http://user:password@proxy:port"),
    410: (" (gone)", "the server deleted it"),
}


def _status_words(status: int, retry_after: str | None) -> tuple[str, str]:
    if status == 429:
        when = f"in {retry_after} s" if re.fullmatch(r"[0-9]{1,9}", retry_after or "") else "later"
        return " (too many requests)", f"try again {when}, or with credentials, which have a higher limit"
    if status >= 500:
        return " (the server failed)", "try again later; if it persists, contact the server's operator"
    return _STATUS.get(status, ("", "the server refuses this request"))


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds in a `Retry-After` header (a number or a date, RFC 9110 10.2.3); None if there are none."""
    if not header:
        return None
    if re.fullmatch(r"[0-9]+", header.strip()):
        return float(header)
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(header)
        if then.tzinfo is None:
            then = then.replace(tzinfo=timezone.utc)
        return max(0.0, (then - (now or datetime.now(timezone.utc))).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def is_transient(error: BaseException) -> bool:
    """Whether a retry may help: yes for broken connections and stalls, no for certificates and bad URLs."""
    import socket

    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return error.os_error.errno == socket.EAI_AGAIN  # the name server failed; other codes: there is no such name
    return not isinstance(error, (aiohttp.ClientSSLError, aiohttp.InvalidURL, aiohttp.ClientHttpProxyError))


def describe(cause: BaseException, url: str, connect_s: float, stall_s: float) -> RequestError:
    """An error of aiohttp or the system as envspec's own."""
    import asyncio

    import aiohttp

    reason, status = _reason(cause), getattr(cause, "status", "")
    untrusted = f"the server's certificate is not trusted ({reason})"
    bundle = "name the bundle with your organisation's certificate in SSL_CERT_FILE"
    proxy_refuses = f"the proxy refuses the request (HTTP {status})"
    proxy_login = "check HTTPS_PROXY and NO_PROXY; 407 means that the proxy requires http://user:password@proxy"
    proxies = "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    spelling = "check the spelling, DNS and HTTPS_PROXY"
    firewall = "check the firewall, and whether HTTPS_PROXY must name a proxy"
    again = "try again; if it persists, check the server"
    longer = f"{again}; ENVSPEC_HTTP_STALL_S sets the time limit"
    plain_http, port = "check whether the server speaks http:// instead", "check that the server runs, and its port"
    # The first match counts: aiohttp's special errors inherit from its general ones.
    errors: tuple[tuple[type[BaseException], type[RequestError], str, str], ...] = (
        (aiohttp.ClientConnectorCertificateError, RequestError, untrusted, bundle),
        (aiohttp.ClientSSLError, RequestError, f"no TLS connection ({reason})", plain_http),
        (aiohttp.ClientProxyConnectionError, RequestError, f"the proxy can't be reached ({reason})", proxies),
        (aiohttp.ClientHttpProxyError, RequestError, proxy_refuses, proxy_login),
        (aiohttp.ClientConnectorDNSError, Unreachable, "cannot resolve host", spelling),
        (aiohttp.ConnectionTimeoutError, Stalled, f"no connection within {connect_s:g} s", firewall),
        (aiohttp.ServerTimeoutError, Stalled, f"the server stalled: no byte for {stall_s:g} s", longer),
        (asyncio.TimeoutError, Stalled, "the response is not complete within the time limit", again),
        (aiohttp.ClientConnectorError, Unreachable, f"no connection ({reason})", port),
        (aiohttp.ClientPayloadError, IncompleteResponse, "the response ended early", again),
        (aiohttp.ClientResponseError, IncompleteResponse, "the response is not HTTP", again),
        (OSError, Unreachable, f"the connection broke ({reason})", again),
    )
    for kind, error, what, hint in errors:
        if isinstance(cause, kind):
            return error(url, what, hint=hint)
    return Unreachable(url, "the connection broke before a response", hint=again)


def _reason(error: BaseException) -> str:
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ConnectionError) and cause.errno:
        # asyncio writes the address in its place.
        return os.strerror(cause.errno)
    return getattr(cause, "verify_message", "") or getattr(cause, "strerror", "") or type(cause).__name__


@dataclass(frozen=True, slots=True)
class Credential:
    """A user name and a password or token for one host; the secret is in no repr."""

    username: str
    secret: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of the Authorization header (RFC 7617, UTF-8)."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()


class Timeouts(Struct, frozen=True):
    """Time limits in seconds, and how often to try.

    connect_s: a connection with its TLS.
    stall_s: until the next byte.
    total_s: a whole response in memory; downloads have no such limit.
    attempts: tries in all for transient errors; a stalled server gets two.
    backoff_s: the first pause, doubled each time.
    retry_after_s: the longest `Retry-After` to wait for.
    """

    connect_s: float = 15.0
    stall_s: float = 30.0
    total_s: float = 600.0
    attempts: int = 4
    backoff_s: float = 0.5
    retry_after_s: float = 20.0
    redirects: int = 8


#: The longest pause that no server requested, in seconds.
_LONGEST_PAUSE_S: Final = 30.0


class Retry(Struct):
    """The one retry policy: counts failed attempts in a row. key: spreads the pauses, usually the URL."""

    timeouts: Timeouts
    key: str
    failed: int = 0
    _stalls: int = 0
    _furthest: int = 0

    @property
    def is_last(self) -> bool:
        return self.failed + 1 >= self.timeouts.attempts

    def next_pause_s(
        self, error: EnvspecError, *, transient: bool, requested_s: float | None = None, reached: int = 0
    ) -> float:
        """Count a failed attempt; the pause before the next one.

        requested_s: the server's `Retry-After`. reached: progress in bytes; an attempt that came further than all
        before starts the count anew.

        Raises:
            `error` if it is not transient, the attempts are used up, or `requested_s` is too long.
        """
        if reached > self._furthest:
            self._furthest, self.failed, self._stalls = reached, 0, 0
        self.failed += 1
        self._stalls += isinstance(error, Stalled)
        is_too_long = (requested_s or 0) > self.timeouts.retry_after_s
        if not transient or is_too_long or self.failed >= self.timeouts.attempts or self._stalls >= 2:
            raise error from error.__cause__
        # Spread by the key: the retries of many requests that failed together should not arrive together.
        spread = 0.75 + (zlib.crc32(f"{self.key}{self.failed}".encode()) % 1000) / 2000
        backoff_s = self.timeouts.backoff_s * float(2 ** (self.failed - 1)) * spread
        pause_s = backoff_s if requested_s is None else requested_s
        return min(pause_s, max(_LONGEST_PAUSE_S, self.timeouts.retry_after_s))


class Headers:
    """Header fields by their names, in any case. fields: by names in lower case; repeated ones joined by commas, which
    means the same (RFC 9110, 5.3).
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        return self._fields.get(name.lower(), default)

    def getall(self, name: str, default: list[str]) -> list[str]:
        value = self.get(name)
        return default if value is None else [value]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response.

    url: after redirects, without credentials.
    headers: case-insensitive.
    gzipped: the body as it was sent, if that was with gzip.
    with_login: whether the request had a login.
    """

    url: str
    status: int
    headers: CIMultiDictProxy[str] | Headers
    body: bytes = field(repr=False)
    gzipped: bytes | None = field(default=None, repr=False)
    with_login: bool = False

    def checked(self) -> Response:
        """Itself if the status is 2xx; raises BadStatus otherwise."""
        if 200 <= self.status < 300:
            return self
        retry_after = self.headers.get("Retry-After")
        raise BadStatus(self.url, self.status, retry_after=retry_after, with_login=self.with_login)
