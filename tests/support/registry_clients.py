"""Clients of registries with little patience, and the blob in memory that they push and pull."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from envspec.io.http import open_http
from envspec.io.http_types import Timeouts
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry
from envspec.registry.push import push_blob
from envspec.registry.reference import Reference, parse
from envspec.registry.types import Descriptor
from tests.support.servers.loopback import Asked
from tests.support.servers.registry import Fault, PushRegistry, digest

QUICK = Timeouts(connect_s=1.0, stall_s=0.5, total_s=5.0, backoff_s=0.01, retry_after_s=1.0)
CHUNK = 1024 * 1024
#: Over the size up to which blobs go in one request.
BODY = random.Random(4).randbytes(5 * CHUNK + 17)
REPOSITORY = "team/app"
T = TypeVar("T")


@dataclass(frozen=True)
class Bytes:
    """A blob in memory, in pieces of odd sizes; it counts how far it is read."""

    body: bytes
    claimed: Descriptor | None = None
    starts: list[int] = field(default_factory=list)

    @property
    def descriptor(self) -> Descriptor:
        return self.claimed or Descriptor("application/octet-stream", digest(self.body), len(self.body))

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        self.starts.append(start)
        sizes = random.Random(1)
        while start < len(self.body):
            end = start + sizes.randrange(1, 300_000)
            yield self.body[start:end]
            start = end


def talk(
    held: PushRegistry,
    use: Callable[[Registry, Reference], Awaitable[T]],
    home: Path,
    timeouts: Timeouts = QUICK,
    notices: list[str] | None = None,
) -> T:
    async def run() -> T:
        kept = [] if notices is None else notices
        async with held, open_http({}, timeouts=timeouts, on_retry=kept.append) as http:
            return await use(Registry(http, Keychain({}, home)), parse(f"{held.host}/{REPOSITORY}:v1"))

    return asyncio.run(asyncio.wait_for(run(), 20))


def push(held: PushRegistry, home: Path, body: bytes = BODY, chunk_bytes: int = CHUNK, **options: object) -> None:
    timeouts = options.pop("timeouts", QUICK)
    notices = options.pop("notices", None)
    talk(
        held,
        lambda registry, name: push_blob(registry, name, Bytes(body), chunk_bytes=chunk_bytes, **options),  # type: ignore[arg-type]
        home,
        timeouts,  # type: ignore[arg-type]
        notices,  # type: ignore[arg-type]
    )


def has(held: PushRegistry, body: bytes = BODY) -> bool:
    return held.blobs.get(REPOSITORY, {}).get(digest(body)) == body


def nth(method: str, numbers: set[int], fault: Fault) -> Callable[[Asked], Fault | None]:
    """`fault` for the requests of a method with these numbers."""
    return lambda ask: fault if ask.method == method and ask.number in numbers else None


DESCRIPTOR = Descriptor("application/octet-stream", digest(BODY), len(BODY))


def talk_to(home: Path, use: Callable[[Registry], Awaitable[T]], *registries: PushRegistry) -> T:
    async def run() -> T:
        for held in registries:
            await held.__aenter__()
        try:
            async with open_http({}, timeouts=QUICK) as http:
                return await use(Registry(http, Keychain({}, home)))
        finally:
            for held in registries:
                await held.__aexit__(None, None, None)

    return asyncio.run(asyncio.wait_for(run(), 20))


def holding(body: bytes = BODY, name: str = DESCRIPTOR.digest, **options: Any) -> PushRegistry:
    return PushRegistry(blobs={"a/b": {name: body}}, **options)
