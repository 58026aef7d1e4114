"""The index on loopback, for the time of a lock: a proxy to which every address of the engines leads.

The engines are told an address that exists nowhere, and a proxy: this server. So the addresses stay the same while
the port changes, what an engine keeps of them stays good, and an engine cannot reach anything else.

Every user of the machine can connect to the port, and so can a page in a browser, by a name that leads to 127.0.0.1.
Only requests with this run's token, for our own address, are answered. Engines get the token in their environment, in
the proxy's URL: other users can read the arguments of a process, but not that.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from envspec.errors import EnvspecError
from envspec.io.confine import Listen
from envspec.resolve.pypi.index.client import NotListed
from envspec.resolve.pypi.index.view import Bodies, View

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

#: `.invalid` is never given to anybody (RFC 2606), so nothing can answer for it but the proxy.
HOST: Final = "index.envspec.invalid"
_USER: Final = "envspec"

# What a view shows is named by its key: it never changes, but for a page on which upload times may yet be filled in.
_HEADERS: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
_PASSING: Final = {"Cache-Control": "no-store"}
# 424 (Failed Dependency, RFC 4918): engines give up at once, where they would try a 502 again and again.
_FAILED: Final = 424
_PAGE_TYPE: Final = "application/vnd.pypi.simple.v1+json"


def simple_url(key: str, bodies: Bodies) -> str:
    """The address of the pages of the view that is served under `key`."""
    return f"http://{HOST}/{key}/{bodies.value}/simple/"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the index is reached on loopback. socket: listens. token: what requests must have, new in each run."""

    socket: socket.socket
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def proxy(self) -> str:
        """The proxy's URL with the token: for environments of child processes alone."""
        return f"http://{_USER}:{self.token}@127.0.0.1:{self.socket.getsockname()[1]}"

    def admits(self, authorization: str) -> bool:
        """Whether a `Proxy-Authorization` header has the token."""
        expected = b"Basic " + base64.b64encode(f"{_USER}:{self.token}".encode())
        return hmac.compare_digest(expected, authorization.encode("utf-8", "surrogateescape"))


@contextmanager
def listening() -> Iterator[Entry]:
    """A socket on loopback, at a port that the system chooses; who connects waits until something is served there."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield Entry(listener)


@asynccontextmanager
async def serve(views: Mapping[str, View], entry: Entry) -> AsyncIterator[Listen]:
    """Serve each view under its key until the context ends; what is yielded serves them at a further listener.

    That one is in a network namespace of its own, where nobody else connects: it needs no token, and the environment of
    a confined build is the same in every run.

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

    bodies = "{bodies:" + "|".join(each.value for each in Bodies) + "}"
    async with AsyncExitStack() as stack:

        async def listen(each: socket.socket, admits: Callable[[str], bool] = lambda _: True) -> None:
            app = web.Application(middlewares=[_admitted(admits)])
            app.router.add_get(f"/{{key}}/{bodies}/simple/{{name}}/", page)
            app.router.add_get(f"/{{key}}/{bodies}/files/{{name}}/{{filename}}", file)
            # Engines ask for hundreds of small answers: no log line and no signal handler for each.
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.SockSite(runner, each).start()

        await listen(entry.socket, entry.admits)
        yield listen


def _admitted(admits: Callable[[str], bool]) -> Middleware:
    """Refuses requests without the token, and those for another address than ours."""
    from aiohttp import web

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not admits(request.headers.get("Proxy-Authorization", "")):
            return web.Response(status=407, headers={"Proxy-Authenticate": 'Basic realm="envspec"'})
        # The whole address, as clients of a proxy send it: what a browser asks of a rebound name has a path alone.
        if not request.raw_path.startswith(f"http://{HOST}/") or request.headers.getall("Host", []) != [HOST]:
            return web.Response(status=404)
        return await handler(request)

    return check
