"""What a small request costs aiohttp and httpx, in CPU time of the client: why the index stands on aiohttp.

    python -m bench.http_clients

httpx is not among envspec's dependencies: install it beside them first.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

_REQUESTS = 2000
_AT_ONCE = 16
_ROUNDS = 5
_BODY = b"x" * 4000


def _serve(place: Any) -> None:
    from aiohttp import web

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=_BODY)

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{number}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        place.send(runner.addresses[0][1])
        await asyncio.sleep(600)

    asyncio.run(run())


async def _timed(get: Callable[[str], Awaitable[object]], root: str) -> float:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with turn:
            await get(f"{root}/{number}")

    await one(0)
    started = time.process_time()
    await asyncio.gather(*(one(number) for number in range(_REQUESTS)))
    return (time.process_time() - started) / _REQUESTS * 1000


async def _aiohttp(root: str) -> float:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_AT_ONCE)) as session:

        async def get(url: str) -> bytes:
            async with session.get(url) as answer:
                return await answer.read()

        return await _timed(get, root)


async def _httpx(root: str) -> float:
    # Not in the locked environment, so not by an import that types are looked for.
    httpx: Any = import_module("httpx")
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=_AT_ONCE)) as client:
        return await _timed(client.get, root)


def main() -> None:
    """Print the median of five interleaved rounds for each client."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    root = f"http://127.0.0.1:{ours.recv()}"
    clients = {"aiohttp": _aiohttp, "httpx": _httpx}
    seen: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(_ROUNDS):
        for name, client in clients.items():
            seen[name].append(asyncio.run(client(root)))
    server.terminate()
    print(f"Python {platform.python_version()}, {_REQUESTS} requests of 4 kB, {_AT_ONCE} at once, on loopback")
    for name, times in seen.items():
        print(f"{name} {version(name)}: {statistics.median(times):.2f} ms of CPU per request")


if __name__ == "__main__":
    main()
