"""What a cache remembers by key: small JSON documents, each written as one step. Imports next to nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.effects.cache import CannotKeep
from envspec.effects.files import place


@dataclass(frozen=True, slots=True)
class Notes:
    """One kind of them, each in a file of its own: `<folder>/<key>.json`. Keys are names that files can have."""

    folder: Path

    def read(self, key: str) -> Any:
        """What was written last, as JSON gives it back; None where nothing was, or nothing that can be read."""
        with suppress(OSError, ValueError):
            return json.loads(self._path(key).read_bytes())
        return None

    def write(self, key: str, value: object) -> None:
        """Remember a value.

        Raises:
            CannotKeep: the cache can't be written.
        """
        try:
            place(self._path(key), json.dumps(value).encode())
        except OSError as fault:
            raise CannotKeep(self.folder, fault) from fault

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"
