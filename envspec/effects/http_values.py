"""The values that `Http` takes and gives; importing them costs nothing."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from envspec.effects.http_faults import BadStatus

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy


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
class Patience:
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


class Sink(Protocol):
    """Where a download's bytes go; `write` may be called from the event loop and must not block for long."""

    def write(self, chunk: bytes, /) -> object: ...
