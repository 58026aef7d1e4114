"""Work in threads that ends soon when nobody waits for it any more: a thread can't be ended from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from envspec.image.content import Entry, Source
from envspec.registry.blob import Blob, Descriptor


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
