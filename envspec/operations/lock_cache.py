"""Whole locks that this machine has made before, and which of those that it finds it made itself.

A lock is a function of its spec, of the lock that stood there before, of the facts and of the programs that made it.
Where all of these are the same, the lock is too: it is written again without a look at what the spec means, and without
a network.
On the way of `envspec lock` before anything heavy is imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from envspec import __version__, toml
from envspec.errors import StaleLock
from envspec.io.store import Store
from envspec.lock.head import FORMAT, LOCK_FILE, unseal
from envspec.spec.identity import input_sha256

#: Part of every key: changes whenever the same inputs would make another lock.
MADE: Final = "10"


class Recalled(NamedTuple):
    """A lock's folder as it was written, and what the user was warned of."""

    files: Mapping[str, bytes]
    warnings: Sequence[str]


def key_of(spec: Path, directory: Path, resolver: str, facts: str, environ: Mapping[str, str]) -> str | None:
    """Names what a lock is made from; None where time is part of it: no `as_of` in the spec, and no lock to keep to.

    None for [conda] as well: channels patch their rows, and take packages with moments that have passed.

    resolver: `uv` or `pip-tools`. facts: version of the facts at hand. environ: where indexes are on this machine is
    read from it; one that stands in for another should have the same, and may not.
    """
    try:
        data = toml.read_spec(spec)
    except (OSError, ValueError):
        return None
    try:
        whole = (directory / LOCK_FILE).read_bytes()
        unseal(whole, LOCK_FILE)
        old = hashlib.sha256(whole).hexdigest()
    except (OSError, StaleLock):
        old = ""
    if "conda" in data:
        return None
    env = data.get("env")
    if not old and not (isinstance(env, dict) and "as_of" in env):
        return None
    made_by = [MADE, FORMAT, __version__, resolver, version(resolver), facts]
    places = [environ.get(name) for name in ("ENVSPEC_DEFAULT_INDEX", "ENVSPEC_PYTORCH_INDEX")]
    return hashlib.sha256(json.dumps([input_sha256(data), old, *made_by, *places]).encode()).hexdigest()


def recall(store: Store, key: str) -> Recalled | None:
    row = store.answer(key)
    if row is None:
        return None
    return Recalled({name: text.encode() for name, text in row["files"].items()}, row["warnings"])


def remember(store: Store, key: str, files: Mapping[str, bytes], warnings: Sequence[str]) -> None:
    texts = {name: content.decode() for name, content in files.items()}
    store.put_answer(key, {"files": texts, "warnings": list(warnings)})


def is_ours(store: Store, document: bytes) -> bool:
    """Whether this machine resolved to this very envspec.lock. What another wrote may be right, or tampered with."""
    return store.answer(_own(document)) is not None


def remember_ours(store: Store, document: bytes) -> None:
    store.put_answer(_own(document), {"made": True})


def _own(document: bytes) -> str:
    return hashlib.sha256(b"made here: " + hashlib.sha256(document).digest()).hexdigest()
