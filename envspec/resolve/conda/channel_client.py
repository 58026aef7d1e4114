"""HTTP client of conda channels, and its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from envspec.credentials import channel_without_credentials
from envspec.errors import NetworkError, OfflineMiss
from envspec.io import http_types
from envspec.io.http_settings import keeps_logins
from envspec.io.http_types import Credential, IncompleteResponse, RequestError, Stalled, Unreachable
from envspec.models import Platform
from envspec.origins import origin_of

if TYPE_CHECKING:
    from rattler import Client
    from rattler.networking.middleware import AuthenticationMiddleware, GCSMiddleware, OciMiddleware, S3Middleware

    from envspec.io.http_types import Timeouts
    from envspec.resolve.types import Channel


def without_credentials(url: str) -> str:
    """`url` as a lock may contain it: no user, password, token or query, no `/` at the end."""
    return re.split(r"[?#]", channel_without_credentials(url), maxsplit=1)[0].rstrip("/")


def without_login(address: str) -> str:
    """`address` without user and password; a token in its path stays, since the server needs it there."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def channel_client(
    waits: Timeouts, origin: str, addresses: Iterable[str], relayed: Mapping[str, str] = MappingProxyType({})
) -> Client:
    """A client for one origin with the retries of `waits` and the credentials in the addresses.

    relayed: channels, each with a slash at its end, and the address on loopback that serves them.

    rattler reads proxies and the CA bundle from the process's environment, and credentials that are not in an address
    from its own store: its keyring, `RATTLER_AUTH_FILE` or ~/.rattler/credentials.json, ~/.netrc.
    """
    from rattler import Client
    from rattler.networking.middleware import AddHeadersMiddleware, MirrorMiddleware, RetryMiddleware

    # rattler passes the host and the path of a request only, so that one client serves one origin.
    logins: dict[str, str] = {}
    for address in addresses:
        if origin_of(address) == origin and (login := login_of(address)):
            logins[urlsplit(address).path] = login

    def header(host: str, path: str) -> dict[str, str] | None:
        fitting = [prefix for prefix in logins if path.startswith(prefix)]
        if not fitting or host != urlsplit(origin).hostname:
            return None
        return {"Authorization": logins[max(fitting, key=len)]}

    plain: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for url, mirror in relayed.items():
        # Requests that are sent elsewhere before logins are looked up get none.
        mirrors = others if keeps_logins(url) else plain
        mirrors[url] = [mirror]
    with _loopback_without_proxy():
        middleware: list[Any] = [RetryMiddleware(waits.attempts - 1)]
        if plain:
            middleware.append(MirrorMiddleware(plain))
        if logins:
            # User and password are sent as a header: in the URL they would be written into the cache's files.
            middleware.append(AddHeadersMiddleware(header))
        middleware += own_middleware(origin)
        if others:
            middleware.append(MirrorMiddleware(others))
        return Client(middleware, user_agent="envspec", timeout=max(1, round(waits.total_s)))


def own_middleware(url: str) -> list[AuthenticationMiddleware | OciMiddleware | GCSMiddleware | S3Middleware]:
    """rattler's default client without retries. url: no login that is stored for a host is sent over plain http."""
    from rattler.networking.middleware import AuthenticationMiddleware, GCSMiddleware, OciMiddleware, S3Middleware

    stored = [AuthenticationMiddleware()] if keeps_logins(url) else []
    return [*stored, OciMiddleware(), GCSMiddleware(), S3Middleware()]


def login_of(address: str) -> str | None:
    """The Authorization header for an address's user and password; None if it has none."""
    parts = urlsplit(address)
    if parts.username is None:
        return None
    return Credential(unquote(parts.username), unquote(parts.password or "")).basic


@contextmanager
def _loopback_without_proxy() -> Iterator[None]:
    """rattler reads the process's proxies when a client is made, and would use them for 127.0.0.1 too."""
    names = ("no_proxy", "NO_PROXY")
    before = {name: os.environ[name] for name in names if name in os.environ}
    exempt = next(filter(None, before.values()), "")
    try:
        os.environ.update(dict.fromkeys(names, ",".join(filter(None, [exempt, "127.0.0.1"]))))
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


class ChannelError(RequestError, code="bad-channel"):
    """A channel gave no usable repodata."""


_URL: Final = re.compile(r"(?:https?|file|s3|gcs|oci)://[^\s'\")]+")
_AGAIN: Final = "try again; if it fails again, check the server"
_NOT_REPODATA: Final = "the answer is not a channel's repodata, or not all of it"
#: rattler's messages for a complete answer that cannot be read.
_GARBLED: Final = ("failed to decode zstd", "failed to parse")
_TOO_SLOW: Final = "no complete answer within {total:g} s"
_SLOW: Final = f"{_AGAIN}; ENVSPEC_HTTP_TOTAL_S sets the time limit"
#: Parts of rattler's messages, with class, error and hint; the first match decides. {total}: the time limit in seconds.
_ERRORS: Final[tuple[tuple[str, type[RequestError], str, str], ...]] = (
    ("operation timed out", Stalled, _TOO_SLOW, _SLOW),
    (
        "invalid peer certificate",
        RequestError,
        "the server's certificate is not trusted",
        "name your organisation's in SSL_CERT_FILE, the only variable for conda channels",
    ),
    ("dns error", Unreachable, "cannot resolve host", "check [conda] channels, DNS and HTTPS_PROXY"),
    ("tunnel error", RequestError, "the proxy refuses the connection", "check HTTPS_PROXY and NO_PROXY"),
    (
        "tcp connect error",
        Unreachable,
        "no connection",
        "check that the server runs, its port, and whether HTTPS_PROXY must name a proxy",
    ),
    ("error decoding response body", IncompleteResponse, "the connection broke during the answer", _AGAIN),
    *((text, ChannelError, _NOT_REPODATA, _AGAIN) for text in _GARBLED),
    ("error sending request", Unreachable, "the connection broke before an answer", _AGAIN),
    ("too many redirects", RequestError, "endless redirects", "open the URL with a browser or curl"),
    # After all specific ones: what is left are messages of the decoder of zstd.
    ("failed to download", ChannelError, _NOT_REPODATA, _AGAIN),
)
_LOGIN: Final = 'write them into [conda] channels as variables: "https://${TEAM_USER}:${TEAM_PASSWORD}@host/channel"'
#: A file in a channel.
_FILE: Final = re.compile(rf"/(?:noarch|{'|'.join(platform.value for platform in Platform)})(?:/[^/]*)?$")


class SharedChannelError(ChannelError):
    """The error of another request that this one waited for."""


def too_slow(channels: Sequence[Channel], waits: Timeouts) -> RequestError:
    return Stalled(_urls(channels), _TOO_SLOW.format(total=waits.total_s), hint=_SLOW)


def is_garbled(message: str) -> bool:
    """Whether rattler could not read an answer, which it has cached all the same."""
    return any(text in message for text in _GARBLED)


def channel_error(message: str, channels: Sequence[Channel], waits: Timeouts) -> NetworkError:
    """The error for rattler's message. channels: those that were requested."""
    url = _urls(channels)
    if urls := _URL.findall(message):
        # The last URL is the request's; before it rattler may name the channel.
        url = without_credentials(urls[-1].rstrip("."))
    if "a coalesced request failed" in message:
        return SharedChannelError(url, "cannot be read as a channel", hint=_AGAIN)
    if "could not find subdir" in message:
        # `noarch` is missing, which every channel has.
        return _no_channel(url, message)
    if status := re.search(r"HTTP status (?:client|server) error \((\d+)", message):
        return status_error(url, int(status[1]))
    if "no usable repodata cache" in message:
        return OfflineMiss(f"channel {_FILE.sub('', url)}")
    for text, kind, what, hint in _ERRORS:
        if text in message:
            return kind(url, what.format(total=waits.total_s), hint=hint)
    reason = _URL.sub("it", message.strip().splitlines()[-1]).removeprefix("Caused by: ")
    return ChannelError(url, f"cannot be read as a channel ({reason})", hint="open the URL with a browser or curl")


def missing_platform(channel: Channel, subdir: str) -> ChannelError:
    """A channel without one of the spec's platforms: its names would come from the next one, in any version."""
    return ChannelError(
        channel.url,
        f"there is no {subdir}/repodata.json (not found), and no other channel may replace it",
        hint=f'if it has noarch alone, declare that in [conda]: only = {{ "{channel.name}" = ["noarch"] }}; else check '
        "its address, and that your credentials give access to it",
    )


def not_repodata(url: str) -> ChannelError:
    return ChannelError(without_credentials(url), _NOT_REPODATA, hint=_AGAIN)


def status_error(url: str, status: int) -> NetworkError:
    """The error for an HTTP status. A channel refuses credentials as a whole, whichever of its files was requested."""
    channel = _FILE.sub("", url)
    if status == 401:
        return ChannelError(channel, "HTTP 401 (credentials missing or wrong)", hint=_LOGIN)
    return http_types.BadStatus(channel if status < 500 else url, status)


def _no_channel(url: str, message: str) -> ChannelError:
    if url.startswith("file:"):
        file = re.search(r"failed to open file `([^`]+)`", message)
        path = file[1] if file else url
        return ChannelError(path, "no such file, so no channel", hint="correct the folder in [conda] channels")
    return ChannelError(
        _FILE.sub("", url),
        "HTTP 404 (not found): there is no such channel",
        hint="check the spelling in [conda] channels, and that your credentials give access to it",
    )


def _urls(channels: Sequence[Channel]) -> str:
    return " or ".join(channel.url for channel in channels)
