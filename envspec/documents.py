"""JSON from outside, within bounds: what is read of an index, a channel or a registry is written by others.

Every reader has a limit in bytes of its own; small texts can still take long and much memory. Imports next to nothing.
"""

from __future__ import annotations

import json
from typing import Any, Final

#: In commas, colons, lists and objects. A page of 100,000 files has 2,000,000. As many take a second and 500 MB.
MOST_MARKS: Final = 4_000_000


def json_of(data: bytes) -> Any:
    """What a JSON document holds.

    Raises:
        ValueError: it is none, is nested too deeply, or holds too many values.
    """
    if sum(map(data.count, (b",", b":", b"[", b"{"))) > MOST_MARKS:
        raise ValueError("it holds too many values")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
