"""Names of images: `docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04@sha256:...` and docker's short forms of them.

Grammar: distribution's `reference` package, https://github.com/distribution/reference (read 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from envspec.credentials import without_registry_login
from envspec.errors import UsageError
from envspec.io.http_settings import is_loopback, leads_inward
from envspec.structs import replace

DOCKER_HUB: Final = "docker.io"
#: The host of docker.io.
_DOCKER_HUB_HOST: Final = "registry-1.docker.io"
_DOCKER_HUB_NAMES: Final = frozenset({DOCKER_HUB, "index.docker.io", _DOCKER_HUB_HOST})
_LABEL: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_LONGEST_NAME: Final = 255


class BadReference(UsageError, code="bad-image-name"):
    def __init__(self, text: str, why: str, hint: str = "the form is registry/repository:tag@sha256:digest") -> None:
        super().__init__(f"{without_registry_login(text)!r} is not the name of an image: {why}", hint=hint)


class Action(Enum):
    PULL = "pull"
    PUSH = "pull,push"


class Reference(Struct, frozen=True):
    """The full name of an image.

    registry: host and port, `docker.io` for Docker Hub. repository: `nvidia/cuda`, `library/ubuntu`.
    digest: `sha256:` (or `sha512:`) and lower-case hex.
    scheme: `https`, `http` or empty.
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
    def tag_or_digest(self) -> str:
        """The digest if there is one, else the tag, else `latest` like docker."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        text = self.name
        if self.scheme:
            text = f"{self.scheme}://{text}"
        if self.tag:
            text += f":{self.tag}"
        if self.digest:
            text += f"@{self.digest}"
        return text

    def at(self, digest: str) -> Reference:
        """The same image by digest."""
        if not is_digest(digest):
            raise BadReference(f"{self.name}@{digest}", "its digest is not sha256: and 64 lower-case hex digits")
        return replace(self, digest=digest)


class Endpoint(Struct, frozen=True):
    """The registry of a reference, or its mirror.

    registry: the key of its credentials. base: `https://host:port/v2`. repository: with the mirror's prefix.
    """

    registry: str
    base: str
    repository: str

    @property
    def is_plain(self) -> bool:
        return self.base.startswith("http://")

    @property
    def image_name(self) -> str:
        """The repository as engines name it: their logins and mirrors of Docker Hub are those of `docker.io`."""
        host = urlsplit(self.base).netloc
        return f"{DOCKER_HUB if host == _DOCKER_HUB_HOST else host}/{self.repository}"

    def why_not_to(self, url: str) -> str | None:
        """Why neither blobs nor the login may be sent to another URL that the registry names; None if they may.

        Plain http only to the host of a plain http registry, at any port: the user trusts the way to that host. This
        machine's own services only if the registry is on this machine.
        """
        try:
            parts = urlsplit(url)
            host, other = urlsplit(self.base).hostname or "", parts.hostname
        except ValueError:
            return "is not an http(s) URL"
        if parts.scheme not in {"http", "https"} or not other or "@" in parts.netloc:
            return "is not an http(s) URL"
        same = other == host or (is_loopback(host) and is_loopback(other))
        if parts.scheme == "http" and not (self.is_plain and same):
            return "is plain http"
        return "is a service of this machine's own" if leads_inward(host, other) else None


def parse(text: str) -> Reference:
    """Read an image's name in full or in docker's short form (`ubuntu` is `docker.io/library/ubuntu`).

    Raises:
        BadReference: with what is wrong.
    """
    scheme, rest = _split_scheme(text)
    first, slash, _ = rest.partition("/")
    named, at, digest = rest.rpartition("@")
    if not at:
        named, digest = rest, ""
    if (slash and "@" in first) or (is_digest(digest) and "@" in named and not is_digest(named.rpartition("@")[2])):
        raise BadReference(text, "it contains a login", "log in with `docker login HOST`, and use the name without it")
    if at and ("@" in named or not is_digest(digest)):
        why = "the part after `@` is not sha256: and 64 lower-case hex digits"
        raise BadReference(text, why, "for a login, use `docker login HOST`")
    path, colon, tag = named.rpartition(":")
    if not colon or "/" in tag:
        path, tag, colon = named, "", ""
    if colon and not _TAG.fullmatch(tag):
        raise BadReference(text, f"{tag!r} is not a tag", "a tag has letters, digits, `_`, `.` and `-`, at most 128")
    registry, repository = _split_registry(path)
    if not _REGISTRY.fullmatch(registry):
        raise BadReference(text, f"{registry!r} is not a registry (host and port)")
    if not _REPOSITORY.fullmatch(repository):
        lower = "; repositories are lower case" if repository != repository.lower() else ""
        raise BadReference(text, f"{repository!r} is not a repository{lower}")
    if len(registry) + 1 + len(repository) > _LONGEST_NAME:
        raise BadReference(text, f"it is longer than {_LONGEST_NAME} characters")
    return Reference(registry, repository, tag or None, digest or None, scheme)


def endpoint_of(reference: Reference, mirrors: Mapping[str, str] | None = None) -> Endpoint:
    """The endpoint of `reference`.

    mirrors: `[registry.mirrors]`, a registry (or a registry and the first parts of a repository) -> its mirror, which
    may have a path (`registry.corp/hub-cache`) and start with `http://`. The longest match counts; the original is then
    never used. Plain http is for loopback, and for names with `http://`.

    Raises:
        BadReference: a mirror that is not a registry.
    """
    for prefix in prefixes_of(reference.name):
        if mirror := (mirrors or {}).get(prefix):
            scheme, name = _split_scheme(mirror)
            registry, _, path = name.rstrip("/").partition("/")
            below = reference.name[len(prefix) :].strip("/")
            repository = "/".join(part for part in (path, below) if part)
            if not _REGISTRY.fullmatch(registry) or not _REPOSITORY.fullmatch(repository):
                hint = '[registry.mirrors] "docker.io" = "host:port"'
                raise BadReference(mirror, f"the mirror of {prefix} must be a registry", hint)
            return _endpoint(registry, repository, scheme)
    return _endpoint(reference.registry, reference.repository, reference.scheme)


def is_digest(value: object) -> bool:
    """Whether `value` is a SHA-256 or SHA-512 digest in canonical form."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _endpoint(registry: str, repository: str, scheme: str) -> Endpoint:
    host = registry
    if registry in _DOCKER_HUB_NAMES:
        host = _DOCKER_HUB_HOST
    name = host if host.endswith("]") else re.sub(r":\d+$", "", host)
    if not scheme:
        scheme = "http" if is_loopback(name) else "https"
    return Endpoint(registry, f"{scheme}://{host}/v2", repository)


def prefixes_of(name: str) -> list[str]:
    """The name and the first parts of it, the longest first."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _split_scheme(text: str) -> tuple[str, str]:
    scheme, separator, rest = text.partition("://")
    if separator and scheme in {"http", "https"}:
        return scheme, rest
    return "", text


def _split_registry(path: str) -> tuple[str, str]:
    """Docker's rule: the first part is a registry if it has a dot, colon or capital, or is `localhost`."""
    first, slash, rest = path.partition("/")
    if not slash or not (re.search(r"[.:\[A-Z]", first) or first == "localhost"):
        first, rest = DOCKER_HUB, path
    if first not in _DOCKER_HUB_NAMES:
        return first, rest
    if "/" not in rest:
        rest = f"library/{rest}"
    return DOCKER_HUB, rest
