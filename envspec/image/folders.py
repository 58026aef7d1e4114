"""The folders of a layer: each an entry, once and before what is in it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

from envspec.image.content import Entry, Kind

_MODE: Final = 0o755


class Folders:
    """Gives the folders above a path that have not been given yet."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def above(self, path: str) -> Iterator[Entry]:
        """The folders above `path`, outermost first."""
        yield from self.to(posixpath.dirname(path))

    def to(self, folder: str) -> Iterator[Entry]:
        """`folder` itself, with those above it."""
        if folder and folder not in self._made:
            yield from self.above(folder)
            self._made.add(folder)
            yield Entry(folder, _MODE, Kind.FOLDER)
