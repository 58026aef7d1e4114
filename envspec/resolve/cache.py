"""Resolutions of earlier runs: an identical request needs neither a resolver nor a network."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from msgspec import convert, to_builtins

from envspec.io.store import Store
from envspec.models import Resolution, Target
from envspec.structs import replace

#: Part of every key. Change it if the same request gives another result, or its stored form changes.
FORMAT: Final = "25"


def key_of(parts: object) -> str:
    """A short key. parts: JSON of everything that decides the result."""
    text = json.dumps([FORMAT, parts], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def get(store: Store, key: str, target: Target) -> Resolution | None:
    """The resolution that `put` got; None if there is none."""
    stored = store.answer(key)
    if stored is None:
        return None
    return replace(convert(stored, Resolution), target=target)


def put(store: Store, key: str, resolution: Resolution) -> None:
    store.put_answer(key, to_builtins(resolution))
