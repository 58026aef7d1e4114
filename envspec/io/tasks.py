"""Event loops, task groups and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")


async def gather_or_cancel(work: Iterable[Awaitable[_T]], at_once: int | None = None) -> list[_T]:
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


T = TypeVar("T")
#: How long the loop may take to notice a Ctrl-C, in seconds: it computes, and may go on so for long.
_NOTICED_S = 1.0


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`; on Ctrl-C `work` is cancelled by its loop and cleans up, and then KeyboardInterrupt is raised.

    Python 3.10 raises KeyboardInterrupt in the middle of whatever runs: programs and connections are left open. Later
    ones cancel from within the signal's handler, also in the middle of what the loop does: a future that was just about
    to get its result is cancelled between the look and the step, and the loop complains of it on stderr.

    If the loop does not come to it within a second, KeyboardInterrupt is raised there after all: something computes,
    such as a parser on what somebody made to take long.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    interrupted = False

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        main = threading.get_ident()
        waiting: list[threading.Timer] = []

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            while waiting:
                waiting.pop().cancel()
            task.cancel()

        def hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signal module's signature)
            if waiting:
                raise KeyboardInterrupt
            waiting.append(threading.Timer(_NOTICED_S, signal.pthread_kill, (main, signal.SIGINT)))
            waiting[0].daemon = True
            waiting[0].start()
            loop.call_soon_threadsafe(interrupt)

        before = signal.signal(signal.SIGINT, hear)
        try:
            return await task
        finally:
            while waiting:
                waiting.pop().cancel()
            signal.signal(signal.SIGINT, before)

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise


async def run_in_thread(work: Callable[..., T], *arguments: object) -> T:
    """What `work` gives, called in a thread that nothing waits for once this is cancelled.

    For what only computes, perhaps for long: `asyncio.to_thread`'s threads keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]  # (there is a value where there is no error)

    def call() -> None:
        value, error = None, None
        try:
            value = work(*arguments)
        except BaseException as fault:
            error = fault
        # The loop is closed where the process ends meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, name="envspec reader", daemon=True).start()
    return await done
