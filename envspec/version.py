"""envspec's version."""

from __future__ import annotations

# `envspec lock` needs the version before it imports anything else, `typing` takes 2 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"
