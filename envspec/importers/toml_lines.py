"""A TOML file with the line of each value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from envspec import documents
from envspec.documents import list_of, table_of
from envspec.importers.types import Import, Source, Unreadable
from envspec.spec.positions import Positions, positions_of


class TomlFile:
    """A TOML file, parsed. shown: its path as messages name it.

    Raises:
        Unreadable: as `Import.read`; it is not TOML.
    """

    def __init__(self, path: Path, imported: Import) -> None:
        self.path = path
        self.shown = imported.shown(path)
        self._text = imported.read(path)
        try:
            self.data: Mapping[str, Any] = documents.parse_toml(self._text)
        except ValueError as error:
            raise Unreadable(f"{self.shown} is not valid TOML: {error}") from None

    @cached_property
    def _positions(self) -> Positions:
        return positions_of(self._text)

    def at(self, *path: str | int) -> Source:
        """Where a value is written, or the table around it."""
        return Source(self.shown, self._positions.line(path) or 0)

    def written(self, *path: str | int) -> str:
        """A value as the file has it; empty if there is none."""
        return self._positions.written(path) or ""

    def table(self, *keys: str) -> Mapping[str, Any]:
        """A table; empty if there is none."""
        return table_of(self.data, *keys)

    def tables(self, key: str) -> Iterator[tuple[Mapping[str, Any], Source]]:
        """The tables of a list at the top, `[[key]]`, with the lines of their headers: without a walk through the text,
        which for a lock takes seconds.
        """
        headers = re.finditer(rf"^\s*\[\[\s*{re.escape(key)}\s*\]\]", self._text, re.MULTILINE)
        line, end = 1, 0
        for value in list_of(self.data, key):
            if header := next(headers, None):
                line += self._text.count("\n", end, header.end())
                end = header.end()
            if isinstance(value, Mapping):
                yield value, Source(self.shown, line if header else 0)


def text_of(value: Any, key: str) -> str:
    """A text in a table; empty if there is none."""
    found = table_of(value).get(key)
    return found if isinstance(found, str) else ""


def items_of(value: Any) -> list[Any]:
    """The items of a list; none of another value."""
    return value if isinstance(value, list) else []


def several_of(value: Any) -> list[Any]:
    """The items of a list, or another value alone."""
    return value if isinstance(value, list) else [value]


def texts_of(value: Any, *keys: str) -> list[str]:
    """The texts in a list within tables, without its other items."""
    return [each for each in list_of(value, *keys) if isinstance(each, str)]
