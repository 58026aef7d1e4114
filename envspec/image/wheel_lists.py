"""Where the wheels of layers put files, remembered beside the layers: a stack of which one package changed is checked
for paths with two owners without all of its wheels being read, or even at hand, again."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.effects.notes import Notes
from envspec.image.content import Entry, InMemory
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
        self._notes = Notes(cache / "image-owned")
        self._seen: dict[str, Paths] = {}

    def learn(self, source: WheelSource) -> Paths:
        """Read a layer's wheels for its list, and remember it. For threads, each with another source.

        Raises:
            BadWheel: what it says. OSError: a wheel can't be read. CannotKeep: the cache can't be written.
        """
        found = _paths_of(entry for listing in source.listings() for entry in listing.entries)
        told = {name: sorted(getattr(found, name)) for name in ("files", "empty", "folders")}
        self._notes.write(_key(source), told)
        return found

    def known(self, source: WheelSource) -> bool:
        """Whether the list is there, and can be read."""
        found = self._read(source)
        if found is not None:
            self._seen[source.key] = found
        return found is not None

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
        # Let go of as soon as it was looked at: those of a large stack are worth some memory.
        return self._seen.pop(source.key, None) or self._read(source) or self.learn(source)

    def _read(self, source: WheelSource) -> Paths | None:
        with suppress(KeyError, TypeError):
            told = self._notes.read(_key(source))
            return Paths(frozenset(told["files"]), frozenset(told["empty"]), frozenset(told["folders"]))
        return None


def _key(source: WheelSource) -> str:
    return f"wheels-{source.key}"


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
