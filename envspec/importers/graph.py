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
    queue = list(names)
    while queue:
        name = queue.pop()
        if name in graph and name not in covered:
            covered.add(name)
            queue += graph[name]


def _finished(graph: Graph) -> list[str]:
    """All packages, each behind those that it requires, as far as they do not require each other."""
    found: list[str] = []
    seen: set[str] = set()
    for start in sorted(graph):
        if start in seen:
            continue
        seen.add(start)
        # The packages on the way from the start, each with what it requires, as far as that was not looked at.
        path = [(start, iter(sorted(graph[start])))]
        while path:
            name, rest = path[-1]
            for following in rest:
                if following in graph and following not in seen:
                    seen.add(following)
                    path.append((following, iter(sorted(graph[following]))))
                    break
            else:
                path.pop()
                found.append(name)
    return found
