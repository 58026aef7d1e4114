"""Images that were made before, told again from the lock's bytes alone.

On the way of `envspec image id` and of a push that finds its image there: it imports next to nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec import __version__
from envspec.io.cache import CacheError, JsonCache

#: Part of every key: changes whenever the same lock would give another image.
MADE: Final = 2


@dataclass(frozen=True, slots=True)
class Known:
    """What came of a lock. ids: (platform, image ID). digest: of what a push puts under the tag."""

    ids: tuple[tuple[str, str], ...]
    digest: str


def key_of(lock: bytes, *options: str) -> str:
    """Names what an image is made from. lock: envspec.lock, whole. options: what else the image follows from."""
    told = [MADE, __version__, hashlib.sha256(lock).hexdigest(), *options]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def recall(cache: Path, key: str) -> Known | None:
    """What was remembered; None where nothing was, or nothing that can be read."""
    return _cache(cache).read_as(
        key,
        lambda found: Known(
            tuple((str(platform), str(identity)) for platform, identity in found["ids"]), found["digest"]
        ),
    )


def remember(cache: Path, key: str, ids: Sequence[tuple[str, str]], digest: str) -> None:
    """Keep it for the next time; a cache that can't be written remembers nothing."""
    with suppress(CacheError):
        _cache(cache).write(key, {"ids": list(ids), "digest": digest})


def _cache(cache: Path) -> JsonCache:
    return JsonCache(cache / "image-known")
