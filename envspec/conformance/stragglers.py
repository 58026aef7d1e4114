"""Which of several things that should be alike stands out: GPUs, pairs of GPUs, ranks. Pure.

Source of the rule: Megatron-LM#4662, which flags a rank that deviates from the mean by more than one standard deviation
and by more than 10 % of the mean. It needs no constant of a machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

#: Of the mean.
SHARE = 0.1
#: Two values are both one standard deviation away from their mean.
_FEWEST = 3


def can_tell(values: Mapping[str, float]) -> bool:
    """Whether there are enough values for the rule."""
    return len(values) >= _FEWEST


def stragglers(values: Mapping[str, float]) -> dict[str, float]:
    """The names of values that stand out -> their deviation as a fraction of the mean, negative if they are less."""
    if not can_tell(values):
        return {}
    mean, deviation = statistics.fmean(values.values()), statistics.pstdev(values.values())
    found = {}
    for name, value in values.items():
        if abs(value - mean) > max(deviation, SHARE * abs(mean)):
            found[name] = value / mean - 1
    return found


def described(values: Mapping[str, float]) -> list[str]:
    """`GPU 3 (31 % less than the mean)` for each that stands out."""
    texts = []
    for name, share in stragglers(values).items():
        how = "less" if share < 0 else "more"
        texts.append(f"{name} ({100 * abs(share):.0f} % {how} than the mean)")
    return texts
