"""Typed reading of parsed TOML: a value of the wrong type or a missing key is one message with the key's whole path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from envspec.models import Platform
from envspec.names import Form

_REQUIRED: Final = object()


class Fields:
    """A table of the document. Every method raises ValueError with the path of the key that is missing or wrong."""

    __slots__ = ("_data", "_path")

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self._data = data
        self._path = path

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def text(self, key: str, default: object = _REQUIRED) -> str:
        value = self._data.get(key, default)
        if value is _REQUIRED:
            raise ValueError(f"`{self._path}{key}` is missing")
        if not isinstance(value, str):
            raise self._wrong(key, "text", value)
        return value

    def formed(self, key: str, form: Form) -> str:
        """A text of one form, see `envspec.names`."""
        value = self.text(key)
        if not form.fits(value):
            raise self._wrong(key, form.words, value)
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if key in self._data else None

    def number(self, key: str) -> int:
        value = self.optional_number(key)
        if value is None:
            raise ValueError(f"`{self._path}{key}` is missing")
        return value

    def optional_number(self, key: str) -> int | None:
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "a whole number", value)
        return value

    def number_or_all(self, key: str) -> int | None:
        """A whole number; None for `all`."""
        return None if self._data.get(key) == "all" else self.number(key)

    def flag(self, key: str) -> bool:
        value = self._data.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts", value)
        return tuple(value)

    def all_formed(self, key: str, form: Form) -> tuple[str, ...]:
        """A list of texts of one form."""
        texts = self.texts(key)
        for text in texts:
            if not form.fits(text):
                raise self._wrong(key, f"a list of which each is {form.words}", text)
        return texts

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        value = self._data.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self._wrong(key, "a table of texts", value)
        return tuple(sorted(value.items()))

    def moment(self, key: str) -> datetime | None:
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise self._wrong(key, "a moment with a time zone", value)
        return value

    def required_moment(self, key: str) -> datetime:
        value = self.moment(key)
        if value is None:
            raise ValueError(f"`{self._path}{key}` is missing")
        return value

    def platform(self, key: str) -> Platform:
        name = self.text(key)
        try:
            return Platform(name)
        except ValueError:
            raise self._wrong(key, f"one of {', '.join(item.value for item in Platform)}", name) from None

    def optional_platform(self, key: str) -> Platform | None:
        return self.platform(key) if key in self._data else None

    def level(self, key: str) -> tuple[int, int] | None:
        """A level such as glibc's `2.39`."""
        text = self.optional_text(key)
        if text is None:
            return None
        found = re.fullmatch(r"(\d+)\.(\d+)", text)
        if not found:
            raise self._wrong(key, "a level such as 2.39", text)
        return int(found[1]), int(found[2])

    def table(self, key: str) -> Fields | None:
        return self.required_table(key) if key in self._data else None

    def required_table(self, key: str) -> Fields:
        value = self._data.get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "a table", value)
        return Fields(value, f"{self._path}{key}.")

    def tables(self, key: str) -> list[Fields]:
        value = self._data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(key, "a list of tables", value)
        return [Fields(item, f"{self._path}{key}[{position}].") for position, item in enumerate(value)]

    def _wrong(self, key: str, wanted: str, found: object) -> ValueError:
        return ValueError(f"`{self._path}{key}` is not {wanted}: {found!r}")
