"""Timeouts, credentials, responses and errors of HTTP."""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Protocol

from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.origins import Bounds

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy


class RequestError(NetworkError):
    """A request that gave no usable answer. url: without credentials."""

    def __init__(self, url: str, what: str, *, hint: str) -> None:
        self.url = shown(url)
        super().__init__(f"{self.url}: {what}", hint=hint)


class BadUrl(RequestError):
    """Not an http(s) URL."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "not a URL that can be asked", hint="give a URL of the form https://host/path")


class Unreachable(RequestError):
    """No connection: the name is unknown, the port is closed, or the connection broke before an answer."""


class ProxyError(RequestError):
    """The proxy refused, or cannot be reached."""


class TlsError(RequestError):
    """The server's certificate isn't trusted, or the server doesn't speak TLS."""


class Stalled(RequestError):
    """The server took longer than `Timeouts` allows."""


class IncompleteResponse(RequestError):
    """The answer ended before its announced end, or isn't HTTP."""


class TooLarge(RequestError):
    """The answer is larger than anything that is expected at this URL."""

    def __init__(self, url: str, max_bytes: int) -> None:
        limit = f"{max_bytes / 1e6:.0f} MB" if max_bytes >= 1e6 else f"{max_bytes} bytes"
        super().__init__(
            url,
            f"the answer is larger than {limit}",
            hint="the server sends something other than what is asked for: look at the URL with curl",
        )


class BadRedirect(RequestError):
    """A redirect that leads nowhere, in a circle, or from https to plain http."""


class WrongServer(BadRedirect):
    """A request that leads to a server that may not answer for its source. target: where it leads."""

    def __init__(self, url: str, target: str, bounds: Bounds, *, redirected: bool) -> None:
        self.target = shown(target)
        what = f"redirects to {self.target}, which" if redirected else ""
        super().__init__(
            url, f"{what} is not on a server of {bounds.of}: nothing was taken".lstrip(), hint=bounds.way_out(target)
        )


class BadStatus(RequestError):
    """An answer with another status than 2xx. status: HTTP's. retry_after: the header, as it was sent."""

    def __init__(self, url: str, status: int, *, retry_after: str | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        what, hint = _status_words(status, retry_after)
        super().__init__(url, f"HTTP {status}{what}", hint=hint)


_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    401: (" (credentials needed, or wrong)", "give credentials for this host"),
    403: (" (forbidden)", "the credentials for this host don't allow it, or the host blocks this machine"),
    404: (" (not found)", "check the spelling, and that the URL belongs to the server that has it"),
    407: (" (the proxy wants credentials)", "put them into HTTPS_PROXY: http://user:password@proxy:port"),
    410: (" (gone)", "the server had it once and has it no more"),
}


def _status_words(status: int, retry_after: str | None) -> tuple[str, str]:
    """What a status means and what to do about it."""
    if status == 429:
        when = f"in {retry_after} s" if re.fullmatch(r"[0-9]{1,9}", retry_after or "") else "later"
        return " (too many requests)", f"try again {when}, or with credentials, which have a higher limit"
    if status >= 500:
        return " (the server failed)", "try again later; if it stays, tell whoever runs the server"
    return _STATUS.get(status, ("", "the server refuses this request"))


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for (a number or a date, RFC 9110 10.2.3); None when it says nothing."""
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


def is_transient(fault: BaseException) -> bool:
    """Whether asking again may help: yes for broken connections and stalls, no for certificates and bad URLs."""
    import socket

    import aiohttp

    if isinstance(fault, aiohttp.ClientConnectorDNSError):
        return fault.os_error.errno == socket.EAI_AGAIN  # the name server failed; others say that there is no such name
    return not isinstance(fault, (aiohttp.ClientSSLError, aiohttp.InvalidURL, aiohttp.ClientHttpProxyError))


def describe(fault: BaseException, url: str, connect_s: float, stall_s: float) -> RequestError:
    """The fault that aiohttp or the system raised, in words for the user."""
    import asyncio

    import aiohttp

    again = "try again; if it stays, look at the server"
    # The first row that fits decides: aiohttp's special errors inherit from its general ones.
    rows: tuple[tuple[type[BaseException], type[RequestError], str, str], ...] = (
        (
            aiohttp.ClientConnectorCertificateError,
            TlsError,
            f"the server's certificate is not trusted ({_reason(fault)})",
            "name the bundle that holds your organisation's certificate in SSL_CERT_FILE",
        ),
        (aiohttp.ClientSSLError, TlsError, f"no TLS connection ({_reason(fault)})", "is this an http:// server?"),
        (
            aiohttp.ClientProxyConnectionError,
            ProxyError,
            f"the proxy can't be reached ({_reason(fault)})",
            "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
        ),
        (
            aiohttp.ClientHttpProxyError,
            ProxyError,
            f"the proxy lets nothing through (HTTP {getattr(fault, 'status', '')})",
            "check HTTPS_PROXY and NO_PROXY; 407 means that the proxy wants http://user:password@proxy",
        ),
        (
            aiohttp.ClientConnectorDNSError,
            Unreachable,
            "the host's name is not known here",
            "check the spelling, DNS and HTTPS_PROXY",
        ),
        (
            aiohttp.ConnectionTimeoutError,
            Stalled,
            f"no connection within {connect_s:g} s",
            "is there a firewall in between, or a proxy to name in HTTPS_PROXY?",
        ),
        (aiohttp.ServerTimeoutError, Stalled, f"the server stalled: no byte for {stall_s:g} s", again),
        (asyncio.TimeoutError, Stalled, "the answer isn't complete after the longest time allowed", again),
        (
            aiohttp.ClientConnectorError,
            Unreachable,
            f"no connection ({_reason(fault)})",
            "is the server up, and the port right?",
        ),
        (aiohttp.ClientPayloadError, IncompleteResponse, "the answer broke off before its end", again),
        (aiohttp.ClientResponseError, IncompleteResponse, "the answer is not HTTP", again),
        (OSError, Unreachable, f"the connection broke ({_reason(fault)})", again),
    )
    for kind, error, what, hint in rows:
        if isinstance(fault, kind):
            return error(url, what, hint=hint)
    return Unreachable(url, "the connection broke before an answer", hint=again)


def _reason(fault: BaseException) -> str:
    """The system's or OpenSSL's short reason behind an error of aiohttp's."""
    cause = getattr(fault, "certificate_error", None) or getattr(fault, "os_error", None) or fault
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait and how often to try, in seconds.

    connect_s: for a connection with its TLS. stall_s: for the next byte. total_s: for a whole answer in memory (a
    download has no such bound). attempts: tries in all for faults that pass; a stalled server gets two.
    backoff_s: the first pause, doubled each time. retry_after_s: the longest `Retry-After` that is waited for.
    """

    connect_s: float = 15.0
    stall_s: float = 30.0
    total_s: float = 600.0
    attempts: int = 4
    backoff_s: float = 0.5
    retry_after_s: float = 20.0
    redirects: int = 8

    def pause_s(self, url: str, attempt: int) -> float:
        """How long to wait after a try that failed; attempt: its number, from 1 on."""
        # Spread by the URL: the retries of many requests that failed together should not arrive together.
        spread = 0.75 + (zlib.crc32(f"{url}{attempt}".encode()) % 1000) / 2000
        return self.backoff_s * float(2 ** (attempt - 1)) * spread


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. url: where it came from after redirects, without credentials. headers: case doesn't matter."""

    url: str
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes = field(repr=False)

    def checked(self) -> Response:
        """Itself when the status is 2xx; BadStatus otherwise."""
        if 200 <= self.status < 300:
            return self
        raise BadStatus(self.url, self.status, retry_after=self.headers.get("Retry-After"))


class Writable(Protocol):
    """Where a download's bytes go; `write` may be called from the event loop and must not block for long."""

    def write(self, chunk: bytes, /) -> object: ...
