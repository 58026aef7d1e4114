"""IDs of images built before, by the lock's bytes.

`envspec image id`, and a push of an image that the registry has, read nothing else: few imports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.io.cache import CacheError, JsonCache
from envspec.version import VERSION

#: Part of every key: increase it if the same lock would give another image.
FORM: Final = 2


@dataclass(frozen=True, slots=True)
class CachedIds:
    """ids: (platform, image ID). digest: of what a push tags."""

    ids: tuple[tuple[str, str], ...]
    digest: str


def key_of(lock: bytes, *options: str) -> str:
    """lock: content of envspec.lock. options: everything else that determines the image."""
    values = [FORM, VERSION, hashlib.sha256(lock).hexdigest(), *options]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def read_ids(cache: Path, key: str) -> CachedIds | None:
    return _cache(cache).read_as(
        key,
        lambda found: CachedIds(
            tuple((str(platform), str(identity)) for platform, identity in found["ids"]), found["digest"]
        ),
    )


def write_ids(cache: Path, key: str, ids: Sequence[tuple[str, str]], digest: str) -> None:
    """Does nothing if the cache can't be written."""
    with suppress(CacheError):
        _cache(cache).write(key, {"ids": list(ids), "digest": digest})


def _cache(cache: Path) -> JsonCache:
    return JsonCache(cache / "image-known")
