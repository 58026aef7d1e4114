"""The index on loopback, for the time of a lock: a proxy to which every address of the engines leads.

The engines are told an address that exists nowhere, and a proxy: this server. So the addresses stay the same while
the port changes, what an engine keeps of them stays good, and an engine cannot reach anything else.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from envspec.effects.confine import Listen
from envspec.errors import EnvspecError
from envspec.resolve.index.upstream import NotListed
from envspec.resolve.index.view import Bodies, View

if TYPE_CHECKING:
    from aiohttp import web

#: `.invalid` is never given to anybody (RFC 2606), so nothing can answer for it but the proxy.
HOST: Final = "index.envspec.invalid"

# What a view shows is named by its key: it never changes, but for a page on which upload times may yet be filled in.
_HEADERS: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
_PASSING: Final = {"Cache-Control": "no-store"}
# 424 (Failed Dependency, RFC 4918): engines give up at once, where they would try a 502 again and again.
_FAILED: Final = 424
_PAGE_TYPE: Final = "application/vnd.pypi.simple.v1+json"


def simple_url(key: str, bodies: Bodies) -> str:
    """The address of the pages of the view that is served under `key`."""
    return f"http://{HOST}/{key}/{bodies.value}/simple/"


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket on loopback, at a port that the system chooses; who connects waits until something is served there."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield listener


def address_of(listener: socket.socket) -> str:
    """The proxy's address."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def serve(views: Mapping[str, View], listener: socket.socket) -> AsyncIterator[Listen]:
    """Serve each view under its key until the context ends; what is yielded serves them at a further listener.

    A fault of an index ends the engine and is kept in the view: the engine's own words for it are not told.
    """
    from aiohttp import web

    async def page(request: web.Request) -> web.Response:
        view, name = views[request.match_info["key"]], request.match_info["name"]
        try:
            body = await view.page(name, Bodies(request.match_info["bodies"]))
        except NotListed:
            return web.Response(status=404)
        except EnvspecError as error:
            return web.Response(status=_FAILED, text=error.message)
        return web.Response(body=body, content_type=_PAGE_TYPE, headers=_PASSING if name in view.late else _HEADERS)

    async def file(request: web.Request) -> web.Response:
        view, name = views[request.match_info["key"]], request.match_info["name"]
        filename = request.match_info["filename"]
        try:
            if filename.endswith(".metadata"):
                body = await view.metadata(name, filename.removesuffix(".metadata"))
            else:
                body = await view.content(name, filename, Bodies(request.match_info["bodies"]))
        except (NotListed, KeyError):
            return web.Response(status=404)
        except EnvspecError as error:
            return web.Response(status=_FAILED, text=error.message)
        return web.Response(body=body, content_type="application/octet-stream", headers=_HEADERS)

    app = web.Application()
    bodies = "{bodies:" + "|".join(each.value for each in Bodies) + "}"
    app.router.add_get(f"/{{key}}/{bodies}/simple/{{name}}/", page)
    app.router.add_get(f"/{{key}}/{bodies}/files/{{name}}/{{filename}}", file)
    # Engines ask for hundreds of small answers: no log line and no signal handler for each.
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()

    async def listen(each: socket.socket) -> None:
        await web.SockSite(runner, each).start()

    try:
        await listen(listener)
        yield listen
    finally:
        await runner.cleanup()
