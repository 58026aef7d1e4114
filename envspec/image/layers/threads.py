"""Hashing in a thread; cancellation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from envspec.image.layers.types import Entry, Source
from envspec.registry.types import Blob, Descriptor

#: Bytes are handed over in pieces of about this size: small enough to stay in a cache, large enough to be worth a turn.
PIECE: Final = 256 * 1024
_WAITING: Final = 8

Take = Callable[[bytes], object]


class Conveyor:
    """Hands bytes to takers in another thread, each taker's in order. Leaving it waits for what is still under way."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[Take, bytes] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="envspec-conveyor", daemon=True)
        self._lanes: list[Lane] = []
        self._fault: BaseException | None = None

    def lane(self, *takers: Take) -> Lane:
        """A way in for one stream of bytes, which all of `takers` get."""
        lane = Lane(self, takers)
        self._lanes.append(lane)
        return lane

    def hand(self, take: Take, data: bytes) -> None:
        """Raises what a taker raised before."""
        if self._fault is not None:
            raise self._fault
        self._queue.put((take, data))

    def __enter__(self) -> Conveyor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for lane in self._lanes:
                    lane.flush()
        finally:
            self._queue.put(None)
            self._thread.join()
        if kind is None and self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        # It takes from the queue to the end, also after a fault: whoever fills it must not wait for ever.
        while (job := self._queue.get()) is not None:
            if self._fault is None:
                take, data = job
                try:
                    take(data)
                except BaseException as fault:  # carried over to the thread that fills the queue
                    self._fault = fault


class Lane:
    """One stream of bytes into a conveyor. Small pieces are gathered first."""

    __slots__ = ("_conveyor", "_gathered", "_gathered_bytes", "_takers")

    def __init__(self, conveyor: Conveyor, takers: tuple[Take, ...]) -> None:
        self._conveyor = conveyor
        self._takers = takers
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def put(self, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            whole = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
            self._gathered.clear()
            self._gathered_bytes = 0
            for take in self._takers:
                self._conveyor.hand(take, whole)


class Stopped(Exception):
    """The run ends."""


@dataclass(frozen=True, slots=True)
class StoppableSource:
    """A source whose entries end in Stopped when the run does: what was made of them so far is then removed."""

    source: Source
    stopping: threading.Event

    @property
    def key(self) -> str:
        """See `Source.key`."""
        return self.source.key

    @property
    def title(self) -> str:
        """See `Source.title`."""
        return self.source.title

    def entries(self) -> Iterator[Entry]:
        """See `Source.entries`."""
        for entry in self.source.entries():
            if self.stopping.is_set():
                raise Stopped
            yield entry


@dataclass(frozen=True, slots=True)
class StoppableBlob:
    """A blob whose bytes end in Stopped when the run does."""

    blob: Blob
    stopping: threading.Event

    @property
    def descriptor(self) -> Descriptor:
        """See `Blob.descriptor`."""
        return self.blob.descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """See `Blob.chunks`."""
        for chunk in self.blob.chunks(start):
            if self.stopping.is_set():
                raise Stopped
            yield chunk
