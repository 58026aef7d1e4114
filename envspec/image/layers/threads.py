"""Hashing in a thread of its own; cancellation of layers and blobs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from envspec.image.layers.types import Entry, LayerSource
from envspec.registry.types import Blob, Descriptor

#: Chunks are handed over at about this size: small enough for the CPU cache, large enough to be worth a thread switch.
CHUNK_BYTES: Final = 256 * 1024
_QUEUED: Final = 8

Consumer = Callable[[bytes], object]


class HashingThread:
    """Calls consumers in another thread, each stream's chunks in order. Leaving the context waits for all of them."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[Consumer, bytes] | None] = queue.Queue(_QUEUED)
        self._thread = threading.Thread(target=self._run, name="envspec-hashing", daemon=True)
        self._streams: list[Stream] = []
        self._error: BaseException | None = None

    def stream(self, consume: Consumer) -> Stream:
        stream = Stream(self, consume)
        self._streams.append(stream)
        return stream

    def submit(self, consume: Consumer, data: bytes) -> None:
        """Queue one chunk. Raises what a consumer has raised."""
        if self._error is not None:
            raise self._error
        self._queue.put((consume, data))

    def __enter__(self) -> HashingThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for stream in self._streams:
                    stream.flush()
        finally:
            self._queue.put(None)
            self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        # Empties the queue even after an error: a producer must not block forever.
        while (job := self._queue.get()) is not None:
            if self._error is None:
                consume, data = job
                try:
                    consume(data)
                except BaseException as error:  # raised again in the producer's thread
                    self._error = error


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


@dataclass(frozen=True, slots=True)
class CancellableSource:
    """A source whose entries end in Cancelled once `cancel` is set; the unfinished layer is then removed."""

    source: LayerSource
    cancel: threading.Event

    @property
    def key(self) -> str:
        return self.source.key

    @property
    def title(self) -> str:
        return self.source.title

    def entries(self) -> Iterator[Entry]:
        for entry in self.source.entries():
            if self.cancel.is_set():
                raise Cancelled
            yield entry


@dataclass(frozen=True, slots=True)
class CancellableBlob:
    """A blob whose bytes end in Cancelled once `cancel` is set."""

    blob: Blob
    cancel: threading.Event

    @property
    def descriptor(self) -> Descriptor:
        return self.blob.descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        for chunk in self.blob.chunks(start):
            if self.cancel.is_set():
                raise Cancelled
            yield chunk
