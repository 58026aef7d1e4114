"""One way to run a coroutine to its end, so that Ctrl-C ends it the same way on every Python."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`; on Ctrl-C `work` is cancelled by its loop and cleans up, and then KeyboardInterrupt is raised.

    Python 3.10 raises KeyboardInterrupt in the middle of whatever runs: programs and connections are left open. Later
    ones cancel from within the signal's handler, also in the middle of what the loop does: a future that was just about
    to get its result is cancelled between the look and the step, and the loop complains of it on stderr.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    interrupted = False

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
        return await task

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
