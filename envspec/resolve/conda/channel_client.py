"""The HTTP client that rattler reads channels with, and their addresses with credentials and without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from envspec.credentials import channel_without_credentials
from envspec.effects.http_values import Credential
from envspec.effects.surroundings import keeps_logins
from envspec.origins import origin_of

if TYPE_CHECKING:
    from rattler import Client
    from rattler.networking.middleware import AuthenticationMiddleware, GCSMiddleware, OciMiddleware, S3Middleware

    from envspec.effects.http_values import Patience


def without_credentials(url: str) -> str:
    """A channel's or an archive's `url` as a lock may say it: no user, password, token or query, no `/` at the end."""
    return re.split(r"[?#]", channel_without_credentials(url), maxsplit=1)[0].rstrip("/")


def without_login(address: str) -> str:
    """`address` without user and password; a token in its path stays, the server wants it there."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def channel_client(
    waits: Patience, origin: str, addresses: Iterable[str], relayed: Mapping[str, str] = MappingProxyType({})
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
