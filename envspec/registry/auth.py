"""How a registry lets a client in: challenges, basic authentication, bearer tokens.

Sources: RFC 9110 11.6.1 for challenges; distribution's "Token Authentication" and "OAuth2" for tokens. Read 2026-11.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from envspec.effects.http_values import Response
from envspec.effects.surroundings import is_loopback
from envspec.registry.credentials import Login, LoginKind
from envspec.registry.faults import AccessRefused, RegistryFault, access_refused, rate_limited, spoken
from envspec.registry.reference import Endpoint

_TOKEN_BYTES: Final = 1024 * 1024
_PART: Final = re.compile(
    r"""(?P<name>[\w-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s,"]+))|(?P<scheme>[\w-]+)"""
)


class Request(Protocol):
    """`Http.request`."""

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_bytes: int = ...,
    ) -> Response: ...


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way in that a server offers. scheme: lower case. parameters: realm, service, scope..."""

    scheme: str
    parameters: Mapping[str, str]


def challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Read `WWW-Authenticate` headers; each may hold several challenges."""
    found: list[tuple[str, dict[str, str]]] = []
    for header in headers:
        for part in _PART.finditer(header):
            if part["scheme"]:
                found.append((part["scheme"].lower(), {}))
            elif found:
                quoted = part["quoted"]
                value = part["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                found[-1][1][part["name"].lower()] = value
    return tuple(Challenge(scheme, parameters) for scheme, parameters in found)


async def authorize(offered: Iterable[Challenge], place: Endpoint, login: Login | None, request: Request) -> str | None:
    """The Authorization header's value that the registry asks for; None when it offers no way that we know.

    Raises:
        AccessRefused: it wants a login and there is none, or the login is refused.
        RegistryFault: the token server fails, or is one that no login may be sent to.
    """
    by_scheme = {challenge.scheme: challenge for challenge in reversed(list(offered))}
    if login is not None and login.kind is LoginKind.BEARER:
        return f"Bearer {login.credential.secret}"
    if bearer := by_scheme.get("bearer"):
        return f"Bearer {await _token(bearer, place, login, request)}"
    if "basic" not in by_scheme:
        return None
    if login is None or login.kind is not LoginKind.PASSWORD:
        raise access_refused(f"{place.registry}/{place.repository}", place, None)
    return login.credential.basic


async def _token(bearer: Challenge, place: Endpoint, login: Login | None, request: Request) -> str:
    """Ask the token server for a token that allows to pull from one repository."""
    realm = _realm(bearer, place)
    form = {
        "service": bearer.parameters.get("service", ""),
        "scope": bearer.parameters.get("scope") or f"repository:{place.repository}:pull",
    }
    form = {name: value for name, value in form.items() if value}
    if login is not None and login.kind is LoginKind.IDENTITY_TOKEN:
        form |= {"grant_type": "refresh_token", "client_id": "envspec", "refresh_token": login.credential.secret}
        answer = await request(
            "POST",
            realm,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
            body=urlencode(form).encode(),
            max_bytes=_TOKEN_BYTES,
        )
    else:
        parts = urlsplit(realm)
        query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *form.items()])
        headers = {"Authorization": login.credential.basic} if login else {}
        answer = await request("GET", urlunsplit(parts._replace(query=query)), headers=headers, max_bytes=_TOKEN_BYTES)
    if answer.status != 200:
        raise _refused(answer, place, login)
    return _read_token(answer, place)


def _realm(bearer: Challenge, place: Endpoint) -> str:
    """The token server's address: https, except on loopback and on the host of a registry asked in plain http."""
    realm = bearer.parameters.get("realm", "")
    parts = urlsplit(realm)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise RegistryFault(
            f"{place.registry}: its token server is not a URL", hint="tell whoever runs the registry: `realm` is wrong"
        )
    same = place.is_plain and urlsplit(place.base).hostname == parts.hostname
    if parts.scheme == "http" and not same and not is_loopback(parts.hostname):
        raise RegistryFault(
            f"{place.registry}: its token server {parts.hostname} is plain http, and logins are not sent over that",
            hint="tell whoever runs the registry: `realm` has to be https",
        )
    return realm


def _refused(answer: Response, place: Endpoint, login: Login | None) -> RegistryFault:
    host = urlsplit(answer.url).netloc
    if answer.status == 429:
        return rate_limited(place, answer.headers, login.source if login else None)
    if answer.status in {400, 401, 403}:
        refused: AccessRefused = access_refused(
            f"{place.registry}/{place.repository}", place, login.source if login else None, spoken(answer.body)
        )
        return refused
    return RegistryFault(
        f"{place.registry}: its token server {host} answers HTTP {answer.status}",
        hint="try again later; if it stays, tell whoever runs the registry",
    )


def _read_token(answer: Response, place: Endpoint) -> str:
    try:
        document = json.loads(answer.body)
        token = document.get("token") or document.get("access_token")
    except (ValueError, AttributeError, RecursionError):
        token = None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise RegistryFault(
            f"{place.registry}: its token server {urlsplit(answer.url).netloc} answers no token",
            hint="is there a proxy with a login page in between?",
        )
    return token
