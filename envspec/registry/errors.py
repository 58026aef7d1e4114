"""What a registry can answer instead of an image, in words of what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from envspec.credentials import shown
from envspec.errors import NetworkError
from envspec.escaping import blanked
from envspec.io.http_types import Response
from envspec.origins import same_origin
from envspec.registry.reference import DOCKER_HUB, Action, Endpoint


class RegistryError(NetworkError):
    """A registry refused, or answered what can't be used."""


class ImageNotFound(RegistryError):
    """The registry has no such image, or not for this platform."""


class AccessRefused(RegistryError):
    """A login is missing, wrong, or not enough."""


class RateLimited(RegistryError):
    """Too many requests."""


class WrongDigest(RegistryError):
    """The registry's bytes are not what their digest says."""


def refusal(
    answer: Response, endpoint: Endpoint, asked: str, login_source: str | None, action: Action = Action.PULL
) -> RegistryError:
    """The error for an answer other than 200.

    asked: tag or digest. login_source: where the login that was sent comes from, None when none was. action: what it
    was asked for.
    """
    what = f"{endpoint.registry}/{endpoint.repository}{'@' if ':' in asked else ':'}{asked}"
    said = error_text(answer.body)
    if not same_origin(answer.url, endpoint.base):
        # Of another server: its 401 is no question for the registry's login, and its 404 no word of the registry's.
        kind = ImageNotFound if answer.status == 404 else RegistryError
        return kind(
            f"{what}: the registry leads to {shown(answer.url)}, which answers HTTP {answer.status}{_quoted(said)}",
            hint="tell whoever runs the registry; its login is not sent to another server",
        )
    if answer.status == 404:
        return _not_there(what, endpoint, asked, said)
    if answer.status in {401, 403}:
        return access_refused(what, endpoint, login_source, said)
    if answer.status == 429:
        return rate_limited(endpoint, answer.headers, login_source, action)
    return RegistryError(
        f"{what}: the registry answers HTTP {answer.status}{_quoted(said)}",
        hint="try again later; if it stays, tell whoever runs the registry"
        if answer.status >= 500
        else f"is {endpoint.base} a registry? It has to speak the OCI distribution API",
    )


def access_refused(what: str, endpoint: Endpoint, login_source: str | None, said: str = "") -> AccessRefused:
    """No login, or one that the registry doesn't accept."""
    if login_source is None:
        hidden = (
            " (Docker Hub says the same of a repository that isn't there)" if endpoint.registry == DOCKER_HUB else ""
        )
        return AccessRefused(
            f"{what}: the registry wants a login and none was found{hidden}{_quoted(said)}",
            hint=f"check the name, then `{login_command(endpoint.registry)}`",
        )
    return AccessRefused(
        f"{what}: the registry refuses the login from {login_source}{_quoted(said)}",
        hint=f"ask for access to {endpoint.repository}, or log in again: `{login_command(endpoint.registry)}`",
    )


def login_command(registry: str) -> str:
    """What to type for a login."""
    return "docker login" if registry == DOCKER_HUB else f"docker login {registry}"


def rate_limited(
    endpoint: Endpoint, headers: Mapping[str, str], login_source: str | None, action: Action
) -> RateLimited:
    """HTTP 429, with what the registry says of its limit (`ratelimit-limit: 100;w=21600` at Docker Hub)."""
    limit = re.fullmatch(r"(\d{1,9});w=(\d{1,9})", headers.get("ratelimit-limit", ""))
    allowed = f" ({limit[1]} in {int(limit[2]) / 3600:g} h)" if limit else ""
    after = headers.get("Retry-After", "")
    when = f"in {after} s" if re.fullmatch(r"[0-9]{1,9}", after) else "later"
    way = "" if login_source else f", log in (`{login_command(endpoint.registry)}`)"
    # Mirrors are for reading: nothing is pushed to one.
    instead = {
        Action.PULL: f', or name a mirror: [registry.mirrors] "{endpoint.registry}" = "HOST"',
        Action.PUSH: "; what has come there already is not sent again",
    }
    return RateLimited(
        f"{endpoint.registry}: too many requests{allowed}", hint=f"try again {when}{way}{instead[action]}"
    )


def error_text(body: bytes) -> str:
    """The registry's own words in an error document of the distribution API, at most a line of them."""
    try:
        first = json.loads(body)["errors"][0]
        text = f"{first.get('code', '')}: {first.get('message', '')}".strip(": ")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return shortened(text)


def shortened(text: object, most: int = 200) -> str:
    """What a registry says, as a message may hold it: part of a line, and nothing that steers a terminal."""
    whole = str(text)
    return blanked(whole if len(whole) <= most else f"{whole[:most]}…")


def _quoted(said: str) -> str:
    return f" ({said})" if said else ""


def _not_there(what: str, endpoint: Endpoint, asked: str, said: str) -> ImageNotFound:
    if said.startswith("NAME_UNKNOWN"):
        hint = f"the registry has no repository {endpoint.repository}: check its spelling"
    elif ":" in asked:
        hint = "the registry deleted it, or the mirror never had it; `envspec lock --upgrade` takes a current one"
    elif endpoint.repository.endswith("nvidia/cuda"):
        hint = (
            "check the tag; NVIDIA deletes a release's tags six months after its end of life, "
            "then a newer [cuda] version helps"
        )
    else:
        hint = "check the tag's spelling"
    return ImageNotFound(f"{what}: not there{_quoted(said)}", hint=hint)
