"""How often tests try what is chosen at random: half as often as they could, unless ENVSPEC_TEST_THOROUGH is set."""

from __future__ import annotations

import os
from typing import Final

_IS_THOROUGH: Final = bool(os.environ.get("ENVSPEC_TEST_THOROUGH"))


def tries(most: int) -> int:
    return most if _IS_THOROUGH else most // 2
