"""What a registry's answers to a push mean: whether a blob is there, where an upload goes on, why nothing is taken."""

from __future__ import annotations

import re
from urllib.parse import urldefrag, urljoin, urlsplit

from envspec.credentials import shown
from envspec.effects.http_values import Response
from envspec.registry.auth import Access
from envspec.registry.blob import Descriptor
from envspec.registry.client import Registry
from envspec.registry.faults import NotThere, RegistryFault, refusal, spoken
from envspec.registry.tries import passes, refuse


async def is_there(registry: Registry, access: Access, descriptor: Descriptor) -> bool:
    """Whether the registry has a blob in this repository."""
    place = access.place
    answer = await registry.ask(access, "HEAD", f"{place.base}/{place.repository}/blobs/{descriptor.digest}")
    if answer.status in {401, 403} or passes(answer.status):
        refuse(answer, push_refusal(answer, access, descriptor.digest, registry))
    length = answer.headers.get("Content-Length")
    return answer.status == 200 and (length is None or length == str(descriptor.size_bytes))


def next_location(answer: Response, access: Access, current: str | None = None) -> str:
    """Where an upload goes on; `current` where the answer doesn't say.

    It may be on another host, which gets the blob and no login: `Endpoint.may_name` says which.

    Raises:
        RegistryFault: nowhere, or where nothing may be sent.
    """
    place = access.place
    location = answer.headers.get("Location") or current
    if not location:
        raise RegistryFault(
            f"{place.registry}: it begins an upload and doesn't say where",
            hint=f"is {place.base} a registry, or a proxy that takes the `Location` header away?",
        )
    try:
        target = urljoin(answer.url, location)
        parts = urlsplit(target)
        host = parts.hostname or ""
    except ValueError:
        target, host = "", ""
        parts = urlsplit(target)
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc:
        raise RegistryFault(
            f"{place.registry}: it wants an upload at something that is no URL",
            hint="tell whoever runs the registry: its `Location` is wrong",
        )
    if not place.may_name(target):
        plain = "plain http" if parts.scheme == "http" else "a service of this machine's own"
        raise RegistryFault(
            f"{place.registry}: it wants an upload at {shown(target)}, which is {plain}",
            hint="behind a proxy that ends TLS a registry has to be told so: X-Forwarded-Proto, or relative URLs",
        )
    return urldefrag(target).url


def held_bytes(answer: Response) -> int | None:
    """How many bytes the registry has of an upload, from `Range: 0-<last byte>`; None where it doesn't say.

    docker-registry says `0-0` of none as well as of one. No chunk has one byte, so that it means none.
    """
    found = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", answer.headers.get("Range", "").strip())
    if found is None:
        return None
    return int(found[1]) + 1 if int(found[1]) else 0


def push_refusal(answer: Response, access: Access, asked: str, registry: Registry) -> RegistryFault:
    """The error for an answer that takes nothing."""
    place, said = access.place, spoken(answer.body)
    name = f"{place.registry}/{place.repository}"
    if answer.status == 404:
        return NotThere(
            f"{name}: the registry has no such repository{f' ({said})' if said else ''}",
            hint="check its spelling; some registries want a repository to be made before the first push",
        )
    if answer.status == 405:
        return RegistryFault(
            f"{name}: the registry takes nothing (HTTP 405{f', {said}' if said else ''})",
            hint="it is read-only, or a mirror of another one: push to the original",
        )
    if answer.status == 413:
        return RegistryFault(
            f"{name}: {asked} is larger than what is let through (HTTP 413{f', {said}' if said else ''})",
            hint="a proxy in front of the registry has a limit on requests (nginx: client_max_body_size)",
        )
    return refusal(answer, place, asked, registry.login_source(access), access.action)
