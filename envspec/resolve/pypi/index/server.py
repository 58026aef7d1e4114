"""The index on loopback, served during `envspec lock` to resolvers whose proxy it is.

Resolvers get a URL with a host that does not exist, and this server as their proxy. So URLs stay the same while the
port changes, a resolver's cache stays valid, and a resolver cannot reach anything else.

Only requests with this run's token (`envspec.io.loopback`), for our own URL, are answered.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from envspec.errors import EnvspecError
from envspec.io.confine import Listen
from envspec.io.http_server import METHODS, NOT_ALLOWED, Answer, Request, serve_requests
from envspec.io.loopback import Loopback
from envspec.names import NAME
from envspec.resolve.pypi.index.routing import NotListed
from envspec.resolve.pypi.index.view import Bodies, View

#: `.invalid` is never assigned (RFC 2606): only the proxy can answer for it.
HOST: Final = "index.envspec.invalid"

# A view's key identifies all that it shows, except a page that may still get upload times.
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_VOLATILE: Final = "no-store"
# 424 (Failed Dependency, RFC 4918): resolvers stop at once; they would repeat a request after a 502.
_FAILED: Final = 424
_PAGE_TYPE: Final = "application/vnd.pypi.simple.v1+json"
_FILE_TYPE: Final = "application/octet-stream"
_ROOT: Final = f"http://{HOST}/"
_BODIES: Final = frozenset(each.value for each in Bodies)


def simple_url(key: str, bodies: Bodies) -> str:
    """The URL of the pages of the view that is served under `key`."""
    return f"http://{HOST}/{key}/{bodies.value}/simple/"


@asynccontextmanager
async def serve(views: Mapping[str, View], loopback: Loopback) -> AsyncIterator[Listen]:
    """Serve each view under its key until the context ends; yields a function that serves them at another listener.

    That one is in a network namespace of its own, where nothing else connects: it needs no token, and the environment
    of a confined build is the same in every run. An index's error stops the resolver; the view records it.
    """
    async with AsyncExitStack() as stack:

        async def listen(each: socket.socket, admits: Callable[[str], bool] = lambda _: True) -> None:
            await stack.enter_async_context(serve_requests(each, partial(_answer, views, admits)))

        await listen(loopback.socket, loopback.admits)
        for view in views.values():
            view.served.set()
        yield listen


def _answer(
    views: Mapping[str, View], admits: Callable[[str], bool], request: Request
) -> Answer | Coroutine[Any, Any, Answer]:
    """Refuses requests without the token, and those for another URL than ours."""
    if not admits(request.header("proxy-authorization")):
        return Answer(407, headers={"Proxy-Authenticate": 'Basic realm="envspec"'})
    if request.method not in METHODS:
        return NOT_ALLOWED
    # The absolute URL, as clients of a proxy send it: a browser's request to a rebound name has a path only.
    if request.target.startswith(_ROOT) and request.header("host") == HOST:
        parts = request.target[len(_ROOT) :].partition("?")[0].split("/")
        if len(parts) == 5:
            return _route(views, *map(unquote, parts))
    return Answer(404)


def _route(
    views: Mapping[str, View], key: str, bodies: str, folder: str, name: str, filename: str
) -> Answer | Coroutine[Any, Any, Answer]:
    is_page = folder == "simple" and not filename
    is_file = folder == "files" and filename
    # The name becomes a part of URLs.
    if key not in views or bodies not in _BODIES or not NAME.fits(name) or not (is_page or is_file):
        return Answer(404)
    return _answer_with(views[key], name, filename, Bodies(bodies))


async def _answer_with(view: View, name: str, filename: str, bodies: Bodies) -> Answer:
    """filename: of a file or of its metadata; empty: the project's page."""
    body: bytes | Path
    try:
        if not filename:
            body = await view.page(name, bodies)
        elif filename.endswith(".metadata"):
            wheel = filename.removesuffix(".metadata")
            body = await view.metadata(name, wheel, bodies)
            await view.consider(name, wheel, bodies)
        else:
            body = await view.content(name, filename, bodies)
    except (NotListed, KeyError):
        return Answer(404)
    except EnvspecError as error:
        return Answer(_FAILED, error.message.encode(), {"Content-Type": "text/plain; charset=utf-8"})
    if isinstance(body, Path):
        return Answer(200, body, {"Content-Type": _FILE_TYPE})
    content_type = _FILE_TYPE if filename else _PAGE_TYPE
    kept = _VOLATILE if view.is_volatile(name, filename or None) else _IMMUTABLE
    return Answer(200, body, {"Content-Type": content_type, "Cache-Control": kept})
