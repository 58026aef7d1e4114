"""Hashing in a thread of its own; cancellation of layers and blobs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
#: Chunks are handed over at about this size: small enough for the CPU cache, large enough to be worth a thread switch.
CHUNK_BYTES: Final = 256 * 1024
_QUEUED: Final = 8


class HashingThread:
    """Calls a consumer in another thread with what is put, in order. Leaving the context waits for it."""

    def __init__(self, consume: Callable[[bytes], object]) -> None:
        self._consume = consume
        self._thread = ThreadPoolExecutor(1, "envspec-hashing")
        self._queue: deque[Future[object]] = deque()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def put(self, data: bytes) -> None:
        """Raises what the consumer has raised."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        # join() returns a single bytes object as it is.
        self._queue.append(self._thread.submit(self._consume, b"".join(self._gathered)))
        self._gathered.clear()
        self._gathered_bytes = 0
        if len(self._queue) > _QUEUED:
            self._queue.popleft().result()

    def __enter__(self) -> HashingThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                self._flush()
                for each in self._queue:
                    each.result()


class Cancelled(Exception):
    """The run was cancelled."""


def cancellable(items: Iterable[T], cancel: threading.Event) -> Iterator[T]:
    """Raises Cancelled at the next item once `cancel` is set."""
    for item in items:
        if cancel.is_set():
            raise Cancelled
        yield item
