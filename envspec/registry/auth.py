"""How a registry lets a client in: challenges, basic authentication, bearer tokens.

Sources: RFC 9110 11.6.1 for challenges; distribution's "Token Authentication" and "OAuth2" for tokens. Read 2026-11.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from envspec.effects.http_values import Response
from envspec.registry.credentials import Login, LoginKind
from envspec.registry.faults import AccessRefused, RegistryFault, access_refused, rate_limited, shortened, spoken
from envspec.registry.reference import Action, Endpoint

_TOKEN_BYTES: Final = 1024 * 1024
#: Servers take headers of 8 to 64 KiB.
_LONGEST_TOKEN: Final = 64 * 1024
_LONGEST_S: Final = 24 * 3600
#: How long a token lasts whose server doesn't say.
_TOKEN_S: Final = 60.0
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


@dataclass(frozen=True, slots=True)
class Access:
    """What is to be done at a registry. also: repositories beside the place's own that blobs are mounted from."""

    place: Endpoint
    action: Action = Action.PULL
    also: tuple[str, ...] = ()

    def scope(self, challenge: Challenge) -> tuple[str, ...]:
        """The scopes to ask a token for: what the registry names, and what else will be needed.

        A push begins with questions, for which a registry names the scope `pull` alone; one token then does for all.
        """
        own = f"repository:{self.place.repository}"
        named = challenge.parameters.get("scope", "").split() or [f"{own}:{Action.PULL.value}"]
        if self.action is Action.PUSH:
            named = [f"{own}:{self.action.value}" if scope.startswith(f"{own}:") else scope for scope in named]
        mounted = (f"repository:{name}:{Action.PULL.value}" for name in self.also if name != self.place.repository)
        return tuple(dict.fromkeys([*named, *mounted]))


@dataclass(frozen=True, slots=True)
class Authorization:
    """An Authorization header's value. lasts_s: seconds that it is good for. login_source: None without a login."""

    value: str = field(repr=False)
    lasts_s: float
    login_source: str | None


async def authorize(
    offered: Iterable[Challenge], access: Access, login: Login | None, request: Request
) -> Authorization | None:
    """What to send so that the registry lets in; None when it offers no way that we know.

    Raises:
        AccessRefused: it wants a login and there is none, or the login is refused.
        RegistryFault: the token server fails, or is one that no login may be sent to.
    """
    by_scheme = {challenge.scheme: challenge for challenge in reversed(list(offered))}
    place, source = access.place, login.source if login else None
    if login is not None and login.kind is LoginKind.BEARER:
        return Authorization(f"Bearer {login.credential.secret}", math.inf, source)
    if bearer := by_scheme.get("bearer"):
        token, lasts_s = await _token(bearer, access, login, request)
        return Authorization(f"Bearer {token}", lasts_s, source)
    if "basic" not in by_scheme:
        return None
    if login is None or login.kind is not LoginKind.PASSWORD:
        raise access_refused(f"{place.registry}/{place.repository}", place, None)
    return Authorization(login.credential.basic, math.inf, source)


async def _token(bearer: Challenge, access: Access, login: Login | None, request: Request) -> tuple[str, float]:
    """Ask the token server for a token, and the seconds that it lasts."""
    place = access.place
    realm = _realm(bearer, place)
    service, scope = bearer.parameters.get("service"), access.scope(bearer)
    form = [("service", service)] if service else []
    if login is not None and login.kind is LoginKind.IDENTITY_TOKEN:
        form += [
            ("scope", " ".join(scope)),
            ("grant_type", "refresh_token"),
            ("client_id", "envspec"),
            ("refresh_token", login.credential.secret),
        ]
        answer = await request(
            "POST",
            realm,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
            body=urlencode(form).encode(),
            max_bytes=_TOKEN_BYTES,
        )
    else:
        parts = urlsplit(realm)
        form += [("scope", one) for one in scope]
        query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *form])
        headers = {"Authorization": login.credential.basic} if login else {}
        answer = await request("GET", urlunsplit(parts._replace(query=query)), headers=headers, max_bytes=_TOKEN_BYTES)
    if answer.status != 200:
        raise _refused(answer, access, login)
    return _read_token(answer, place)


def _realm(bearer: Challenge, place: Endpoint) -> str:
    """The token server's address. Which host it is on is the registry's affair: Docker Hub's is on another one."""
    realm = bearer.parameters.get("realm", "")
    try:
        parts = urlsplit(realm)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise RegistryFault(
            f"{place.registry}: its token server is not a URL", hint="tell whoever runs the registry: `realm` is wrong"
        )
    if not place.may_name(realm):
        plain = "is plain http" if parts.scheme == "http" else "is a service of this machine's own"
        raise RegistryFault(
            f"{place.registry}: its token server {shortened(parts.hostname)} {plain}, and no login is sent there",
            hint="tell whoever runs the registry: `realm` has to be https, and a server that others reach too",
        )
    return realm


def _refused(answer: Response, access: Access, login: Login | None) -> RegistryFault:
    place, source = access.place, login.source if login else None
    host = urlsplit(answer.url).netloc
    if answer.status == 429:
        return rate_limited(place, answer.headers, source, access.action)
    if answer.status in {400, 401, 403}:
        refused: AccessRefused = access_refused(
            f"{place.registry}/{place.repository}", place, source, spoken(answer.body)
        )
        return refused
    return RegistryFault(
        f"{place.registry}: its token server {host} answers HTTP {answer.status}",
        hint="try again later; if it stays, tell whoever runs the registry",
    )


def _read_token(answer: Response, place: Endpoint) -> tuple[str, float]:
    try:
        document = json.loads(answer.body)
        token, lasts_s = document.get("token") or document.get("access_token"), document.get("expires_in")
    except (ValueError, AttributeError, RecursionError):
        token = lasts_s = None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or len(token) > _LONGEST_TOKEN:
        raise RegistryFault(
            f"{place.registry}: its token server {urlsplit(answer.url).netloc} answers no token",
            hint="is there a proxy with a login page in between?",
        )
    known = isinstance(lasts_s, (int, float)) and not isinstance(lasts_s, bool) and lasts_s > 0
    return token, float(min(lasts_s, _LONGEST_S)) if known else _TOKEN_S
