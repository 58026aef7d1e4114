"""Several coroutines awaited at once, none of which goes on when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


async def together(work: Iterable[Awaitable[_T]], at_once: int | None = None) -> list[_T]:
    """Await all and give their results in order. at_once: how many may be under way, any number where left out.

    Raises:
        What the first of them raises; the others are cancelled, and have ended by then.
    """
    slots = asyncio.Semaphore(at_once) if at_once is not None else None

    async def one(each: Awaitable[_T]) -> _T:
        if slots is None:
            return await each
        async with slots:
            return await each

    tasks = [asyncio.ensure_future(one(each)) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
