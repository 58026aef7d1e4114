"""Read TOML by the standard library's parser, or by `tomli` (the same code) on Python 3.10, within bounds.

Specs and locks come with pull requests. The parser takes seconds for a megabyte, and for what it puts into tables in
tables as much time again for each level.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

# By name, so that one type check covers interpreters that have only one of the two.
_PARSER: Final = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

#: In bytes. A lock of 10,000 packages for four platforms has 16 MB.
LARGEST: Final = 64 << 20
#: Of a spec, in bytes: 10,000 requirements with a hash each have less.
LARGEST_SPEC: Final = 1 << 20
#: A key of more than 32 parts: `a.b.c`. Not inside of a word, where it would be looked for again at every character.
_DEEP: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""", re.ASCII)


class TooLarge(ValueError):
    """More bytes than any document needs."""


class TooDeep(ValueError):
    """Tables or lists within each other beyond what any document needs."""


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        ValueError: it is not one (with line and column). TooLarge, TooDeep: see there.
    """
    if len(text) > LARGEST:
        raise TooLarge(f"it has more than {LARGEST} bytes")
    # Few lines have so many dots: the pattern would take a fourth of the parser's time for a whole lock.
    if any(_DEEP.search(line) for line in text.split("\n") if line.count(".") >= 32):
        raise TooDeep("a key has more than 32 parts")
    try:
        document: dict[str, Any] = _PARSER.loads(text)
    except RecursionError:
        raise TooDeep("lists or tables are nested too deeply") from None
    return document


def read_spec(path: Path) -> dict[str, Any]:
    """What a spec's file holds, whether or not it is a valid spec.

    Raises:
        OSError: it can't be read. ValueError: as `loads`, and `TooLarge` beyond `LARGEST_SPEC`.
    """
    return loads(spec_bytes(path).decode("utf-8"))


def spec_bytes(path: Path) -> bytes:
    """A spec's file. OSError, ValueError: it can't be read. TooLarge: it is larger than `LARGEST_SPEC`."""
    with path.open("rb") as file:
        data = file.read(LARGEST_SPEC + 1)
    if len(data) > LARGEST_SPEC:
        raise TooLarge(f"it has more than {LARGEST_SPEC} bytes")
    return data
