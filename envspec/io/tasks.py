"""Event loops, task groups and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
#: How long the loop may take to notice a Ctrl-C while it computes, in seconds.
_NOTICED_S = 1.0


async def gather_or_cancel(work: Iterable[Awaitable[T]], limit: int | None = None) -> list[T]:
    """The results of all, in order. limit: how many run at once, by default all.

    Raises:
        The first error; the others are cancelled and have ended by then.
    """
    slots = asyncio.Semaphore(limit) if limit is not None else nullcontext()

    async def one(each: Awaitable[T]) -> T:
        async with slots:
            return await each

    work = list(work)
    tasks = [asyncio.ensure_future(one(each)) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in work:
            # One that was never started would be warned about.
            if asyncio.iscoroutine(each):
                each.close()


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`; on Ctrl-C `work` is cancelled by its loop and cleans up, and then KeyboardInterrupt is raised.

    Python 3.10 raises KeyboardInterrupt in the middle of whatever runs and leaves programs and connections open. Later
    versions cancel from within the signal handler, in the middle of what the loop does: a future that was about to get
    its result is cancelled at the wrong moment, and the loop reports it on stderr.

    Whenever the loop does not react within a second, because something computes, KeyboardInterrupt is raised directly.
    That may be a task that is not cancelled yet, after the loop has cancelled `work`.
    """
    is_in_loop = False
    with suppress(RuntimeError):
        is_in_loop = asyncio.get_running_loop().is_running()
    if is_in_loop:
        return _run_beside_loop(work)
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[T]]] = []
    interrupted, ended = False, threading.Event()

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)
        running.append((asyncio.get_running_loop(), task))
        return await task

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signal module's signature)
        nonlocal interrupted
        # Once `work` has ended, its loop waits for threads, or is closed.
        if interrupted or not running or running[0][1].done():
            raise KeyboardInterrupt
        interrupted = True
        loop, task = running[0]
        loop.call_soon_threadsafe(task.cancel)
        threading.Thread(target=_interrupt_unless_it_reacts, args=(loop, ended), daemon=True).start()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        result = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        ended.set()
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
    return result


def _interrupt_unless_it_reacts(loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
    """Sends SIGINT to the main thread each time that its loop does not react within a second, until `ended`."""
    reacted = threading.Event()
    while not ended.is_set():
        reacted.clear()
        try:
            loop.call_soon_threadsafe(reacted.set)
        except RuntimeError:
            # It is closed.
            return
        if not reacted.wait(_NOTICED_S) and not ended.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ended.wait(_NOTICED_S / 10)


def _run_beside_loop(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in another thread, because this one's loop is running, as in a notebook; this one waits."""
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[T]]] = []

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)
        running.append((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, cancellable())
        try:
            return result.result()
        except KeyboardInterrupt:
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise


async def run_in_thread(work: Callable[..., T], *arguments: object) -> T:
    """The result of `work`, called in a daemon thread that a cancellation abandons.

    For long computations: `asyncio.to_thread`'s threads keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]  # (without an error there is a value)

    def call() -> None:
        value, error = None, None
        try:
            value = work(*arguments)
        except BaseException as fault:
            error = fault
        # The loop is closed if the process ends meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, name="envspec reader", daemon=True).start()
    return await done
