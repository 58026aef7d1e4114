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

Consumer = Callable[[bytes], object]


class HashingThread:
    """Calls consumers in another thread, each stream's chunks in order. Leaving the context waits for all of them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "envspec-hashing")
        self._queue: deque[Future[object]] = deque()
        self._streams: list[Stream] = []

    def stream(self, consume: Consumer) -> Stream:
        self._streams.append(Stream(self, consume))
        return self._streams[-1]

    def submit(self, consume: Consumer, data: bytes) -> None:
        """Queue one chunk. Raises what a consumer has raised."""
        self._queue.append(self._thread.submit(consume, data))
        if len(self._queue) > _QUEUED:
            self._queue.popleft().result()

    def __enter__(self) -> HashingThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                for stream in self._streams:
                    stream.flush()
                for each in self._queue:
                    each.result()


class Stream:
    """Gathers one stream of bytes into chunks for a HashingThread."""

    __slots__ = ("_consume", "_gathered", "_gathered_bytes", "_thread")

    def __init__(self, thread: HashingThread, consume: Consumer) -> None:
        self._thread = thread
        self._consume = consume
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def put(self, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            # join() returns a single bytes object as it is.
            chunk = b"".join(self._gathered)
            self._gathered.clear()
            self._gathered_bytes = 0
            self._thread.submit(self._consume, chunk)


class Cancelled(Exception):
    """The run was cancelled."""


def cancellable(items: Iterable[T], cancel: threading.Event) -> Iterator[T]:
    """Raises Cancelled at the next item once `cancel` is set."""
    for item in items:
        if cancel.is_set():
            raise Cancelled
        yield item
