"""What is made of an answer: the next hop of a redirect, a body in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.credentials import shown
from envspec.effects.http_faults import BadRedirect, TooLarge
from envspec.effects.surroundings import is_loopback

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from yarl import URL


def next_hop(url: URL, location: str | None) -> URL:
    """Where a `Location` leads, without a user name.

    Raises:
        BadRedirect: nowhere, or from https to plain http on another machine.
    """
    try:
        target = url.join(type(url)(location)) if location else None
    except ValueError:
        target = None
    if target is None or target.scheme not in {"http", "https"} or not target.host:
        raise BadRedirect(str(url), "redirects to no http(s) URL", hint="look at the URL with curl -v")
    if url.scheme == "https" and target.scheme == "http" and not is_loopback(target.host):
        raise BadRedirect(
            str(url),
            f"redirects from https to {shown(str(target))}, where anyone on the way can change the answer",
            hint="name the https address of the server that has it",
        )
    return target.with_user(None).with_fragment(None)


async def read_whole(answer: ClientResponse, max_bytes: int) -> bytes:
    """The body in memory; TooLarge as soon as it is known to be."""
    if answer.method != "HEAD" and (answer.content_length or 0) > max_bytes:
        raise TooLarge(str(answer.url), max_bytes)
    if answer.content_length is not None and "Content-Encoding" not in answer.headers:
        return await answer.read()
    chunks, total = [], 0
    async for chunk in answer.content.iter_any():
        total += len(chunk)
        if total > max_bytes:
            raise TooLarge(str(answer.url), max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)
