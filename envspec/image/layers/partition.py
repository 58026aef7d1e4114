"""Which packages share a layer: decided from names and sizes alone, before any file is at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

#: What a layer of its own is worth, in bytes packed: engines fetch layers side by side, but each costs round trips.
ALONE: Final = 2 << 20
#: How many layers the small packages share. One changes with each of them, and then the others stay.
BUCKETS: Final = 8


def cut(sizes: Sequence[tuple[str, int | None]], budget: int) -> list[tuple[str, ...]]:
    """Names -> layers, at most `budget` of them: the big ones alone and first, the small ones in buckets.

    sizes: (name, bytes packed), each name once; None where nobody told the size, and then the package gets a layer of
    its own as far as the budget goes. The buckets follow from the names alone, so that a new package changes one layer.
    Where the budget ends, the smallest of the big ones go to the buckets.

    Raises:
        ValueError: no layer at all for something, or a name twice.
    """
    if len({name for name, _ in sizes}) < len(sizes):
        raise ValueError("a name twice")
    if sizes and budget < 1:
        raise ValueError(f"{len(sizes)} packages and no layer for them")
    # What has no size comes after what has one: it is placed by its name, which is all that stays the same of it.
    by_size = sorted(sizes, key=lambda each: (each[1] is None, -(each[1] or 0), each[0]))
    alone = [name for name, size in by_size if size is None or size >= ALONE]
    small = {name for name, size in by_size if size is not None and size < ALONE}
    buckets = min(BUCKETS, budget)
    room = budget - (len(_buckets(small, buckets)) if len(alone) < budget else buckets)
    if len(alone) > room:
        # Every bucket may be needed now, so each is counted.
        buckets = max(1, min(BUCKETS, budget // 2))
        alone, merged = alone[: budget - buckets], alone[budget - buckets :]
        small.update(merged)
    return [(name,) for name in alone] + _buckets(small, buckets)


def _buckets(names: set[str], count: int) -> list[tuple[str, ...]]:
    filled: dict[int, list[str]] = {}
    for name in sorted(names):
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count
        filled.setdefault(number, []).append(name)
    return [tuple(filled[number]) for number in sorted(filled)]
