"""Which packages share a layer: decided from names and sizes alone, before any file is fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

#: Packed bytes from which a package gets its own layer: engines fetch layers in parallel, but each costs round trips.
OWN_LAYER_BYTES: Final = 2 << 20
#: Layers that small packages share. An update of one package changes one of them.
BUCKETS: Final = 8


def partition(sizes: Sequence[tuple[str, int | None]], budget: int) -> list[tuple[str, ...]]:
    """Names per layer, at most `budget` layers: big packages alone and first, small ones in buckets.

    Buckets follow from the names alone, so a new package changes one layer. If the budget is too small, the smallest
    of the big packages go into buckets.

    Args:
        sizes: (name, packed bytes), each name once. A package of unknown size counts as big.

    Raises:
        ValueError: a budget below 1, or a duplicate name.
    """
    if len({name for name, _ in sizes}) < len(sizes):
        raise ValueError("duplicate name")
    if sizes and budget < 1:
        raise ValueError(f"{len(sizes)} packages, but no layer for them")
    # Unknown sizes last, ordered by name: the name is all that stays the same.
    by_size = sorted(sizes, key=lambda each: (each[1] is None, -(each[1] or 0), each[0]))
    big: list[str] = []
    small: set[str] = set()
    for name, size in by_size:
        if size is None or size >= OWN_LAYER_BYTES:
            big.append(name)
        else:
            small.add(name)
    buckets = min(BUCKETS, budget)
    used = len(_buckets(small, buckets)) if len(big) < budget else buckets
    if len(big) > budget - used:
        # Every bucket may be needed now, so each is counted.
        buckets = max(1, min(BUCKETS, budget // 2))
        big, merged = big[: budget - buckets], big[budget - buckets :]
        small.update(merged)
    return [(name,) for name in big] + _buckets(small, buckets)


def _buckets(names: set[str], count: int) -> list[tuple[str, ...]]:
    filled: dict[int, list[str]] = {}
    for name in sorted(names):
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count
        filled.setdefault(number, []).append(name)
    return [tuple(filled[number]) for number in sorted(filled)]
