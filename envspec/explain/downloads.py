"""Downloads of a platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LARGEST: Final = 5


@dataclass(frozen=True, slots=True)
class Download:
    """Downloads of one platform. size_bytes: of the files with a known size. unsized: names of the others.

    largest: (name, bytes) of the biggest files, biggest first.
    """

    files: int
    size_bytes: int
    unsized: tuple[str, ...]
    largest: tuple[tuple[str, int], ...]


def download_of(sizes: Mapping[str, int | None]) -> Download:
    """sizes: name -> bytes, None if unknown."""
    known = {name: size for name, size in sizes.items() if size is not None}
    largest = sorted(known.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST]
    return Download(
        files=len(sizes),
        size_bytes=sum(known.values()),
        unsized=tuple(sorted(sizes.keys() - known.keys())),
        largest=tuple(largest),
    )
