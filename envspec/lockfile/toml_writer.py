"""A TOML writer for envspec.lock: the same value gives the same bytes on every machine, one value stays on one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Final, TypeAlias

from envspec.spec.dates import time_text

Value: TypeAlias = "str | bool | int | date | Sequence[Value] | Mapping[str, Value] | None"

_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
# TOML wants U+0000..U+001F and U+007F escaped. The others are escaped for whoever reads the file or its diff: line ends
# that an editor may see and TOML does not, and the signs that change a line's direction or that can't be seen.
_ESCAPED: Final = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]')


def string(text: str) -> str:
    """A basic string on one line."""
    return '"' + _ESCAPED.sub(lambda found: _SHORT.get(found[0], f"\\u{ord(found[0]):04X}"), text) + '"'


def pairs(values: Mapping[str, Value]) -> str:
    """`key = value` lines, without the keys whose value is None, an empty sequence or an empty table."""
    return "".join(f"{bare_key(key)} = {_value(value)}\n" for key, value in _present(values))


def table(name: str, values: Mapping[str, Value]) -> str:
    return f"\n[{name}]\n{pairs(values)}"


def tables(name: str, rows: Iterable[Mapping[str, Value]]) -> str:
    """An array of tables, each with its own header."""
    return "".join(f"\n[[{name}]]\n{pairs(row)}" for row in rows)


def _present(values: Mapping[str, Value]) -> list[tuple[str, Value]]:
    return [(key, value) for key, value in values.items() if value not in (None, (), [], {})]


def bare_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key, re.ASCII) else string(key)


def _value(value: Value) -> str:
    if isinstance(value, str):
        return string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, date):
        return time_text(value) if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{bare_key(key)} = {_value(item)}" for key, item in _present(value)) + " }"
    if value is None:
        raise ValueError("TOML has no null")
    items = list(map(_value, value))
    is_short = sum(map(len, items)) < 90 and all(isinstance(item, str) for item in value)
    if len(items) < 2 or is_short:
        return "[" + ", ".join(items) + "]"
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
