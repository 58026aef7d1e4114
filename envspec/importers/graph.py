"""What packages require, and which of a set nobody else in it requires.

All take time in proportion to the number of requirements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

#: Package -> what it requires; names that are no packages of the graph are ignored.
Graph = Mapping[str, Collection[str]]


def roots(graph: Graph, known: Iterable[str] = ()) -> list[str]:
    """The fewest packages that require all others, sorted. Of packages that require each other, the first by name
    stands for all.

    known: packages that are required anyway, which are not in the result.
    """
    covered: set[str] = set()
    found: list[str] = []
    _cover(graph, known, covered)
    # What requires a package is finished after it, unless the two require each other.
    for name in reversed(_finished(graph)):
        if name not in covered:
            found.append(name)
            _cover(graph, [name], covered)
    return sorted(found)


def _cover(graph: Graph, names: Iterable[str], covered: set[str]) -> None:
    """Add names and all that they require."""
    queue = [name for name in names if name in graph]
    while queue:
        name = queue.pop()
        if name not in covered:
            covered.add(name)
            queue += [each for each in graph[name] if each in graph and each not in covered]


def _finished(graph: Graph) -> list[str]:
    """All packages, each behind those that it requires, as far as they do not require each other."""
    found: list[str] = []
    seen: set[str] = set()
    for start in sorted(graph):
        path = [] if start in seen else [(start, iter(sorted(graph[start])))]
        seen.add(start)
        while path:
            name, rest = path[-1]
            following = next((each for each in rest if each in graph and each not in seen), None)
            if following is None:
                path.pop()
                found.append(name)
            else:
                seen.add(following)
                path.append((following, iter(sorted(graph[following]))))
    return found
