"""Read TOML by the standard library's parser, or by `tomli` on Python 3.10."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def loads(text: str) -> dict[str, Any]:
    """Parse a TOML document; ValueError (with line and column) if it is not one."""
    return tomllib.loads(text)
