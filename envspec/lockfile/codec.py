"""Frozen dataclasses as tables of TOML and back, by their type hints.

A field's name is its key. `Annotated[str, FORM]` is text of that form (`envspec.names`), `Annotated[int | None, "all"]`
a number or `all`, `tuple[int, int]` a version such as glibc's `2.39`, `tuple[tuple[str, str], ...]` an inline table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from envspec.lockfile.toml_writer import Value
from envspec.models import BuiltWheel, Decision, GpuCode, Package, WheelFile
from envspec.names import Form

T = TypeVar("T")

#: Tables whose keys are written in another order than the fields of their class.
_KEY_ORDER: Final[Mapping[type, str]] = {
    Decision: "what platform value why source",
    GpuCode: "package version platform variant sm ptx source",
    WheelFile: "index filename size_bytes sha256 url",
    BuiltWheel: "filename size_bytes sha256",
    Package: "name version extras uploaded file built record_sha256 required_by rejected",
}


def to_table(value: Any) -> dict[str, Value]:
    """The table of a dataclass. Empty values are in it: `toml_writer` leaves them out."""
    return {key: column.write(getattr(value, key)) for key, column in _columns(type(value)).items()}


def from_table(cls: type[T], table: object, path: str = "") -> T:
    """The dataclass that `table`, parsed TOML, describes. path: of the table, ends in `.` unless it is empty.

    Raises:
        ValueError: a key is missing, unknown or has a wrong value; names the whole path of the key.
    """
    if not isinstance(table, dict):
        raise _wrong(path.removesuffix("."), "a table", table)
    columns = _columns(cls)
    values: dict[str, Any] = {}
    for key, column in columns.items():
        if key in table:
            values[key] = column.read(table[key], f"{path}{key}")
        elif column.default is MISSING:
            raise ValueError(f"`{path}{key}` is missing")
        else:
            values[key] = column.default
    if unknown := table.keys() - columns.keys():
        raise ValueError(f"`{path}{min(unknown)}` is not a key of this format")
    return cls(**values)


class _Codec(NamedTuple):
    """How one value is written and read. default: the value of a missing key, MISSING if the key is required."""

    write: Callable[[Any], Value]
    read: Callable[[Any, str], Any]
    default: Any = MISSING


_COLUMNS: Final[dict[type, Mapping[str, _Codec]]] = {}


def _columns(cls: type) -> Mapping[str, _Codec]:
    """The keys of a class, in the order in which they are written."""
    if cls not in _COLUMNS:
        hints = get_type_hints(cls, include_extras=True)
        found = {field.name: _with_default(_codec(hints[field.name]), field.default) for field in fields(cls)}
        _COLUMNS[cls] = {key: found[key] for key in (_KEY_ORDER[cls].split() if cls in _KEY_ORDER else found)}
    return _COLUMNS[cls]


def _with_default(codec: _Codec, default: Any) -> _Codec:
    if default is MISSING:
        return codec
    write = (lambda text: text or None) if default == "" else codec.write
    return _Codec(write, codec.read, default)


@cache
def _codec(hint: Any) -> _Codec:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        if isinstance(arguments[1], Form):
            return _Codec(_same, partial(_formed, arguments[1]))
        return _spelled(arguments[1], _codec(arguments[0]))
    if type(None) in arguments:
        inner = _codec(arguments[0])
        return _Codec(lambda value: None if value is None else inner.write(value), inner.read, None)
    if get_origin(hint) is tuple:
        item = _codec(arguments[0])
        return _Codec(
            lambda values: [item.write(value) for value in values],
            lambda values, path: tuple(
                item.read(value, f"{path}[{position}]") for position, value in enumerate(_list(values, path))
            ),
            (),
        )
    if issubclass(hint, Enum):
        return _Codec(lambda member: member.value, partial(_member, hint))
    return _Codec(to_table, lambda table, path: from_table(hint, table, f"{path}."))


def _spelled(none: str, inner: _Codec) -> _Codec:
    """As `inner`, with a text for None."""
    return _Codec(
        lambda value: none if value is None else inner.write(value),
        lambda value, path: None if value == none else inner.read(value, path),
    )


def _same(value: Any) -> Value:
    plain: Value = value
    return plain


def _wrong(path: str, expected: str, found: object) -> ValueError:
    return ValueError(f"`{path}` is not {expected}: {found!r}")


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(path, "a list", value)
    return value


def _instance(kind: type, expected: str, value: object, path: str) -> Any:
    # A boolean is an integer in Python, not in TOML.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(path, expected, value)
    return value


_text = partial(_instance, str, "text")


def _formed(form: Form, value: object, path: str) -> str:
    text: str = _text(value, path)
    if not form.fits(text):
        raise _wrong(path, form.words, text)
    return text


def _time(value: object, path: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _wrong(path, "a time with a time zone", value)
    return value


def _member(kind: type[Enum], value: object, path: str) -> Enum:
    for member in kind:
        if member.value == value:
            return member
    raise _wrong(path, f"one of {', '.join(str(member.value) for member in kind)}", value)


def _level(value: object, path: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", _text(value, path))
    if not found:
        raise _wrong(path, "a version such as 2.39", value)
    return int(found[1]), int(found[2])


def _pairs(value: object, path: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _wrong(path, "a table of texts", value)
    return tuple(sorted(value.items()))


_SIMPLE: Final[Mapping[Any, _Codec]] = {
    str: _Codec(_same, _text),
    int: _Codec(_same, partial(_instance, int, "a whole number")),
    bool: _Codec(_same, partial(_instance, bool, "true or false")),
    datetime: _Codec(_same, _time),
    tuple[int, int]: _Codec(lambda level: f"{level[0]}.{level[1]}", _level),
    tuple[tuple[str, str], ...]: _Codec(dict, _pairs, ()),
}
