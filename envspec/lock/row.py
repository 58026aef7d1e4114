"""A row of envspec.lock: one list of columns says how a value is written and how it is read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from envspec.lock.fields import Fields
from envspec.lock.writer import Value
from envspec.models import Platform
from envspec.names import Form

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Kind(Generic[V]):
    """What stands under a key. write: TOML's value for it, None where the key is left out. read: the value again."""

    write: Callable[[V], Value]
    read: Callable[[Fields, str], V]


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """The columns of a table, in the order in which they are written.

    make: the value's class. columns: (name, kind); a column has the same name in the class and in the document.
    """

    make: Callable[..., T]
    columns: Sequence[tuple[str, Kind[Any]]]

    def write(self, value: T) -> dict[str, Value]:
        return {name: kind.write(getattr(value, name)) for name, kind in self.columns}

    def read(self, item: Fields) -> T:
        """ValueError names the key that is missing or wrong."""
        return self.make(**{name: kind.read(item, name) for name, kind in self.columns})


TEXT: Final[Kind[str]] = Kind(lambda text: text, lambda item, key: item.text(key))
#: Empty where the key is left out.
TEXT_OR_EMPTY: Final[Kind[str]] = Kind(lambda text: text or None, lambda item, key: item.text(key, ""))
OPTIONAL_TEXT: Final[Kind[str | None]] = Kind(lambda text: text, lambda item, key: item.optional_text(key))


def formed(form: Form) -> Kind[str]:
    """A text of one form: names, hashes and addresses, which become parts of paths, of commands and of other files."""
    return Kind(lambda text: text, lambda item, key: item.formed(key, form))


def optional_formed(form: Form) -> Kind[str | None]:
    """As `formed`; None where the key is left out."""
    return Kind(lambda text: text, lambda item, key: item.formed(key, form) if key in item else None)


def all_formed(form: Form) -> Kind[tuple[str, ...]]:
    """As `formed`, for a list of texts."""
    return Kind(lambda texts: texts, lambda item, key: item.all_formed(key, form))


def some_formed(form: Form) -> Kind[tuple[str, ...]]:
    """As `all_formed`; left out when it is empty."""
    return Kind(lambda texts: texts or None, lambda item, key: item.all_formed(key, form))


NUMBER: Final[Kind[int]] = Kind(lambda number: number, lambda item, key: item.number(key))
OPTIONAL_NUMBER: Final[Kind[int | None]] = Kind(lambda number: number, lambda item, key: item.optional_number(key))
TEXTS: Final[Kind[tuple[str, ...]]] = Kind(lambda texts: texts, lambda item, key: item.texts(key))
FLAG: Final[Kind[bool]] = Kind(lambda flag: flag, lambda item, key: item.flag(key))
#: (key, value) pairs, sorted; an inline table, left out when it is empty.
PAIRS: Final[Kind[tuple[tuple[str, str], ...]]] = Kind(dict, lambda item, key: item.pairs(key))
MOMENT: Final[Kind[datetime]] = Kind(lambda moment: moment, lambda item, key: item.required_moment(key))
OPTIONAL_MOMENT: Final[Kind[datetime | None]] = Kind(lambda moment: moment, lambda item, key: item.moment(key))
PLATFORM: Final[Kind[Platform]] = Kind(lambda platform: platform.value, lambda item, key: item.platform(key))
OPTIONAL_PLATFORM: Final[Kind[Platform | None]] = Kind(
    lambda platform: platform.value if platform else None, lambda item, key: item.optional_platform(key)
)
#: A level such as glibc's `2.39`.
LEVEL: Final[Kind[tuple[int, int] | None]] = Kind(
    lambda level: f"{level[0]}.{level[1]}" if level else None, lambda item, key: item.level(key)
)


def table(row: Row[T]) -> Kind[T]:
    """A table that must be there."""
    return Kind(row.write, lambda item, key: row.read(item.required_table(key)))


def optional_table(row: Row[T]) -> Kind[T | None]:
    """None where the table is left out."""

    def read(item: Fields, key: str) -> T | None:
        inner = item.table(key)
        return None if inner is None else row.read(inner)

    return Kind(lambda value: None if value is None else row.write(value), read)


def tables(row: Row[T]) -> Kind[tuple[T, ...]]:
    """An array of tables, left out when it is empty."""
    return Kind(
        lambda values: [row.write(value) for value in values],
        lambda item, key: tuple(row.read(inner) for inner in item.tables(key)),
    )
