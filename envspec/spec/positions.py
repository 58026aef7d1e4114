"""The line of each key; values set in place.

TOML parsers give values without their places. This walks the text of a document that the parser has already
accepted, so it decides nothing about validity: it only has to find where tokens begin and end (TOML 1.0 and 1.1).

By the places of values in the text, not by a document model: tomlkit puts a new key behind the comment that
introduces the next table, and can't set one in a table written as `env.name = ...`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from envspec import documents
from envspec.names import normalised
from envspec.spec.dates import Age, time_text
from envspec.spec.errors import KeyPath

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[^\s.=\[\]\"']+")
_SCALAR = re.compile(r"[^,\]}#\n]*")
# The longest opening first. A multi-line string may end in up to two quotes of its own before the closing three.
_STRINGS = (
    ('"""', re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL)),
    ("'''", re.compile(r"'''.*?'{3,5}", re.DOTALL)),
    ('"', re.compile(r'"(?:[^"\\]|\\.)*"')),
    ("'", re.compile(r"'[^']*'")),
)


class Position(Struct, frozen=True):
    """Where a value is written.

    line: of the key, or of the item, counted from 1.
    start, end: the value's span in the text; a header's own.
    """

    line: int
    start: int
    end: int


class Positions(Struct, frozen=True):
    """The places of one text."""

    text: str
    by_path: Mapping[KeyPath, Position]

    def line(self, path: KeyPath) -> int | None:
        """Line of `path`, or of the nearest table or list around it; None for the document itself."""
        for length in range(len(path), -1, -1):
            position = self.by_path.get(path[:length])
            if position:
                return position.line
        return None

    def below(self, table: KeyPath) -> Positions:
        """The places in a table, by their paths in it."""
        inner = len(table)
        return Positions(self.text, {at[inner:]: each for at, each in self.by_path.items() if at[:inner] == table})

    def written(self, path: KeyPath) -> str | None:
        """The value at `path` as the text has it: `3.10` for a number that reads as 3.1."""
        position = self.by_path.get(path)
        return self.text[position.start : position.end] if position else None


def positions_of(text: str) -> Positions:
    """Find every key and list item of `text`, a valid TOML document."""
    walk = _Walk(text)
    walk.document()
    return Positions(text, walk.positions)


class _Walk:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.positions: dict[KeyPath, Position] = {}
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        #: Lists of tables, and how many tables each has so far.
        self._counts: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        assert found, f"no {pattern.pattern} at {self.at}"  # noqa: S101 - the parser accepted this text
        self.at = found.end()
        return found[0]

    def _position(self, begin: int, start: int) -> Position:
        return Position(bisect_right(self._lines, begin), start, self.at)

    def _header(self) -> KeyPath:
        begin = self.at
        brackets = 2 if self.text.startswith("[[", begin) else 1
        self.at += brackets
        parts = self._key()
        self.at += brackets
        position = self._position(begin, begin)
        path: KeyPath = ()
        for part in parts[:-1]:
            path = self._newest((*path, part))
            self.positions.setdefault(path, position)
        path = (*path, parts[-1])
        if brackets == 2:
            self._counts[path] = self._counts.get(path, 0) + 1
            self.positions.setdefault(path, position)
        path = self._newest(path)
        self.positions[path] = position
        return path

    def _newest(self, path: KeyPath) -> KeyPath:
        """A header under a list of tables speaks of the newest of them."""
        count = self._counts.get(path)
        return path if count is None else (*path, count - 1)

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(self._key_part())
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _key_part(self) -> str:
        if self.text[self.at] not in "\"'":
            return self._skip(_BARE_KEY)
        begin = self.at
        self._string()
        return str(documents.parse_toml(f"key = {self.text[begin : self.at]}")["key"])

    def _pair(self, table: KeyPath) -> None:
        begin = self.at
        path = (*table, *self._key())
        for length in range(len(table) + 1, len(path)):
            self.positions.setdefault(path[:length], self._position(begin, begin))
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path, begin)

    def _value(self, path: KeyPath, begin: int) -> None:
        start = self.at
        opening = self.text[start]
        if opening == "[":
            self._items(path)
        elif opening == "{":
            self._pairs(path)
        elif opening in "\"'":
            self._string()
        else:
            self.at = start + len(self._skip(_SCALAR).rstrip())
        self.positions[path] = self._position(begin, start)

    def _string(self) -> None:
        for opening, whole in _STRINGS:
            if self.text.startswith(opening, self.at):
                self._skip(whole)
                return

    def _items(self, path: KeyPath) -> None:
        self.at += 1
        count = 0
        while self._more("]"):
            self._value((*path, count), self.at)
            count += 1

    def _pairs(self, path: KeyPath) -> None:
        self.at += 1
        while self._more("}"):
            self._pair(path)

    def _more(self, closing: str) -> bool:
        """Go to what comes next in a list or an inline table; False, and past `closing`, at its end."""
        self._skip(_BLANK)
        if self.text[self.at] == ",":
            self.at += 1
            self._skip(_BLANK)
        if self.text[self.at] == closing:
            self.at += 1
            return False
        return True


def set_as_of(text: str, value: datetime | Age, root: tuple[str, ...] = ()) -> str:
    """`text`, a valid spec, with `[env] as_of` set, times in UTC; everything else stays byte for byte.

    root: the table that the spec is.

    Raises:
        ValueError: `text` is not TOML.
    """
    return set_value(text, (*root, "env", "as_of"), _written(value))


def set_package_as_of(text: str, times: Mapping[str, datetime], root: tuple[str, ...] = ()) -> str:
    """The same for `[env] package_as_of`: times by normalised names."""
    table = (*root, "env", "package_as_of")
    for name, time in sorted(times.items()):
        listed = documents.table_of(documents.parse_toml(text), *table[:-1]).get("package_as_of")
        if listed is None:
            text = set_value(text, table, f"{{ {name} = {_written(time)} }}")
        else:
            existing = next((each for each in listed if normalised(each) == normalised(name)), name)
            text = set_value(text, (*table, existing), _written(time))
    return text


def _written(value: datetime | Age) -> str:
    if isinstance(value, Age):
        return f'"{value}"'
    return time_text(value)


def set_value(text: str, path: tuple[str, ...], value: str) -> str:
    """The text with `value`, which is TOML, at `path`; a table that is missing is added at the end.

    Raises:
        ValueError: `text` is not TOML.
    """
    positions = positions_of(text)
    if old := positions.by_path.get(path):
        return text[: old.start] + value + text[old.end :]
    table, pair = path[:-1], f"{path[-1]} = {value}"
    values = documents.table_of(documents.parse_toml(text), *table)
    if not values and (header := positions.by_path.get(table)):
        # Without a key: `[env.package_as_of]` or `{}`.
        if text[header.start] == "{":
            return f"{text[: header.start]}{{ {pair} }}{text[header.end :]}"
        newline = "\r\n" if text.startswith("\r\n", header.end) else "\n"
        return f"{text[: header.end]}{newline}{pair}{text[header.end :]}"
    places = [positions.by_path[table + (key,)] for key in values]  # noqa: RUF005
    for place in sorted(places, key=lambda place: place.end, reverse=True):
        # Behind the line of a table of its own a key would be in that table.
        if text[text.rfind("\n", 0, place.start) + 1 : place.start].strip():
            return _added(positions, table, place, pair)
    newline = "\r\n" if "\r\n" in text else "\n"
    if not text.endswith("\n"):
        text += newline
    return f"{text}{newline}[{'.'.join(table)}]{newline}{pair}{newline}"


def _added(positions: Positions, table: tuple[str, ...], last: Position, pair: str) -> str:
    """The text with a key and its value behind `last`, the table's last value, in the table's own manner."""
    text = positions.text
    form = (positions.written(table) or "")[:1]
    if form == "{":
        return f"{text[: last.end]}, {pair}{text[last.end :]}"
    begin = text.rfind("\n", 0, last.start) + 1
    indent = text[begin : begin + len(text[begin:]) - len(text[begin:].lstrip(" \t"))]
    # A table without a header has its keys as `env.name`, below the header of an outer one perhaps.
    outer = next((at for at in range(len(table), 0, -1) if (positions.written(table[:at]) or "")[:1] == "["), 0)
    line = indent + ".".join((*table[outer:], pair))
    end = text.find("\n", last.end)
    if end < 0:
        return f"{text}\n{line}"
    newline = "\r\n" if text[end - 1] == "\r" else "\n"
    return f"{text[: end + 1]}{line}{newline}{text[end + 1 :]}"
