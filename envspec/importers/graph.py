"""Which of a set of packages nobody else in it requires."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def reached(graph: Mapping[str, Collection[str]], start: Iterable[str]) -> set[str]:
    """What `start` requires, directly or not, with itself."""
    found: set[str] = set()
    queue = [name for name in start if name in graph]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += [each for each in graph[name] if each in graph and each not in found]
    return found


def roots(graph: Mapping[str, Collection[str]], known: Iterable[str] = ()) -> list[str]:
    """The fewest packages that require all others, sorted. graph: package -> what it requires.

    known: packages that are required anyway, which are not in the result. Of packages that require each other, the
    first by name stands for all.
    """
    required = {each for name, needs in graph.items() for each in needs if each != name}
    found = [name for name in sorted(graph) if name not in required]
    own = set(known)
    found = [name for name in found if name not in own]
    covered = reached(graph, [*own, *found])
    circular: list[str] = []
    for name in sorted(graph):
        if name not in covered:
            circular.append(name)
            covered |= reached(graph, [name])
    # A circle that a later one requires.
    for name in [*circular]:
        if name in reached(graph, [*own, *found, *(each for each in circular if each != name)]):
            circular.remove(name)
    return sorted([*found, *circular])
