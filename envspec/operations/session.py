"""What a command about images reaches the world by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from envspec.fetch.types import Step
from envspec.image.options import ImageWorld, Stage

if TYPE_CHECKING:
    from envspec.registry.client import Registry

_D = TypeVar("_D", bound="Doors")


class Doors:
    """HTTP and registries, for the time of one command: opened when they are needed, closed in the end."""

    def __init__(self, world: ImageWorld, jobs: int = 8) -> None:
        self.world = world
        self._jobs = jobs
        self._stack = AsyncExitStack()
        self._registry: Registry | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self: _D) -> _D:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def registry(self) -> Registry:
        """A client for every registry of this run."""
        async with self._opening:
            if self._registry is None:
                from envspec.io.http import open_http
                from envspec.registry.auth import Keychain
                from envspec.registry.client import Registry

                http = await self._stack.enter_async_context(
                    open_http(self.world.environ, on_retry=self.world.warn, per_host=max(8, self._jobs))
                )
                keychain = Keychain(self.world.environ, self.world.home, self.world.warn)
                self._registry = Registry(http, keychain, self.world.mirrors)
            return self._registry

    def counted(self, stage: Stage, total: int) -> Callable[[int], None]:
        """Told of bytes that were moved, reports how far the stage is. total: 0 where it is not known."""
        done = 0
        self.world.report(Step(stage, 0, 0, 0, total))

        def moved(size: int) -> None:
            nonlocal done
            done += size
            self.world.report(Step(stage, 0, 0, done, total))

        return moved
