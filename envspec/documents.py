"""Read TOML and JSON within bounds: specs and locks come with pull requests.

The parser takes seconds for a megabyte, and as much again for each level of nested tables. Every reader has its own
limit in bytes; small texts can still take long and much memory. Imports little.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from envspec.verifier.regular import FileTooLarge, read_regular

# By name, so that one type check covers interpreters that have only one of the two.
_PARSER: Final = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

#: In bytes. A lock of 10,000 packages for four platforms has 16 MB.
MAX_TOML_BYTES: Final = 64 << 20
#: Of a spec, in bytes: 10,000 requirements with a hash each have less.
MAX_SPEC_BYTES: Final = 1 << 20
#: A key of more than 32 parts: `a.b.c`. Not inside of a word, where it would be looked for again at every character.
_DEEP: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""", re.ASCII)


class DocumentTooLarge(ValueError):
    """More bytes than any document needs."""


class NestedTooDeeply(ValueError):
    """Tables or lists within each other beyond what any document needs."""


def parse_toml(text: str, loads: Callable[[str], dict[str, Any]] = _PARSER.loads) -> dict[str, Any]:
    """Parse a TOML document.

    loads: the parser; tomli's takes a third of the time, and takes TOML 1.1 as well.

    Raises:
        ValueError: it is not one (with line and column), too large, or nested too deeply.
    """
    if len(text) > MAX_TOML_BYTES:
        raise DocumentTooLarge(f"it has more than {MAX_TOML_BYTES} bytes")
    # Few lines have so many dots: the pattern would take a fourth of the parser's time for a whole lock.
    if any(_DEEP.search(line) for line in text.split("\n") if line.count(".") >= 32):
        raise NestedTooDeeply("a key has more than 32 parts")
    try:
        return loads(text)
    except RecursionError:
        raise NestedTooDeeply("lists or tables are nested too deeply") from None


def parse_own_toml(text: str) -> dict[str, Any]:
    """Parse what envspec wrote itself, in a third of the time of `parse_toml`: without bounds, and TOML 1.1 too."""
    # Compiled, where there is a wheel for the machine.
    import tomli

    return tomli.loads(text)


def read_toml(path: Path) -> dict[str, Any]:
    """A file as TOML: a spec, or a pyproject.toml.

    Raises:
        OSError: it can't be read. ValueError: as `parse_toml`; it has more than MAX_SPEC_BYTES.
    """
    return parse_toml(spec_bytes(path).decode("utf-8"))


def spec_bytes(path: Path) -> bytes:
    """A spec's file. Raises OSError: it can't be read. DocumentTooLarge: it has more than MAX_SPEC_BYTES."""
    try:
        return read_regular(path, MAX_SPEC_BYTES)
    except FileTooLarge as error:
        raise DocumentTooLarge(error.strerror) from None


#: In commas, colons, lists and objects. A page of 100,000 files has 2,000,000. As many take a second and 500 MB.
MAX_JSON_MARKS: Final = 4_000_000


def check_json(data: bytes) -> None:
    """Raise ValueError for a JSON document of more than MAX_JSON_MARKS."""
    if len(data) > MAX_JSON_MARKS and sum(map(data.count, (b",", b":", b"[", b"{"))) > MAX_JSON_MARKS:
        raise ValueError("it contains too many values")


def parse_json(data: bytes) -> Any:
    """What a JSON document in UTF-8 holds.

    Raises:
        ValueError: it is none, is nested too deeply, or holds too many values.
    """
    check_json(data)
    # Takes 0.7 of the time of Python's own, and is imported with pydantic for every spec.
    from pydantic_core import from_json

    try:
        return from_json(data, cache_strings="keys")
    except ValueError as error:
        raise ValueError("it is nested too deeply" if "recursion" in str(error) else str(error)) from None


def table_of(value: Any, *keys: str) -> Mapping[str, Any]:
    """A table within tables; empty if there is none."""
    for key in keys:
        value = table_of(value).get(key)
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any, *keys: str) -> list[Any]:
    """A list within tables; empty if there is none."""
    found = table_of(value, *keys[:-1]).get(keys[-1])
    return found if isinstance(found, list) else []
