"""What is made of an answer: the next hop of a redirect, a body in memory."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from envspec.credentials import shown
from envspec.effects.http_faults import BadRedirect, TooLarge
from envspec.effects.surroundings import is_loopback, leads_inward

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from yarl import URL


def next_hop(url: URL, location: str | None) -> URL:
    """Where a `Location` leads, without a user name.

    Raises:
        BadRedirect: nowhere, from https to plain http on another machine, or from another machine into this one.
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
    if leads_inward(url.host or "", target.host):
        raise BadRedirect(
            str(url),
            f"redirects to {shown(str(target))}, which is a service of this machine's own",
            hint="tell whoever runs the server, or name the address itself if you trust it",
        )
    return target.with_user(None).with_fragment(None)


async def read_whole(answer: ClientResponse, max_bytes: int, longest_s: float = math.inf) -> bytes:
    """The body in memory; TooLarge as soon as it is known to be, a timeout where it still comes after `longest_s`."""
    until = time.monotonic() + longest_s
    if answer.method != "HEAD" and (answer.content_length or 0) > max_bytes:
        raise TooLarge(str(answer.url), max_bytes)
    chunks, total = [], 0
    async for chunk in answer.content.iter_any():
        total += len(chunk)
        if total > max_bytes:
            raise TooLarge(str(answer.url), max_bytes)
        if time.monotonic() > until:
            raise asyncio.TimeoutError
        chunks.append(chunk)
    return b"".join(chunks)
