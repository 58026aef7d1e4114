"""Looking into a parsed TOML document whose values nobody has checked yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from envspec.spec.faults import BadValue, KeyPath
from envspec.spec.words import shown

Document = Mapping[str, Any]
Found = tuple[KeyPath, BadValue]
T = TypeVar("T")


def get(data: Document, *path: str) -> Any:
    """The value at `path`; None where there is none."""
    value: Any = data
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def texts(data: Document, *path: str) -> list[tuple[int, str]]:
    """The texts in the list at `path`, each with its position."""
    values = get(data, *path)
    return (
        [(at, value) for at, value in enumerate(values) if isinstance(value, str)] if isinstance(values, list) else []
    )


def tables(data: Document, *path: str) -> list[tuple[int, Document]]:
    """The tables in the list at `path`, each with its position."""
    values = get(data, *path)
    return (
        [(at, value) for at, value in enumerate(values) if isinstance(value, Mapping)]
        if isinstance(values, list)
        else []
    )


def table(data: Document, *path: str) -> Document:
    """The table at `path`; an empty one where there is none."""
    value = get(data, *path)
    return value if isinstance(value, Mapping) else {}


def readable(read: Callable[[str], T], listed: Iterable[tuple[int, str]]) -> Iterator[tuple[int, T]]:
    """Those of `listed` that can be read."""
    for at, text in listed:
        with suppress(BadValue):
            yield at, read(text)


def twice_in(listed: list[tuple[int, str]], path: KeyPath, read: Callable[[str], str]) -> Iterator[Found]:
    """The values of a list that stand in it already, once they are read."""
    seen: dict[str, int] = {}
    for at, value in readable(read, listed):
        first = seen.setdefault(value, at)
        if first != at:
            yield (*path, at), BadValue(f"{shown(value)} is listed already, at [{first}]", "remove one of them")
