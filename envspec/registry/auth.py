"""Tokens and logins of registries.

Sources: docker/cli, `config.json` and the credential helper protocol (docker/docker-credential-helpers);
containers-auth.json(5) for podman's file and its order; RFC 9110 11.6.1 for challenges; distribution's "Token
Authentication" and "OAuth2" for tokens. Read 2026-11.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from envspec.credentials import shown
from envspec.documents import table_of
from envspec.escaping import excerpt
from envspec.io.http_types import Credential, Response
from envspec.io.process import Finished, run
from envspec.registry.errors import RegistryError, access_refused, error_text, rate_limited
from envspec.registry.reference import DOCKER_HUB, Action, Endpoint, prefixes_of
from envspec.verifier.regular import read_regular

#: Docker's key for Docker Hub, from its first API, in files and helpers.
HUB_KEY: Final = "https://index.docker.io/v1/"
#: A helper may wait for the user to unlock a key store.
_HELPER_S: Final = 60.0
#: The user name of an identity token in a helper's output.
_TOKEN_USER: Final = "<token>"  # noqa: S105 (a marker of the protocol, no secret)

_TOKEN_BYTES: Final = 1024 * 1024
#: Servers accept headers of 8 to 64 KiB.
_MAX_TOKEN_CHARACTERS: Final = 64 * 1024
_MAX_TOKEN_S: Final = 24 * 3600
#: The lifetime of a token without `expires_in`.
_TOKEN_S: Final = 60.0
_PART: Final = re.compile(
    r"""(?P<name>[\w-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s,"]+))|(?P<scheme>[\w-]+)"""
)


class LoginKind(Enum):
    PASSWORD = "password"  # noqa: S105 (a kind, no secret)
    IDENTITY_TOKEN = "identity token"  # noqa: S105
    BEARER = "bearer token"


class Login(Struct, frozen=True):
    """source: the file or helper that it comes from."""

    credential: Credential
    kind: LoginKind
    source: str


@dataclass(frozen=True, slots=True)
class Keychain:
    """Finds logins. warn: called with one line for each unusable file or helper; no line contains a secret."""

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    warn: Callable[[str], None] = field(repr=False, default=lambda _: None)
    run: Callable[..., Awaitable[Finished]] = field(repr=False, default=run)
    helper_s: float = _HELPER_S

    async def login(self, registry: str, repository: str = "") -> Login | None:
        """The login for a registry; None if no file and no helper has one.

        registry: `docker.io`, `registry.corp:5000`. repository: podman's logins may be for a part of a registry.
        """
        for path in auth_files(self.environ, self.home):
            config = self._config(path)
            if config and (found := await self._from_config(config, path, registry, repository)):
                return found
        return None

    def _config(self, path: Path) -> Mapping[str, object] | None:
        try:
            document = json.loads(read_regular(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.warn(f"{path} can't be read ({error.strerror}): its logins are not used")
            return None
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            self.warn(f"{path} is not a JSON object: its logins are not used")
            return None
        return document

    async def _from_config(
        self, config: Mapping[str, object], path: Path, registry: str, repository: str
    ) -> Login | None:
        for helper in _helpers(config, registry):
            if found := await self._from_helper(helper, registry, path):
                return found
        entries = {_normal(key): (key, entry) for key, entry in table_of(config, "auths").items()}
        for key in prefixes_of(f"{registry}/{repository}".rstrip("/")):
            if key in entries:
                stored, entry = entries[key]
                try:
                    found = _from_entry(entry, str(path))
                except ValueError:
                    self.warn(f"{path}: the login for {stored} is damaged; repair it with `docker login {registry}`")
                    continue
                if found:
                    return found
        return None

    async def _from_helper(self, helper: str, registry: str, path: Path) -> Login | None:
        """Run `docker-credential-<helper> get`, whose output may contain secrets and is never shown."""
        program = f"docker-credential-{helper}"
        if not re.sub(r"[-_.]", "", helper).isalnum():
            self.warn(f"{path} names an invalid credential helper: {helper!r}")
            return None
        server, advice = registry, ""
        if registry == DOCKER_HUB:
            server = HUB_KEY
        try:
            done = await asyncio.wait_for(
                self.run((program, "get"), environ=self.environ, cwd=self.home, stdin=server), self.helper_s
            )
        except FileNotFoundError:
            why = f", named in {path}, is not installed"
        except asyncio.TimeoutError:
            why = f" did not finish within {self.helper_s:g} s"
        except OSError as error:
            why = f" can't be run ({error.strerror})"
        else:
            if done.status and "credentials not found" in done.stdout + done.stderr:
                return None
            if not done.status and (found := _from_helper_output(done.stdout, program)):
                return found
            why = " printed no valid login"
            if done.status:
                why = f" failed (exit status {done.status})"
                advice = f"; try `echo {server} | {program} get`"
        self.warn(f"{program}{why}: no login is sent to {registry}{advice}")
        return None


def auth_files(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """The files that may have logins, by priority: named by a variable, docker's, podman's."""
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"


def _helpers(config: Mapping[str, object], registry: str) -> Iterator[str]:
    """The helper of this registry, then the default one."""
    by_registry = table_of(config, "credHelpers")
    names = [registry]
    if registry == DOCKER_HUB:
        names += ["index.docker.io", HUB_KEY]
    yield from (by_registry[name] for name in names if isinstance(by_registry.get(name), str))
    store = config.get("credsStore")
    if isinstance(store, str) and store:
        yield store


def _normal(key: str) -> str:
    """`https://host/v1/` and `host` are one key; a repository is kept."""
    bare = (key.partition("://")[2] or key).rstrip("/").removesuffix("/v1").removesuffix("/v2")
    return DOCKER_HUB if bare == "index.docker.io" else bare


def _from_entry(entry: object, source: str) -> Login | None:
    """One entry of `auths`; None for the empty ones that docker writes if a helper has the login.

    Raises:
        ValueError: `auth` is not base64 of user:password.
    """
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if auth := entry.get("auth"):
        # Their errors are ValueErrors.
        decoded = base64.b64decode(str(auth), validate=True).decode("utf-8").rstrip("\0")
        user, colon, password = decoded.partition(":")
        if not colon:
            raise ValueError("no colon")
    if token := entry.get("identitytoken"):
        return Login(Credential(user, str(token)), LoginKind.IDENTITY_TOKEN, source)
    if token := entry.get("registrytoken"):
        return Login(Credential(user, str(token)), LoginKind.BEARER, source)
    if not user or not password:
        return None
    return Login(Credential(user, password), LoginKind.PASSWORD, source)


#: The authentication schemes that a server offers, in lower case -> the parameters: realm, service, scope...
Challenges = Mapping[str, Mapping[str, str]]


def challenges(headers: Iterable[str]) -> Challenges:
    """Parse `WWW-Authenticate` headers, each of which may have several challenges; the first of each scheme counts."""
    found: dict[str, dict[str, str]] = {}
    for header in headers:
        parameters: dict[str, str] = {}
        for part in _PART.finditer(header):
            if part["scheme"]:
                parameters = {}
                found.setdefault(part["scheme"].lower(), parameters)
            else:
                value = part["bare"]
                if part["quoted"] is not None:
                    value = re.sub(r"\\(.)", r"\1", part["quoted"])
                parameters[part["name"].lower()] = value
    return found


def _from_helper_output(output: str, program: str) -> Login | None:
    try:
        response = json.loads(output)
        user, secret = response["Username"], response["Secret"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(user, str) or not isinstance(secret, str) or not secret:
        return None
    kind = LoginKind.IDENTITY_TOKEN if user == _TOKEN_USER else LoginKind.PASSWORD
    return Login(Credential(user, secret), kind, program)


class RepositoryAccess(Struct, frozen=True):
    """An action on a repository. also: other repositories that blobs are mounted from."""

    endpoint: Endpoint
    action: Action = Action.PULL
    also: tuple[str, ...] = ()

    @property
    def repository_url(self) -> str:
        return f"{self.endpoint.base}/{self.endpoint.repository}"

    def scope(self, named_scope: str) -> tuple[str, ...]:
        """The scopes of a token: those in a challenge, and all that will be needed.

        A push begins with reads, for which a registry requires the scope `pull` only; one token is then enough.
        """
        own = f"repository:{self.endpoint.repository}"
        named = named_scope.split() or [f"{own}:{Action.PULL.value}"]
        if self.action is Action.PUSH:
            for at, scope in enumerate(named):
                if scope.startswith(f"{own}:"):
                    named[at] = f"{own}:{self.action.value}"
        mounted = (f"repository:{name}:{Action.PULL.value}" for name in self.also if name != self.endpoint.repository)
        return tuple(dict.fromkeys([*named, *mounted]))


@dataclass(frozen=True, slots=True)
class Authorization:
    """value: of the header. lasts_s: its lifetime in seconds. login_source: None without a login."""

    value: str = field(repr=False)
    lasts_s: float
    login_source: str | None


async def authorize(
    offered: Challenges,
    access: RepositoryAccess,
    login: Login | None,
    request: Callable[..., Awaitable[Response]],
) -> Authorization | None:
    """The authorization for an access; None if no offered scheme is supported.

    Raises:
        AccessRefused: a login is required and there is none, or it is refused.
        RegistryError: the token server fails, or is one that no login may be sent to.
    """
    endpoint, source = access.endpoint, login.source if login else None
    if login is not None and login.kind is LoginKind.BEARER:
        return Authorization(f"Bearer {login.credential.secret}", math.inf, source)
    if (bearer := offered.get("bearer")) is not None:
        token, lasts_s = await _token(bearer, access, login, request)
        return Authorization(f"Bearer {token}", lasts_s, source)
    if "basic" not in offered:
        return None
    if login is None or login.kind is not LoginKind.PASSWORD:
        raise access_refused(f"{endpoint.registry}/{endpoint.repository}", endpoint, None)
    return Authorization(login.credential.basic, math.inf, source)


async def _token(
    bearer: Mapping[str, str],
    access: RepositoryAccess,
    login: Login | None,
    request: Callable[..., Awaitable[Response]],
) -> tuple[str, float]:
    """A token from the token server, and its lifetime in seconds. bearer: the challenge's parameters."""
    endpoint = access.endpoint
    realm = _realm(bearer.get("realm", ""), endpoint)
    service, scope = bearer.get("service"), access.scope(bearer.get("scope", ""))
    form = [("service", service)] if service else []
    if login is not None and login.kind is LoginKind.IDENTITY_TOKEN:
        form += [("scope", " ".join(scope)), ("grant_type", "refresh_token"), ("client_id", "envspec")]
        body = urlencode([*form, ("refresh_token", login.credential.secret)]).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        response = await request("POST", realm, headers=headers, body=body, max_bytes=_TOKEN_BYTES)
    else:
        parts = urlsplit(realm)
        form += [("scope", one) for one in scope]
        query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *form])
        url = urlunsplit(parts._replace(query=query))
        headers = {}
        if login is not None:
            headers["Authorization"] = login.credential.basic
        response = await request("GET", url, headers=headers, max_bytes=_TOKEN_BYTES)
    if response.status != 200:
        raise _refused(response, access, login)
    return _read_token(response, endpoint)


def _realm(realm: str, endpoint: Endpoint) -> str:
    """The token server's URL, which may be on another host, as Docker Hub's is."""
    if why := endpoint.why_not_to(realm):
        raise RegistryError(
            f"{endpoint.registry}: its token server {excerpt(shown(realm))} {why}, and no login is sent there",
            hint="contact the registry's operator: `realm` must be https, and a server that others reach too",
        )
    return realm


def _refused(response: Response, access: RepositoryAccess, login: Login | None) -> RegistryError:
    endpoint, source = access.endpoint, login.source if login else None
    host = urlsplit(response.url).netloc
    if response.status == 429:
        return rate_limited(endpoint, response, source, access.action)
    if response.status in {400, 401, 403}:
        return access_refused(f"{endpoint.registry}/{endpoint.repository}", endpoint, source, error_text(response.body))
    return RegistryError(
        f"{endpoint.registry}: its token server {host} answers HTTP {response.status}",
        hint="try again later; if it persists, contact the registry's operator",
    )


def _read_token(response: Response, endpoint: Endpoint) -> tuple[str, float]:
    try:
        document = json.loads(response.body)
        token, lasts_s = document.get("token") or document.get("access_token"), document.get("expires_in")
    except (ValueError, AttributeError, RecursionError):
        token = lasts_s = None
    is_text = isinstance(token, str) and token.isascii() and token.isprintable()
    if not is_text or len(token) > _MAX_TOKEN_CHARACTERS:
        raise RegistryError(
            f"{endpoint.registry}: its token server {urlsplit(response.url).netloc} sends no token",
            hint="check for a proxy with a login page in between",
        )
    if not isinstance(lasts_s, (int, float)) or isinstance(lasts_s, bool) or not lasts_s > 0:
        return token, _TOKEN_S
    return token, float(min(lasts_s, _MAX_TOKEN_S))
