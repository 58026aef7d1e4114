"""Blobs as registries and image layouts keep them: bytes under their digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob by its digest, as a manifest names it."""

    media_type: str
    digest: str
    size_bytes: int


class Blob(Protocol):
    """Bytes that can be read more than once, from any place on: an upload that broke off goes on from there."""

    @property
    def descriptor(self) -> Descriptor: ...

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Its bytes from `start` on, in pieces of at most a few MiB."""
        ...
