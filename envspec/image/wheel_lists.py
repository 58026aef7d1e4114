"""Where the wheels of layers put files, remembered beside the layers: a stack of which one package changed is checked
for paths with two owners without all of its wheels being read, or even at hand, again."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.image.blobs import keeping
from envspec.image.content import Entry, InMemory
from envspec.image.kept import place
from envspec.image.wheel import WheelSource

_FILE: Final = 0o644


@dataclass(frozen=True, slots=True)
class Paths:
    """What one layer holds. files: by their paths; empty: those of them without a byte, which layers may share.

    folders: all that are above them.
    """

    files: frozenset[str]
    empty: frozenset[str]
    folders: frozenset[str]


class WheelLists:
    """The lists of one cache, by the keys of their layers."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "image-owned"

    def known(self, source: WheelSource) -> bool:
        """Whether the list is there."""
        return self._path(source).exists()

    def are_apart(self, sources: Iterable[WheelSource], others: Iterable[str]) -> bool:
        """Whether no two layers have one path. others: paths of layers below.

        False says only that somebody has to look closer: what two of them have may be equal.

        Raises:
            BadWheel: what it says. OSError: a wheel can't be read. CannotKeep: the cache can't be written.
        """
        files, shared, folders = set(others), set[str](), set[str]()
        for source in sources:
            paths = self._of(source)
            alone = paths.files - paths.empty
            if not files.isdisjoint(paths.files) or not shared.isdisjoint(alone):
                return False
            files |= alone
            shared |= paths.empty
            folders |= paths.folders
        return folders.isdisjoint(files) and folders.isdisjoint(shared)

    def _of(self, source: WheelSource) -> Paths:
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            told = json.loads(self._path(source).read_text(encoding="utf-8"))
            return Paths(frozenset(told["files"]), frozenset(told["empty"]), frozenset(told["folders"]))
        found = _paths_of(entry for listing in source.listings() for entry in listing.entries)
        text = json.dumps({name: sorted(getattr(found, name)) for name in ("files", "empty", "folders")})
        with keeping(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            place(self._path(source), text.encode())
        return found

    def _path(self, source: WheelSource) -> Path:
        return self._folder / f"wheels-{source.key}.json"


def _paths_of(entries: Iterable[Entry]) -> Paths:
    files: set[str] = set()
    empty: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        files.add(entry.path)
        if entry.mode == _FILE and _is_empty(entry):
            empty.add(entry.path)
        folder = posixpath.dirname(entry.path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return Paths(frozenset(files), frozenset(empty), frozenset(folders))


def _is_empty(entry: Entry) -> bool:
    data = entry.data
    if data is None:
        return False
    return not (data.content if isinstance(data, InMemory) else data.size_bytes)
