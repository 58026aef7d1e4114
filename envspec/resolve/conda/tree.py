"""Reads the tree of reasons that rattler's solver gives: which requirement leads over which packages to what. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"^([│├└─ ]*)(.*?)[.:]?$")
_FIRST: Final = "Cannot solve the request because of: "
# Lines that are neither a requirement nor a package.
_OTHERS: Final = ("The following packages are incompatible", "the constraint ")
_ALONE: Final = "No candidates were found for "
# What stands behind a requirement or a package, and the verb from the package to the next requirement.
_BEHIND: Final = (
    (" would require", "needs"),
    (" would constrain", "allows only"),
    (", which can be installed with any of the following options", ""),
    (" can be installed with any of the following options", ""),
    (", which cannot be installed because there are no viable options", ""),
    (" cannot be installed because there are no viable options", ""),
    (", for which no candidates were found", ""),
    (", which conflicts with any installable versions previously reported", ""),
    (", which conflicts with the versions reported above", ""),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A package that was tried, and its requirement that led further. verb: `needs` or `allows only`."""

    package: str
    verb: str
    requirement: str


@dataclass(frozen=True, slots=True)
class Chain:
    """One way into the dead end. root: the requirement that the spec has. steps: from its package on; may be empty."""

    root: str
    steps: tuple[Step, ...] = ()

    @property
    def last(self) -> str:
        """The requirement that the way ends at."""
        return self.steps[-1].requirement if self.steps else self.root


def chains(told: str) -> list[Chain]:
    """Every way from a root of the tree to a leaf, in the order of the tree; none where the text is no such tree."""
    nodes = list(_nodes(told))
    found: dict[Chain, None] = {}
    path: list[tuple[int, str, str]] = []
    for place, (depth, text, verb) in enumerate(nodes):
        while path and path[-1][0] >= depth:
            path.pop()
        path.append((depth, text, verb))
        if place + 1 == len(nodes) or nodes[place + 1][0] <= depth:
            found[_chain(path)] = None
    return list(found)


def _chain(path: list[tuple[int, str, str]]) -> Chain:
    """A path alternates: requirement, package, requirement, ... A package at its end is one that did not fit."""
    texts = [(text, verb) for _, text, verb in path]
    steps = (
        Step(package, verb, requirement)
        for (package, verb), (requirement, _) in zip(texts[1::2], texts[2::2], strict=False)
    )
    return Chain(texts[0][0], tuple(steps))


def _nodes(told: str) -> Iterator[tuple[int, str, str]]:
    """Depth, text and verb of each line. The requirement on the first line is above all others."""
    for line in told.splitlines():
        found = _LINE.match(line.removeprefix(_FIRST))
        if not found or not found[2] or found[2].startswith(_OTHERS):
            continue
        text = found[2].removeprefix(_ALONE).partition(" is excluded because ")[0]
        verb = ""
        for behind, word in _BEHIND:
            if text.endswith(behind):
                text, verb = text.removesuffix(behind), word
                break
        yield -1 if line.startswith(_FIRST) else len(found[1]), text.removesuffix(" *"), verb
