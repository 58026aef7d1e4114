"""Tokens and logins of registries.

Sources: docker/cli, `config.json` and the credential helper protocol (docker/docker-credential-helpers);
containers-auth.json(5) for podman's file and its order. Read 2026-11.

Sources: RFC 9110 11.6.1 for challenges; distribution's "Token Authentication" and "OAuth2" for tokens. Read 2026-11.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from envspec.io.http_types import Credential, Response
from envspec.io.process import Finished, run
from envspec.registry.errors import AccessRefused, RegistryError, access_refused, error_text, rate_limited, shortened
from envspec.registry.reference import DOCKER_HUB, Action, Endpoint

#: Docker's key for Docker Hub, from the time of its first API; helpers are asked for it by this name.
HUB_KEY: Final = "https://index.docker.io/v1/"
#: A helper may open a key store that asks its user for a password.
_HELPER_S: Final = 60.0
#: The user name under which helpers hand out an identity token.
_TOKEN_USER: Final = "<token>"  # noqa: S105 (the protocol's word, no secret)


class LoginKind(Enum):
    """What the secret of a login is."""

    PASSWORD = "password"  # noqa: S105 (a kind, no secret)
    IDENTITY_TOKEN = "identity token"  # noqa: S105
    BEARER = "bearer token"


@dataclass(frozen=True, slots=True)
class Login:
    """A login and where it was found; the secret is in no repr."""

    credential: Credential
    kind: LoginKind
    source: str


class Run(Protocol):
    """`envspec.io.process.run`."""

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdin: str = ""
    ) -> Awaitable[Finished]: ...


@dataclass(frozen=True, slots=True)
class Keychain:
    """Where logins are looked for, and how.

    warn: told, one line each, of files and helpers that can't be used; the search goes on. No line holds a secret.
    """

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    warn: Callable[[str], None] = field(repr=False, default=lambda _: None)
    run: Run = field(repr=False, default=run)
    helper_s: float = _HELPER_S

    async def login(self, registry: str, repository: str = "") -> Login | None:
        """The login for a registry; None when no file and no helper knows one.

        registry: `docker.io`, `registry.corp:5000`. repository: for podman's logins that hold for part of a registry.
        """
        for path in auth_files(self.environ, self.home):
            config = self._config(path)
            if config and (found := await self._from_config(config, path, registry, repository)):
                return found
        return None

    def _config(self, path: Path) -> Mapping[str, object] | None:
        try:
            document = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as fault:
            self.warn(f"{path} can't be read ({fault.strerror}): its logins are not used")
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
        auths = config.get("auths")
        entries = {_normal(key): (key, entry) for key, entry in auths.items()} if isinstance(auths, dict) else {}
        for key in _keys(registry, repository):
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
        """Ask `docker-credential-<helper> get`. Its output may hold secrets and is never shown."""
        program = f"docker-credential-{helper}"
        if not helper.replace("-", "").replace("_", "").replace(".", "").isalnum():
            self.warn(f"{path} names a credential helper that can't be one: {helper!r}")
            return None
        without = f"{registry} is asked without its login"
        server = HUB_KEY if registry == DOCKER_HUB else registry
        try:
            done = await asyncio.wait_for(
                self.run((program, "get"), environ=self.environ, cwd=self.home, stdin=server), self.helper_s
            )
        except FileNotFoundError:
            self.warn(f"{program}, named in {path}, is not installed: {without}")
            return None
        except asyncio.TimeoutError:
            self.warn(f"{program} gave no answer within {self.helper_s:g} s: {without}")
            return None
        except OSError as fault:
            self.warn(f"{program} can't be run ({fault.strerror}): {without}")
            return None
        if done.status != 0 and "credentials not found" in done.stdout + done.stderr:
            return None
        found = _from_helper_output(done, program)
        if found is None:
            self.warn(
                f"{program} failed (exit status {done.status}): {without}; try `echo {server} | {program} get`"
                if done.status
                else f"{program} answered something that is no login: {without}"
            )
        return found


def auth_files(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """The files that may hold logins, the first to be asked first.

    What a variable names goes before what is found by habit, docker's file before podman's.
    """
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"


def _helpers(config: Mapping[str, object], registry: str) -> Iterator[str]:
    """The helper for this registry, then the one for all."""
    by_registry = config.get("credHelpers")
    if isinstance(by_registry, dict):
        names = (registry, "index.docker.io", HUB_KEY) if registry == DOCKER_HUB else (registry,)
        yield from (by_registry[name] for name in names if isinstance(by_registry.get(name), str))
    store = config.get("credsStore")
    if isinstance(store, str) and store:
        yield store


def _normal(key: str) -> str:
    """`https://host/v1/` and `host` are one key; a repository after the host stays."""
    bare = key.partition("://")[2] or key
    bare = bare.rstrip("/")
    for version in ("/v1", "/v2"):
        bare = bare.removesuffix(version)
    return DOCKER_HUB if bare == "index.docker.io" else bare


def _keys(registry: str, repository: str) -> Iterator[str]:
    """The keys under which a login may stand, the most exact first."""
    parts = [registry, *filter(None, repository.split("/"))]
    yield from ("/".join(parts[:end]) for end in range(len(parts), 0, -1))


def _from_entry(entry: object, source: str) -> Login | None:
    """One entry of `auths`; None for the empty ones that docker leaves where a helper has the login.

    Raises:
        ValueError: `auth` is not base64 of user:password.
    """
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    user, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if auth := entry.get("auth"):
        try:
            decoded = base64.b64decode(str(auth), validate=True).decode("utf-8").rstrip("\0")
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError("not base64") from None
        user, colon, password = decoded.partition(":")
        if not colon:
            raise ValueError("no colon")
    if token := entry.get("identitytoken"):
        return Login(Credential(user, str(token)), LoginKind.IDENTITY_TOKEN, source)
    if token := entry.get("registrytoken"):
        return Login(Credential(user, str(token)), LoginKind.BEARER, source)
    return Login(Credential(user, password), LoginKind.PASSWORD, source) if user and password else None


def _from_helper_output(done: Finished, program: str) -> Login | None:
    if done.status != 0:
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(user, str) or not isinstance(secret, str) or not secret:
        return None
    kind = LoginKind.IDENTITY_TOKEN if user == _TOKEN_USER else LoginKind.PASSWORD
    return Login(Credential(user, secret), kind, program)


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
class RepositoryAccess:
    """What is to be done at a registry. also: repositories beside the place's own that blobs are mounted from."""

    endpoint: Endpoint
    action: Action = Action.PULL
    also: tuple[str, ...] = ()

    def scope(self, challenge: Challenge) -> tuple[str, ...]:
        """The scopes to ask a token for: what the registry names, and what else will be needed.

        A push begins with questions, for which a registry names the scope `pull` alone; one token then does for all.
        """
        own = f"repository:{self.endpoint.repository}"
        named = challenge.parameters.get("scope", "").split() or [f"{own}:{Action.PULL.value}"]
        if self.action is Action.PUSH:
            named = [f"{own}:{self.action.value}" if scope.startswith(f"{own}:") else scope for scope in named]
        mounted = (f"repository:{name}:{Action.PULL.value}" for name in self.also if name != self.endpoint.repository)
        return tuple(dict.fromkeys([*named, *mounted]))


@dataclass(frozen=True, slots=True)
class Authorization:
    """An Authorization header's value. lasts_s: seconds that it is good for. login_source: None without a login."""

    value: str = field(repr=False)
    lasts_s: float
    login_source: str | None


async def authorize(
    offered: Iterable[Challenge], access: RepositoryAccess, login: Login | None, request: Request
) -> Authorization | None:
    """What to send so that the registry lets in; None when it offers no way that we know.

    Raises:
        AccessRefused: it wants a login and there is none, or the login is refused.
        RegistryFault: the token server fails, or is one that no login may be sent to.
    """
    by_scheme = {challenge.scheme: challenge for challenge in reversed(list(offered))}
    endpoint, source = access.endpoint, login.source if login else None
    if login is not None and login.kind is LoginKind.BEARER:
        return Authorization(f"Bearer {login.credential.secret}", math.inf, source)
    if bearer := by_scheme.get("bearer"):
        token, lasts_s = await _token(bearer, access, login, request)
        return Authorization(f"Bearer {token}", lasts_s, source)
    if "basic" not in by_scheme:
        return None
    if login is None or login.kind is not LoginKind.PASSWORD:
        raise access_refused(f"{endpoint.registry}/{endpoint.repository}", endpoint, None)
    return Authorization(login.credential.basic, math.inf, source)


async def _token(
    bearer: Challenge, access: RepositoryAccess, login: Login | None, request: Request
) -> tuple[str, float]:
    """Ask the token server for a token, and the seconds that it lasts."""
    endpoint = access.endpoint
    realm = _realm(bearer, endpoint)
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
    return _read_token(answer, endpoint)


def _realm(bearer: Challenge, endpoint: Endpoint) -> str:
    """The token server's address. Which host it is on is the registry's affair: Docker Hub's is on another one."""
    realm = bearer.parameters.get("realm", "")
    try:
        parts = urlsplit(realm)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise RegistryError(
            f"{endpoint.registry}: its token server is not a URL",
            hint="tell whoever runs the registry: `realm` is wrong",
        )
    if not endpoint.may_name(realm):
        plain = "is plain http" if parts.scheme == "http" else "is a service of this machine's own"
        raise RegistryError(
            f"{endpoint.registry}: its token server {shortened(parts.hostname)} {plain}, and no login is sent there",
            hint="tell whoever runs the registry: `realm` has to be https, and a server that others reach too",
        )
    return realm


def _refused(answer: Response, access: RepositoryAccess, login: Login | None) -> RegistryError:
    endpoint, source = access.endpoint, login.source if login else None
    host = urlsplit(answer.url).netloc
    if answer.status == 429:
        return rate_limited(endpoint, answer.headers, source, access.action)
    if answer.status in {400, 401, 403}:
        refused: AccessRefused = access_refused(
            f"{endpoint.registry}/{endpoint.repository}", endpoint, source, error_text(answer.body)
        )
        return refused
    return RegistryError(
        f"{endpoint.registry}: its token server {host} answers HTTP {answer.status}",
        hint="try again later; if it stays, tell whoever runs the registry",
    )


def _read_token(answer: Response, endpoint: Endpoint) -> tuple[str, float]:
    try:
        document = json.loads(answer.body)
        token, lasts_s = document.get("token") or document.get("access_token"), document.get("expires_in")
    except (ValueError, AttributeError, RecursionError):
        token = lasts_s = None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or len(token) > _LONGEST_TOKEN:
        raise RegistryError(
            f"{endpoint.registry}: its token server {urlsplit(answer.url).netloc} answers no token",
            hint="is there a proxy with a login page in between?",
        )
    known = isinstance(lasts_s, (int, float)) and not isinstance(lasts_s, bool) and lasts_s > 0
    return token, float(min(lasts_s, _LONGEST_S)) if known else _TOKEN_S
