"""The HTTP client that rattler reads channels with, and their addresses with credentials and without."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from envspec.credentials import channel_without_credentials

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


def channel_client(waits: Patience, addresses: Iterable[str]) -> Client:
    """A client that tries again as often as `waits` says and knows the credentials in the addresses.

    Proxies and the CA bundle are read by rattler itself, from the process's own environment. Credentials that are not
    in an address come from rattler's store: its keyring, `RATTLER_AUTH_FILE` or ~/.rattler/credentials.json, ~/.netrc.
    """
    from rattler import Client
    from rattler.networking.middleware import AddHeadersMiddleware, RetryMiddleware

    logins = _logins(addresses)

    def login(host: str, path: str) -> dict[str, str] | None:
        fitting = [prefix for known, prefix in logins if known == host and path.startswith(prefix)]
        return {"Authorization": logins[host, max(fitting, key=len)]} if fitting else None

    # User and password go as a header: in the URL they would come to lie in the cache's files too.
    headers = [AddHeadersMiddleware(login)] if logins else []
    return Client(
        [RetryMiddleware(waits.attempts - 1), *headers, *own_middleware()],
        user_agent="envspec",
        timeout=max(1, round(waits.total_s)),
    )


def own_middleware() -> list[AuthenticationMiddleware | OciMiddleware | GCSMiddleware | S3Middleware]:
    """All of rattler's own client but its retries: logins of its store, and the forms of address that it knows."""
    from rattler.networking.middleware import AuthenticationMiddleware, GCSMiddleware, OciMiddleware, S3Middleware

    return [AuthenticationMiddleware(), OciMiddleware(), GCSMiddleware(), S3Middleware()]


def _logins(addresses: Iterable[str]) -> dict[tuple[str, str], str]:
    """The Authorization header of each host and path that an address has a user for."""
    found: dict[tuple[str, str], str] = {}
    for parts in map(urlsplit, addresses):
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            found[parts.hostname or "", parts.path] = "Basic " + base64.b64encode(pair.encode()).decode()
    return found
