"""Where the facts lie, and which version of them this is."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).resolve().parent


def facts_version() -> str:
    """Twelve hex digits of SHA-256 over the data files' names and bytes; nothing is parsed: a millisecond."""
    summed = sha256()
    for path in sorted(DATA.glob("*.toml")):
        summed.update(path.name.encode() + b"\0" + path.read_bytes())
    return summed.hexdigest()[:12]
