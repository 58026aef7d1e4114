"""Errors of registries."""

from __future__ import annotations

import json
import re

from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.escaping import excerpt
from envspec.io.http_types import Response
from envspec.origins import same_origin
from envspec.registry.reference import DOCKER_HUB, Action, Endpoint


class RegistryError(NetworkError, code="registry"):
    """A registry refused a request, or sent an unusable response."""


class ImageNotFound(RegistryError, code="image-not-found"):
    """The registry has no such image, or not for this platform."""


class AccessRefused(RegistryError, code="registry-login"):
    """A login is missing, wrong, or not enough."""


class RateLimited(RegistryError, code="rate-limited"):
    """Too many requests."""


class WrongDigest(RegistryError, code="wrong-digest"):
    """The registry's bytes do not have the expected digest."""


def refusal(
    response: Response, endpoint: Endpoint, requested: str, login_source: str | None, action: Action
) -> RegistryError:
    """The error for a refused request. requested: tag or digest. login_source: None if no login was sent."""
    name = f"{endpoint.registry}/{endpoint.repository}"
    what = f"{name}{'@' if ':' in requested else ':'}{requested}"
    text = error_text(response.body)
    if action is Action.PUSH and response.status in {404, 405, 413}:
        return _push_refusal(response.status, name, requested, text)
    if not same_origin(response.url, endpoint.base):
        # Of another server: its 401 is not for the registry's login, and its 404 not the registry's.
        kind = ImageNotFound if response.status == 404 else RegistryError
        status = f"HTTP {response.status}{_quoted(text)}"
        return kind(
            f"{what}: the registry redirects to {shown(response.url)}, which answers {status}",
            hint="contact the registry's operator; its login is not sent to another server",
        )
    if response.status == 404:
        return _not_there(what, endpoint, requested, text)
    if response.status in {401, 403}:
        return access_refused(what, endpoint, login_source, text)
    if response.status == 429:
        return rate_limited(endpoint, response, login_source, action)
    hint = f"check that {endpoint.base} is a registry with the OCI distribution API"
    if response.status >= 500:
        hint = "try again later; if it persists, contact the registry's operator"
    return RegistryError(f"{what}: the registry answers HTTP {response.status}{_quoted(text)}", hint=hint)


def _push_refusal(status: int, name: str, requested: str, text: str) -> RegistryError:
    status_text = f" ({', '.join(filter(None, (f'HTTP {status}', text)))})"
    if status == 404:
        return ImageNotFound(
            f"{name}: the registry has no such repository{_quoted(text)}",
            hint="check its spelling; some registries require that a repository is created before the first push",
        )
    if status == 405:
        return RegistryError(
            f"{name}: the registry accepts no push{status_text}",
            hint="push to the original: this one is read-only, or a mirror",
        )
    return RegistryError(
        f"{name}: {requested} exceeds a limit{status_text}",
        hint="raise the limit on requests of the proxy in front of the registry (nginx: client_max_body_size)",
    )


def access_refused(what: str, endpoint: Endpoint, login_source: str | None, text: str = "") -> AccessRefused:
    """The error for a missing or refused login."""
    if login_source is None:
        hidden = ""
        if endpoint.registry == DOCKER_HUB:
            hidden = " (or the repository does not exist: Docker Hub sends the same response)"
        return AccessRefused(
            f"{what}: the registry requires a login and none was found{hidden}{_quoted(text)}",
            hint=f"check the name, then `{login_command(endpoint.registry)}`",
        )
    return AccessRefused(
        f"{what}: the registry refuses the login from {login_source}{_quoted(text)}",
        hint=f"get access to {endpoint.repository}, or log in again: `{login_command(endpoint.registry)}`",
    )


def login_command(registry: str) -> str:
    return "docker login" if registry == DOCKER_HUB else f"docker login {registry}"


def rate_limited(endpoint: Endpoint, response: Response, login_source: str | None, action: Action) -> RateLimited:
    """The error for HTTP 429, with the registry's limit (`ratelimit-limit: 100;w=21600` at Docker Hub)."""
    headers = response.headers
    message, hint = f"{endpoint.registry}: too many requests", "try again later"
    if limit := re.fullmatch(r"(\d{1,9});w=(\d{1,9})", headers.get("ratelimit-limit", "")):
        message += f" ({limit[1]} in {int(limit[2]) / 3600:g} h)"
    if after := re.fullmatch(r"[0-9]{1,9}", headers.get("Retry-After", "")):
        hint = f"try again in {after[0]} s"
    if not login_source:
        hint += f", log in (`{login_command(endpoint.registry)}`)"
    if action is Action.PUSH:
        # Nothing is pushed to mirrors.
        return RateLimited(message, hint=f"{hint}; finished blobs are not sent again")
    return RateLimited(message, hint=f'{hint}, or name a mirror: [registry.mirrors] "{endpoint.registry}" = "HOST"')


def error_text(body: bytes) -> str:
    """The text of an error document of the distribution API, at most one line."""
    try:
        first = json.loads(body)["errors"][0]
        text = f"{first.get('code', '')}: {first.get('message', '')}".strip(": ")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return excerpt(text)


def _quoted(text: str) -> str:
    return f" ({text})" if text else ""


def _not_there(what: str, endpoint: Endpoint, requested: str, text: str) -> ImageNotFound:
    if text.startswith("NAME_UNKNOWN"):
        hint = f"check the spelling: the registry has no repository {endpoint.repository}"
    elif ":" in requested:
        hint = "run `envspec lock --upgrade` for a current one: the registry deleted it, or the mirror never had it"
    elif endpoint.repository.endswith("nvidia/cuda"):
        hint = (
            "check the tag, or use a newer [cuda] version: NVIDIA deletes a release's tags six months after its "
            "end of life"
        )
    else:
        hint = "check the tag's spelling"
    return ImageNotFound(f"{what}: not found{_quoted(text)}", hint=hint)
