"""Which of two conda versions is the newer: `1.1.1w` and `2025b` are no versions of PEP 440.

By the rules of conda's `VersionOrder`; rattler has them as well, and costs more to import than a diff. Tests hold what
is here against rattler's.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Final, TypeAlias

#: A number, or letters; letters come before any number, but for `post`, and `dev` before other letters.
_Atom: TypeAlias = "tuple[int, int, str]"
_ZERO: Final = (2, 0, "")
_WORDS: Final[dict[str, _Atom]] = {"dev": (0, 0, ""), "post": (3, 0, "")}


def compare(one: str, other: str) -> int:
    """Below zero where `one` is older, above where it is newer, zero where they are the same (1.0 and 1.0.0)."""
    for left, right in zip(_parts(one), _parts(other), strict=True):
        for first, second in zip_longest(left, right, fillvalue=()):
            for a, b in zip_longest(first, second, fillvalue=_ZERO):
                if a != b:
                    return -1 if a < b else 1
    return 0


def _parts(version: str) -> tuple[list[tuple[_Atom, ...]], ...]:
    """Epoch, version and local version, each as its components."""
    epoch, _, rest = version.lower().rpartition("!")
    public, _, local = rest.partition("+")
    return _components(epoch), _components(public), _components(local)


def _components(text: str) -> list[tuple[_Atom, ...]]:
    return [_atoms(component) for component in re.split(r"[._-]", text)]


def _atoms(component: str) -> tuple[_Atom, ...]:
    """`4a` is 4 and a; `a4` is 0, a and 4: what begins with letters stands below any number."""
    runs = [_WORDS.get(run) or ((2, int(run), "") if run.isdecimal() else (1, 0, run)) for run in _runs(component)]
    return tuple(runs) if component[:1].isdecimal() else (_ZERO, *runs)


def _runs(component: str) -> list[str]:
    return re.findall(r"[0-9]+|[^0-9]+", component)
