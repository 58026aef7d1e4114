"""What a build requires, from the indexes as they were at `as_of`: served on loopback.

Names are routed as those of the lock's packages are: a name of one of the spec's own indexes comes from there and from
nowhere else. PyTorch's own indexes are none of these. They have no upload times, so `as_of` could not bound what they
give, and what is built when a spec is locked is built before its torch is resolved: builds that require torch take the
default index's.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass

from envspec.build.order import BuildOrder, BuildWorld
from envspec.effects.confine import Listen
from envspec.effects.default_index import default_index_url
from envspec.effects.http import open_http
from envspec.fetch.values import Network
from envspec.fetch.wheel_urls import logins
from envspec.model import DEFAULT_INDEX, Platform, Target
from envspec.resolve import memory
from envspec.resolve.index.pages import Pages
from envspec.resolve.index.rules import Rules, routes_of
from envspec.resolve.index.select import Sdists
from envspec.resolve.index.server import listening, serve, simple_url
from envspec.resolve.index.store import Store
from envspec.resolve.index.upstream import Index, Upstream
from envspec.resolve.index.view import Bodies, View
from envspec.target import wheel_tags


@dataclass(frozen=True, slots=True)
class Needs:
    """url: of the index's pages. proxy: through which it is reached on this machine. view: knows what went wrong.

    listen: serves it at a sandbox's listener as well, where it is reached through `PROXY`.
    """

    url: str
    proxy: str
    view: View
    listen: Listen


@asynccontextmanager
async def serving(order: BuildOrder, on: Target, world: BuildWorld) -> AsyncIterator[Needs]:
    """Serve the index for one build. on: where the build runs."""
    index = Index(DEFAULT_INDEX, default_index_url(world.environ))
    # A build that asked for a release without a wheel would need a build itself.
    rules = Rules(order.as_of, tuple(wheel_tags(on)), index, routes_of(order.indexes), others=Sdists.NONE)
    parts: list[object] = ["build", order.as_of.isoformat(), index.key, on.platform.value, on.python.version]
    parts += [on.glibc, on.macos]
    parts += [[route.pattern, route.index.name, route.index.key, route.index.dated] for route in rules.routes]
    key = memory.key_of(parts)[:20]
    known = logins((each.url for each in order.indexes), world.environ)
    async with AsyncExitStack() as stack:
        upstream = Upstream(stack.enter_context(closing(Store(world.cache))), world.now, environ=world.environ)
        if world.network is Network.USE:
            upstream.http = await stack.enter_async_context(
                open_http(world.environ, credentials=known, notice=world.warn)
            )
        stack.push_async_callback(upstream.close)
        view = View(upstream, Pages(upstream, {key: rules}), rules, key)
        entry = stack.enter_context(listening())
        listen = await stack.enter_async_context(serve({key: view}, entry))
        yield Needs(simple_url(key, Bodies.WHOLE), entry.proxy, view, listen)


def this_target(order: BuildOrder, here: Platform) -> Target:
    """This machine as what a build on it may ask for: the order's own target where it is of that platform."""
    if order.target.platform is here:
        return order.target
    python = order.target.python
    if here.is_linux:
        return Target(here, python, glibc=(2, 28))
    if here is Platform.OSX_ARM64:
        major, minor, *_ = (int(part) for part in f"{platform.mac_ver()[0]}.0".split("."))
        return Target(here, python, macos=(major, minor))
    return Target(here, python)
