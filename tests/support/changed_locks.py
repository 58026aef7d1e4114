"""Every value of a lock's document, changed: what somebody writes who reseals the lock and all files that follow.

for change in changes_of(document):
    forge_document(folder, change.document)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from envspec.errors import EnvspecError
from envspec.lockfile.document import load
from envspec.lockfile.header import LOCK_FILE, Header, add_checksum
from envspec.operations.lock.complete import lock_files

#: A place in a document: keys of tables and positions in arrays.
Place = tuple[str | int, ...]
_HEX: Final = re.compile(r"(?:sha256:)?[0-9a-f]{32,64}")
_HEADER: Final = (*Header._fields, "requires_envspec")


@dataclass(frozen=True)
class Changed:
    """A document with one change. field: its place without positions, `resolution.package.version`. how: in words."""

    path: Place
    how: str
    document: dict[str, Any]

    @property
    def field(self) -> str:
        return field_of(self.path)

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))} {self.how}"


def field_of(path: Place) -> str:
    """`resolution.package.version`; of an entry of an array as a whole, `resolution.package[]`."""
    names = ".".join(part for part in path if isinstance(part, str))
    return f"{names}[]" if isinstance(path[-1], int) else names


def places_in(value: object, path: Place = ()) -> Iterator[Place]:
    """Every value, table and array below a value."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from places_in(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from places_in(inner, (*path, position))


def changes_at(document: Mapping[str, Any], path: Place) -> Iterator[Changed]:
    """The changes of one place: another value if it is none of tables, and without it."""
    value = _at(document, path)
    for how, other in _others(value):
        yield Changed(path, how, _with(document, path, other))
    yield Changed(path, "removed", _without(document, path))


def _others(value: object) -> Iterator[tuple[str, object]]:
    """Other values that have the form of a value."""
    if isinstance(value, bool):
        yield "negated", not value
    elif isinstance(value, int):
        yield "increased", value + 1
    elif isinstance(value, datetime):
        yield "later", value + timedelta(seconds=1)
        yield "earlier", value - timedelta(days=400)
    elif isinstance(value, str):
        yield "replaced", _other_text(value)
    elif isinstance(value, list) and value:
        yield "with an entry more", [*value, _renamed(value[-1])]
        if len(value) > 1:
            yield "in another order", [*value[1:], value[0]]


def _renamed(value: object) -> object:
    """A value as `value` beside it: an entry of another name."""
    if isinstance(value, Mapping):
        first = next(iter(value))
        key = next((key for key in ("name", "what", "platform") if key in value), first)
        return {**value, key: _renamed(value[key])}
    return _other_text(value) if isinstance(value, str) else value


def _other_text(text: str) -> str:
    platforms = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")
    if text in platforms:
        return platforms[platforms.index(text) - 1]
    if _HEX.fullmatch(text):
        return f"{text[:-1]}{'0' if text[-1] != '0' else '1'}"
    if digits := re.search(r"[0-9](?=[^0-9]*$)", text):
        return f"{text[: digits.start()]}{(int(digits[0]) + 1) % 10}{text[digits.end() :]}"
    return f"{text}x"


def with_change(document: Mapping[str, Any], changed: Changed) -> dict[str, Any]:
    """Another document with the change of one value."""
    try:
        return _with(document, changed.path, _at(changed.document, changed.path))
    except LookupError:
        return _without(document, changed.path)


def _at(document: Any, path: Place) -> Any:
    for part in path:
        document = document[part]
    return document


def _with(document: Mapping[str, Any], path: Place, value: object) -> dict[str, Any]:
    whole, place = _copied(document, path)
    place[path[-1]] = value
    return whole


def _without(document: Mapping[str, Any], path: Place) -> dict[str, Any]:
    whole, place = _copied(document, path)
    del place[path[-1]]
    return whole


def _copied(document: Mapping[str, Any], path: Place) -> tuple[dict[str, Any], Any]:
    """A document that shares all but what contains a place, and the innermost of these."""
    whole = dict(document)
    place: Any = whole
    for part in path[:-1]:
        place[part] = copy(place[part])
        place = place[part]
    return whole, place


def forge_document(folder: Path, document: Mapping[str, Any], *, is_header: bool = False) -> None:
    """Write a document into a lock's folder with its seal, and the other files as they follow from it.

    is_header: whether the names and hashes of the files are what was changed.
    """
    files: Mapping[str, bytes] = {}
    with suppress(EnvspecError, ValueError, LookupError, TypeError, AttributeError):
        files = {k: v for k, v in lock_files(load(text_of(document), LOCK_FILE)).items() if k != LOCK_FILE}
        if not is_header:
            document = {**document, "files": {name: _sha256(data) for name, data in files.items()}}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / LOCK_FILE).write_text(text_of(document), encoding="utf-8")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def text_of(document: Mapping[str, Any]) -> str:
    """A lock's document as TOML, a key a line."""
    header = "".join(f"{_toml(key)} = {_toml(document[key])}\n" for key in _HEADER if key in document)
    rest = "".join(f"{_toml(key)} = {_toml(value)}\n" for key, value in document.items() if key not in _HEADER)
    return add_checksum(header.replace('"format"', "format", 1), rest)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    return json.dumps(value, ensure_ascii=False)
