"""Resolutions of earlier runs: an identical request needs neither a resolver nor a network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from envspec.io.store import Store
from envspec.models import Resolution, Target

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: Part of every key. Change it if the same request gives another result, or its stored form changes.
FORMAT: Final = "24"


def key_of(parts: object) -> str:
    """A short key. parts: JSON of everything that decides the result."""
    text = json.dumps([FORMAT, parts], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _stored_form() -> TypeAdapter[Resolution]:
    # Its schema takes 30 ms, which a run that only needs `key_of` does not need.
    from pydantic import TypeAdapter

    return TypeAdapter(Resolution)


def get(store: Store, key: str, target: Target) -> Resolution | None:
    """The resolution that `put` got; None if there is none."""
    stored = store.answer(key)
    if stored is None:
        return None
    return replace(_stored_form().validate_python(stored), target=target)


def put(store: Store, key: str, resolution: Resolution) -> None:
    store.put_answer(key, _stored_form().dump_python(resolution, mode="json"))
