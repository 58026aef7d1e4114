"""The index on loopback, served during `envspec lock` to resolvers whose proxy it is.

Resolvers get a URL with a host that does not exist, and this server as their proxy. So URLs stay the same while the
port changes, a resolver's cache stays valid, and a resolver cannot reach anything else.

Only requests with this run's token (`envspec.io.loopback`), for our own URL, are answered.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envspec.errors import EnvspecError
from envspec.io.confine import Listen
from envspec.io.loopback import Loopback, run_application
from envspec.resolve.pypi.index.routing import NotListed
from envspec.resolve.pypi.index.view import Bodies, View

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

#: `.invalid` is never assigned (RFC 2606): only the proxy can answer for it.
HOST: Final = "index.envspec.invalid"

# A view's key identifies all that it shows, except a page that may still get upload times.
_HEADERS: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
_VOLATILE: Final = {"Cache-Control": "no-store"}
# 424 (Failed Dependency, RFC 4918): resolvers stop at once; they would repeat a request after a 502.
_FAILED: Final = 424
_PAGE_TYPE: Final = "application/vnd.pypi.simple.v1+json"


def simple_url(key: str, bodies: Bodies) -> str:
    """The URL of the pages of the view that is served under `key`."""
    return f"http://{HOST}/{key}/{bodies.value}/simple/"


@asynccontextmanager
async def serve(views: Mapping[str, View], loopback: Loopback) -> AsyncIterator[Listen]:
    """Serve each view under its key until the context ends; yields a function that serves them at another listener.

    That one is in a network namespace of its own, where nothing else connects: it needs no token, and the environment
    of a confined build is the same in every run. An index's error stops the resolver; the view records it.
    """
    from aiohttp import web

    async def answer(request: web.Request) -> web.StreamResponse:
        view, name = views[request.match_info["key"]], request.match_info["name"]
        bodies, filename = Bodies(request.match_info["bodies"]), request.match_info.get("filename")
        body: bytes | Path
        try:
            if filename is None:
                body = await view.page(name, bodies)
            elif filename.endswith(".metadata"):
                wheel = filename.removesuffix(".metadata")
                body = await view.metadata(name, wheel, bodies)
                await view.consider(name, wheel, bodies)
            else:
                body = await view.content(name, filename, bodies)
        except (NotListed, KeyError):
            return web.Response(status=404)
        except EnvspecError as error:
            return web.Response(status=_FAILED, text=error.message)
        if isinstance(body, Path):
            return web.FileResponse(body)
        content_type = _PAGE_TYPE if filename is None else "application/octet-stream"
        headers = _VOLATILE if view.is_volatile(name, filename) else _HEADERS
        return web.Response(body=body, content_type=content_type, headers=headers)

    bodies = "{bodies:" + "|".join(each.value for each in Bodies) + "}"
    async with AsyncExitStack() as stack:

        async def listen(each: socket.socket, admits: Callable[[str], bool] = lambda _: True) -> None:
            app = web.Application(middlewares=[_checking(admits)])
            app.router.add_get(f"/{{key}}/{bodies}/simple/{{name}}/", answer)
            app.router.add_get(f"/{{key}}/{bodies}/files/{{name}}/{{filename}}", answer)
            await run_application(app, each, stack)

        await listen(loopback.socket, loopback.admits)
        for view in views.values():
            view.served.set()
        yield listen


def _checking(admits: Callable[[str], bool]) -> Middleware:
    """Refuses requests without the token, and those for another URL than ours."""
    from aiohttp import web

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not admits(request.headers.get("Proxy-Authorization", "")):
            return web.Response(status=407, headers={"Proxy-Authenticate": 'Basic realm="envspec"'})
        # The absolute URL, as clients of a proxy send it: a browser's request to a rebound name has a path only.
        if not request.raw_path.startswith(f"http://{HOST}/") or request.headers.getall("Host", []) != [HOST]:
            return web.Response(status=404)
        return await handler(request)

    return check
