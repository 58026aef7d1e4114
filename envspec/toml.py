"""Read TOML by the standard library's parser, or by `tomli` (the same code) on Python 3.10."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

# By name, so that one type check covers interpreters that have only one of the two.
_PARSER: Final = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML document; ValueError (with line and column) if it is not one."""
    document: dict[str, Any] = _PARSER.loads(text)
    return document
