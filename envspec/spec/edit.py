"""Changing a spec without touching what the user wrote.

By the places of values in the text, not by a document model: tomlkit puts a new key behind the comment that
introduces the next table, and can't set one in a table written as `env.name = ...`.
"""

from __future__ import annotations

from datetime import datetime, timezone

from envspec import toml
from envspec.spec.locate import Place, Places, locate

_KEY = ("env", "as_of")


def set_as_of(text: str, moment: datetime) -> str:
    """`text`, a valid spec, with `[env] as_of` set to `moment` in UTC; everything else stays byte for byte.

    Raises:
        ValueError: `text` is not TOML, or has no table `env` with a key in it.
    """
    toml.loads(text)
    places = locate(text)
    written = moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    old = places.by_path.get(_KEY)
    if old:
        return text[: old.start] + written + text[old.end :]
    own = [place for path, place in places.by_path.items() if path[0] == "env" and len(path) == 2]
    if not own:
        raise ValueError("no key in [env]")
    return _added(places, max(own, key=lambda place: place.end), f"as_of = {written}")


def _added(places: Places, last: Place, pair: str) -> str:
    """The text with `pair` behind `last`, the last value of the table so far, in the table's own manner."""
    text = places.text
    form = (places.written(("env",)) or "")[:1]
    if form == "{":
        return f"{text[: last.end]}, {pair}{text[last.end :]}"
    begin = _line_start(text, last.line)
    indent = text[begin : begin + len(text[begin:]) - len(text[begin:].lstrip(" \t"))]
    line = f"{indent}{pair}" if form == "[" else f"{indent}env.{pair}"
    end = text.find("\n", last.end)
    if end < 0:
        return f"{text}\n{line}"
    newline = "\r\n" if text[end - 1] == "\r" else "\n"
    return f"{text[: end + 1]}{line}{newline}{text[end + 1 :]}"


def _line_start(text: str, line: int) -> int:
    at = 0
    for _ in range(line - 1):
        at = text.index("\n", at) + 1
    return at
