"""Names of images: `docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04@sha256:...` and docker's short forms of them.

Grammar: distribution's `reference` package, https://github.com/distribution/reference (read 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from envspec.credentials import without_registry_login
from envspec.errors import UsageError
from envspec.io.http_settings import is_loopback, leads_inward

DOCKER_HUB: Final = "docker.io"
#: Docker Hub is named docker.io and answers here.
_DOCKER_HUB_HOST: Final = "registry-1.docker.io"
_DOCKER_HUB_NAMES: Final = frozenset({DOCKER_HUB, "index.docker.io", _DOCKER_HUB_HOST})
_LABEL: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_LONGEST_NAME: Final = 255


class BadReference(UsageError):
    """Not the name of an image."""

    def __init__(self, text: str, why: str, hint: str = "the form is registry/repository:tag@sha256:digest") -> None:
        super().__init__(f"{without_registry_login(text)!r} is not the name of an image: {why}", hint=hint)


class Action(Enum):
    """What is done with an image at its registry, in the words of a token's scope."""

    PULL = "pull"
    PUSH = "pull,push"


@dataclass(frozen=True, slots=True)
class Reference:
    """One image's name, with every part that a short form leaves out.

    registry: host and port, `docker.io` for Docker Hub. repository: `nvidia/cuda`, `library/ubuntu`.
    tag: None when the name has none. digest: `sha256:` (or `sha512:`) and lower-case hex.
    scheme: `https` or `http` where the name says it, empty where it doesn't.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    scheme: str = ""

    @property
    def name(self) -> str:
        """Registry and repository, as a lock names the image."""
        return f"{self.registry}/{self.repository}"

    @property
    def asked(self) -> str:
        """What the registry is asked for: the digest if there is one, else the tag, else `latest` as docker does it."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        scheme = f"{self.scheme}://" if self.scheme else ""
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{scheme}{self.name}{tag}{digest}"

    def at(self, digest: str) -> Reference:
        """The same image by digest."""
        if not is_digest(digest):
            raise BadReference(f"{self.name}@{digest}", "its digest is not sha256: and 64 lower-case hex digits")
        return replace(self, digest=digest)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a reference is asked for: the registry itself or the mirror that stands in for it.

    registry: the key of its credentials. base: `https://host:port/v2`. repository: with the mirror's prefix.
    """

    registry: str
    base: str
    repository: str

    @property
    def is_plain(self) -> bool:
        """Whether it is asked without TLS."""
        return self.base.startswith("http://")

    def may_name(self, url: str) -> bool:
        """Whether the registry may send blobs, or its login, to another address that it names.

        Plain http is for the host of a registry that is asked in plain http itself, at whatever port: who wrote
        `http://` trusts the way to that host. Nobody sends us to this machine's own services but one that is here.
        """
        parts = urlsplit(url)
        host, other = urlsplit(self.base).hostname or "", parts.hostname or ""
        if leads_inward(host, other):
            return False
        same = other == host or (is_loopback(host) and is_loopback(other))
        return parts.scheme == "https" or (parts.scheme == "http" and self.is_plain and same)


def parse(text: str) -> Reference:
    """Read an image's name in full or in docker's short form (`ubuntu` is `docker.io/library/ubuntu`).

    Raises:
        BadReference: with what is wrong.
    """
    scheme, rest = _split_scheme(text)
    first, slash, _ = rest.partition("/")
    named, at, digest = rest.rpartition("@") if "@" in rest else (rest, "", "")
    if (slash and "@" in first) or (is_digest(digest) and "@" in named and not is_digest(named.rpartition("@")[2])):
        raise BadReference(text, "a login stood before its host", "log in with `docker login HOST`, and name the image")
    if at and ("@" in named or not is_digest(digest)):
        raise BadReference(
            text,
            "what follows `@` is not sha256: and 64 lower-case hex digits",
            "a login does not belong into a name: `docker login HOST`",
        )
    rest = named
    path, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        path, tag, colon = rest, "", ""
    if colon and not _TAG.fullmatch(tag):
        raise BadReference(text, f"{tag!r} is not a tag", "a tag has letters, digits, `_`, `.` and `-`, at most 128")
    registry, repository = _split_registry(path)
    if not _REGISTRY.fullmatch(registry):
        raise BadReference(text, f"{registry!r} is not a registry's host and port")
    if not _REPOSITORY.fullmatch(repository):
        lower = "; repositories are lower case" if repository != repository.lower() else ""
        raise BadReference(text, f"{repository!r} is not a repository{lower}")
    if len(registry) + 1 + len(repository) > _LONGEST_NAME:
        raise BadReference(text, f"it is longer than {_LONGEST_NAME} characters")
    return Reference(registry, repository, tag or None, digest or None, scheme)


def endpoint_of(reference: Reference, mirrors: Mapping[str, str] | None = None) -> Endpoint:
    """Where to ask for `reference`.

    mirrors: `[registry.mirrors]`, a registry (or a registry and the first parts of a repository) to what stands in for
    it, which may have a path of its own (`registry.corp/hub-cache`) and may say `http://`. The longest match wins, and
    the original is never asked in its place. Plain http is for loopback, and for what says `http://`.

    Raises:
        BadReference: a mirror that is no registry.
    """
    for prefix in _prefixes(reference.name):
        if stand_in := (mirrors or {}).get(prefix):
            scheme, endpoint = _split_scheme(stand_in)
            registry, _, path = endpoint.rstrip("/").partition("/")
            below = reference.name[len(prefix) :].strip("/")
            repository = "/".join(part for part in (path, below) if part)
            if not _REGISTRY.fullmatch(registry) or not _REPOSITORY.fullmatch(repository):
                raise BadReference(
                    stand_in,
                    f"the mirror of {prefix} has to be a registry",
                    '[registry.mirrors] "docker.io" = "host:port"',
                )
            return _endpoint(registry, repository, scheme)
    return _endpoint(reference.registry, reference.repository, reference.scheme)


def is_digest(value: object) -> bool:
    """Whether `value` is a digest of an algorithm that the image specification registers, in its canonical form."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _endpoint(registry: str, repository: str, scheme: str) -> Endpoint:
    host = _DOCKER_HUB_HOST if registry in _DOCKER_HUB_NAMES else registry
    name = host if host.endswith("]") else re.sub(r":\d+$", "", host)
    return Endpoint(registry, f"{scheme or ('http' if is_loopback(name) else 'https')}://{host}/v2", repository)


def _prefixes(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _split_scheme(text: str) -> tuple[str, str]:
    for scheme in ("http", "https"):
        if text.startswith(f"{scheme}://"):
            return scheme, text[len(scheme) + 3 :]
    return "", text


def _split_registry(path: str) -> tuple[str, str]:
    """Docker's rule: the first part is a registry if it has a dot, a colon or a capital, or is `localhost`."""
    first, slash, rest = path.partition("/")
    if not slash or not (re.search(r"[.:\[A-Z]", first) or first == "localhost"):
        first, rest = DOCKER_HUB, path
    if first in _DOCKER_HUB_NAMES:
        return DOCKER_HUB, rest if "/" in rest else f"library/{rest}"
    return first, rest
