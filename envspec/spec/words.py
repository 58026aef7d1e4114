"""How a user's words are shown, and what they were probably meant to be. On the path of `lock --check`."""

from __future__ import annotations

import json
from collections.abc import Iterable

from envspec import credentials


def shown(text: str, limit: int = 80) -> str:
    """`text` in quotes, on one line, cut to `limit`, without credentials and characters that steer a terminal."""
    text = credentials.shown(text)
    cut = text if len(text) <= limit else text[: limit - 1] + "\u2026"
    return "".join(
        c if c.isprintable() else json.dumps(c)[1:-1] if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in _quoted(cut)
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be."""
    # Imported here: only a mistake needs it, and `lock --check` must stay cheap.
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None
