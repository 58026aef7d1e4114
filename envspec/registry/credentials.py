"""Logins for registries, from the files and helpers that docker, podman and skopeo share.

Sources: docker/cli, `config.json` and the credential helper protocol (docker/docker-credential-helpers);
containers-auth.json(5) for podman's file and its order. Read 2026-11.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from envspec.effects.http_values import Credential
from envspec.effects.process import Finished, run
from envspec.registry.reference import DOCKER_HUB

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
    """`envspec.effects.process.run`."""

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
