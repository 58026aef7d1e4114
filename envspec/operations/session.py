"""Registry and engine clients of one command, opened on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from envspec.context import SILENT, Context, Step

if TYPE_CHECKING:
    from envspec.engine.client import Engine
    from envspec.io.http_types import Timeouts
    from envspec.registry.client import Registry


class Session(AsyncExitStack):
    """The clients of one command; leaving it closes them.

    timeouts: instead of the context's, for what a command does not depend on: then retries are not reported.
    """

    def __init__(self, context: Context, timeouts: Timeouts | None = None) -> None:
        super().__init__()
        self.context = context
        self._timeouts = timeouts or context.timeouts
        self._notice = context.reporter.warning if timeouts is None else SILENT.warning
        self._registry: Registry | None = None
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()

    async def registry(self) -> Registry:
        """A client of every registry."""
        async with self._opening:
            if self._registry is None:
                from envspec.io.http import open_http
                from envspec.registry.auth import Keychain
                from envspec.registry.client import Registry

                context = self.context
                keychain = Keychain(context.environ, context.home, context.reporter.warning)
                opening = open_http(
                    context.environ,
                    timeouts=self._timeouts,
                    on_retry=self._notice,
                    per_host=max(8, context.jobs),
                )
                http = await self.enter_async_context(opening)
                self._registry = Registry(http, keychain, context.mirrors)
            return self._registry

    def engine(self) -> Engine:
        """A client of this machine's container engine.

        Raises:
            NoEngine: there is none.
        """
        if self._engine is None:
            from envspec.engine.client import open_engine

            self._engine = self.enter_context(open_engine(self.context.environ, self.context.reporter.warning))
        return self._engine

    def bytes_moved(self, stage: str, total: int) -> Callable[[int], None]:
        """What reports how far a stage is; called with the number of bytes moved. total: 0 if it is unknown."""
        done = 0
        self.context.reporter.progress(Step(stage, 0, 0, 0, total))

        def moved(size: int) -> None:
            nonlocal done
            done += size
            self.context.reporter.progress(Step(stage, 0, 0, done, total))

        return moved
