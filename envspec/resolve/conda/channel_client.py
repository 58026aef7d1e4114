"""HTTP client of conda channels, and its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from envspec.credentials import channel_without_credentials
from envspec.errors import NetworkError
from envspec.io import http_types
from envspec.io.http_settings import keeps_logins
from envspec.io.http_types import Credential
from envspec.models import Platform
from envspec.origins import origin_of

if TYPE_CHECKING:
    from rattler import Client
    from rattler.networking.middleware import AuthenticationMiddleware, GCSMiddleware, OciMiddleware, S3Middleware

    from envspec.io.http_types import Timeouts
    from envspec.resolve.types import Channel


def without_credentials(url: str) -> str:
    """A channel's or an archive's `url` as a lock may say it: no user, password, token or query, no `/` at the end."""
    return re.split(r"[?#]", channel_without_credentials(url), maxsplit=1)[0].rstrip("/")


def without_login(address: str) -> str:
    """`address` without user and password; a token in its path stays, the server wants it there."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def channel_client(
    waits: Timeouts, origin: str, addresses: Iterable[str], relayed: Mapping[str, str] = MappingProxyType({})
) -> Client:
    """A client for one origin that tries again as often as `waits` says and knows the credentials in the addresses.

    relayed: other origins, each with a slash at its end, and the address on loopback that they are reached at.

    Proxies and the CA bundle are read by rattler itself, from the process's own environment. Credentials that are not
    in an address come from rattler's store: its keyring, `RATTLER_AUTH_FILE` or ~/.rattler/credentials.json, ~/.netrc.
    """
    from rattler import Client
    from rattler.networking.middleware import AddHeadersMiddleware, MirrorMiddleware, RetryMiddleware

    # rattler tells the host and the path of a request and no more, so that one client is good for one origin.
    logins = {
        urlsplit(address).path: login
        for address in addresses
        if origin_of(address) == origin and (login := login_of(address))
    }

    def header(host: str, path: str) -> dict[str, str] | None:
        fitting = [prefix for prefix in logins if path.startswith(prefix)] if host == urlsplit(origin).hostname else []
        return {"Authorization": logins[max(fitting, key=len)]} if fitting else None

    # What is sent elsewhere before logins are looked up gets none.
    plain = {key: [value] for key, value in relayed.items() if not keeps_logins(key)}
    others = {key: [value] for key, value in relayed.items() if key not in plain}
    with _loopback_without_proxy():
        return Client(
            [
                RetryMiddleware(waits.attempts - 1),
                *([MirrorMiddleware(plain)] if plain else []),
                # User and password go as a header: in the URL they would come to lie in the cache's files too.
                *([AddHeadersMiddleware(header)] if logins else []),
                *own_middleware(origin),
                *([MirrorMiddleware(others)] if others else []),
            ],
            user_agent="envspec",
            timeout=max(1, round(waits.total_s)),
        )


def own_middleware(url: str) -> list[AuthenticationMiddleware | OciMiddleware | GCSMiddleware | S3Middleware]:
    """All of rattler's own client but its retries: logins of its store, and the forms of address that it knows.

    url: what is requested, or its origin: over plain http, no login is sent that was kept for a host.
    """
    from rattler.networking.middleware import AuthenticationMiddleware, GCSMiddleware, OciMiddleware, S3Middleware

    stored = [AuthenticationMiddleware()] if keeps_logins(url) else []
    return [*stored, OciMiddleware(), GCSMiddleware(), S3Middleware()]


def login_of(address: str) -> str | None:
    """The Authorization header by an address's user and password; None if it has none."""
    parts = urlsplit(address)
    if parts.username is None:
        return None
    return Credential(unquote(parts.username), unquote(parts.password or "")).basic


@contextmanager
def _loopback_without_proxy() -> Iterator[None]:
    """rattler reads the process's proxies when a client is made, and would ask them for 127.0.0.1 too."""
    before = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    exempt = before["no_proxy"] or before["NO_PROXY"]
    try:
        os.environ.update(dict.fromkeys(before, f"{exempt},127.0.0.1" if exempt else "127.0.0.1"))
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_URL: Final = re.compile(r"(?:https?|file|s3|gcs|oci)://[^\s'\")]+")
_AGAIN: Final = "try again; if it stays, look at the server"
_NOT_ROWS: Final = "what it sent is not rows of a channel, or not all of them"
#: What rattler says of an answer that came to its end and can't be read.
_GARBLED: Final = ("failed to decode zstd", "failed to parse")
#: What rattler says, and what that is; the first that is found decides. `{total}`: the longest wait, in seconds.
_WORDS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "no usable repodata cache",
        "not in the cache, and nothing is fetched offline",
        "lock once with a network, or without --offline",
    ),
    (
        "operation timed out",
        "no whole answer within {total:g} s",
        f"{_AGAIN}; ENVSPEC_HTTP_TOTAL_S is how long is waited",
    ),
    (
        "invalid peer certificate",
        "the server's certificate is not trusted",
        "name your organisation's in SSL_CERT_FILE; conda channels are read with no other variable",
    ),
    ("dns error", "the host's name is not known here", "check [conda] channels, DNS and HTTPS_PROXY"),
    ("Connection refused", "no connection (refused)", "is the server up? are its port and HTTPS_PROXY right?"),
    ("tunnel error", "the proxy lets nothing through", "check HTTPS_PROXY and NO_PROXY"),
    ("tcp connect error", "no connection", "is the server up? is there a proxy to name in HTTPS_PROXY?"),
    ("error decoding response body", "the answer broke off before its end", _AGAIN),
    *((words, _NOT_ROWS, _AGAIN) for words in _GARBLED),
    ("error sending request", "the connection broke before an answer", _AGAIN),
    ("too many redirects", "redirects without an end", "look at the URL with a browser or curl"),
    # After all that says why: what is left is what the decoder of zstd says.
    ("failed to download", _NOT_ROWS, _AGAIN),
)
_LOGIN: Final = 'write them into [conda] channels as variables: "https://${USER}:${PASSWORD}@host/channel"'
#: A file of rattler's choice in a channel.
_FILE: Final = re.compile(rf"/(?:noarch|{'|'.join(platform.value for platform in Platform)})(?:/[^/]*)?$")


class ChannelFault(NetworkError):
    """A channel that gave no usable rows."""


class SharedFault(ChannelFault):
    """A channel that gave no usable rows to another request, which waited for the same and was told why."""


def too_slow(channels: Sequence[Channel], waits: Timeouts) -> ChannelFault:
    """No answer within the longest time that is waited."""
    return ChannelFault(
        f"{_all(channels)}: no whole answer within {waits.total_s:g} s",
        hint=f"{_AGAIN}; ENVSPEC_HTTP_TOTAL_S is how long is waited",
    )


def is_garbled(told: str) -> bool:
    """Whether rattler tells of an answer that it could not read. It has kept it in its cache all the same."""
    return any(words in told for words in _GARBLED)


def channel_fault(told: str, channels: Sequence[Channel], waits: Timeouts) -> NetworkError:
    """The error for what rattler told of a channel. channels: those that were asked."""
    named = _URL.findall(told)
    # The last URL is what was asked for in the end; before it rattler may name the channel.
    url = without_credentials(named[-1].rstrip(".")) if named else _all(channels)
    if "a coalesced request failed" in told:
        return SharedFault(f"{url}: can't be read as a channel", hint=_AGAIN)
    if "could not find subdir" in told:
        return _missing(url, told)
    if status := re.search(r"HTTP status (?:client|server) error \((\d+)", told):
        return refused_status(url, int(status[1]))
    for words, what, hint in _WORDS:
        if words in told:
            url = _FILE.sub("", url) if "offline" in what else url
            return ChannelFault(f"{url}: {what.format(total=waits.total_s)}", hint=hint)
    reason = _URL.sub("it", told.strip().splitlines()[-1]).removeprefix("Caused by: ")
    return ChannelFault(f"{url}: can't be read as a channel ({reason})", hint="look at the URL with a browser or curl")


def missing_platform(channel: Channel, subdir: str) -> ChannelFault:
    """A channel without one of the spec's platforms: its names would come from the next one, of any version."""
    return ChannelFault(
        f"{channel.url}: there is no {subdir}/repodata.json (not found), and nothing may come from another channel "
        "in its place",
        hint=f'if it has noarch alone, say so in [conda]: only = {{ "{channel.name}" = ["noarch"] }}; else check its '
        "address, and that your credentials may see it",
    )


def not_rows(url: str) -> ChannelFault:
    """An answer that came to its end, and is something else."""
    return ChannelFault(f"{without_credentials(url)}: {_NOT_ROWS}", hint=_AGAIN)


def refused_status(url: str, status: int) -> NetworkError:
    """A status of an error. url: without credentials.

    What is refused to these credentials is the channel, whatever was asked for first.
    """
    channel = _FILE.sub("", url)
    if status == 401:
        return ChannelFault(f"{channel}: HTTP 401 (credentials needed, or wrong)", hint=_LOGIN)
    return http_types.BadStatus(channel if status < 500 else url, status)


def _missing(url: str, told: str) -> ChannelFault:
    """A channel without `noarch`, which every channel has: it isn't there, or isn't one."""
    if url.startswith("file:"):
        file = re.search(r"failed to open file `([^`]+)`", told)
        where = file[1] if file else url
        return ChannelFault(f"{where}: no such file, so no channel", hint="correct the folder in [conda] channels")
    return ChannelFault(
        f"{_FILE.sub('', url)}: HTTP 404 (not found): there is no such channel",
        hint="check the spelling in [conda] channels, and that your credentials may see it",
    )


def _all(channels: Sequence[Channel]) -> str:
    return " or ".join(channel.url for channel in channels)
