"""Which card runs which GPU code.

SASS (`sm_80`) runs on cards of its own major compute capability whose minor is equal or higher; Tegra parts and others
don't exchange it. PTX (`compute_120`) is compiled by the driver for any card that is not older. A suffix `a` is for one
capability alone, `f` for one major. Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7)})


def runs_any(architectures: Iterable[str], card: tuple[int, int]) -> bool:
    """Whether a card runs code for one of these. card: its compute capability."""
    return any(_runs(each, card) for each in architectures)


def _runs(architecture: str, card: tuple[int, int]) -> bool:
    found = _ARCHITECTURE.fullmatch(architecture)
    if not found:
        return False
    built, is_sass, suffix = (int(found[2]), int(found[3])), found[1] == "sm", found[4]
    if suffix == "a" or (is_sass and {built, card} & _TEGRA):
        return built == card
    if is_sass or suffix == "f":
        return built[0] == card[0] and built <= card
    return built <= card
