"""What tests of pulls and mirrors share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from envspec.io.http import open_http
from envspec.registry.auth import Keychain
from envspec.registry.client import Registry
from envspec.registry.types import Descriptor
from tests.support.push_registry import PushRegistry, digest
from tests.support.pushing import BODY, QUICK

DESCRIPTOR = Descriptor("application/octet-stream", digest(BODY), len(BODY))
T = TypeVar("T")


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
