"""Wheels as the source of a layer: one big wheel, or a bucket of small ones."""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from envspec.image.content import Entry, InMemory, Kind, ZipMember
from envspec.image.owners import Listing, conflicts
from envspec.image.pyc import Module, Pyc, compiled
from envspec.image.wheel_layout import Laid, LockedWheel, Scheme, lay, record
from envspec.image.wheel_zip import read

__all__ = ["LockedWheel", "Pyc", "Scheme", "WheelSource"]

#: Goes up with every change of what comes of the same wheels: it is a part of every key.
_FORM: Final = "wheels 1"
_FOLDER: Final = 0o755
_FILE: Final = 0o644


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A layer of wheels. pyc: None for a layer without bytecode of ours.

    A path that several of its wheels bring with equal bytes is in the layer once. Several layers may each have it:
    what is in one follows from its own wheels alone.
    """

    wheels: tuple[LockedWheel, ...]
    scheme: Scheme
    pyc: Pyc | None
    #: What `listings` read, until `entries` lays it: a wheel's directory is read once.
    _laid: dict[LockedWheel, Laid] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def key(self) -> str:
        """SHA-256 over the wheels' hashes, where they go, and the Python that compiles; no path of this machine."""
        scheme = self.scheme
        told = [
            _FORM,
            [[wheel.name, wheel.version, wheel.sha256, wheel.direct_url] for wheel in self._sorted()],
            [scheme.series, scheme.purelib, scheme.platlib, scheme.scripts],
            [scheme.data, scheme.headers, scheme.interpreter],
            self.pyc.key if self.pyc else None,
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def title(self) -> str:
        """`torch 2.9.1`, or `41 wheels: attrs 25.1.0, certifi ...`."""
        names = [f"{wheel.name} {wheel.version}" for wheel in self._sorted()]
        return names[0] if len(names) == 1 else f"{len(names)} wheels: {', '.join(names)}"

    def entries(self) -> Iterator[Entry]:
        """Folders before what is in them; a module, then its bytecode; each RECORD at the end, when all is known.

        Raises:
            BadWheel, OwnedTwice: what they say. UnfitMachine, WorkerFault: no bytecode. OSError: a wheel can't be read.
        """
        laid = {wheel: self._taken(wheel) for wheel in self._sorted()}
        conflicts(_listing(wheel, each) for wheel, each in laid.items())
        files = {path: entry for each in laid.values() for path, entry in each.files.items()}
        sources = sorted({path for each in laid.values() for path in each.sources})
        made: set[str] = set()
        folders = _Folders()
        with contextlib.closing(self._bytecode(sources, files)) as bytecode:
            coming = next(bytecode, None)
            replaced = {self.pyc.path_of(path): path for path in sources} if self.pyc else {}
            for path in sorted(files):
                # Bytecode that a wheel brings is of its builder's making, and waits for whether ours replaces it.
                if path in replaced:
                    continue
                yield from folders.above(path)
                yield files[path]
                if coming is not None and coming[0] == path:
                    data, coming = coming[1], next(bytecode, None)
                    place = self._place(path)
                    if data:
                        made.add(place)
                        yield from folders.above(place)
                        yield Entry(place, _FILE, data=InMemory(data))
                    elif place in files:
                        yield from folders.above(place)
                        yield files[place]
        for each in laid.values():
            yield from folders.above(each.record_path)
            yield record(each, sorted(self._place(path) for path in each.sources if self._place(path) in made))

    def listings(self) -> tuple[Listing, ...]:
        """What each wheel owns, without bytecode and RECORD, for `owners.conflicts`.

        Raises:
            BadWheel: what it says. OSError: a wheel can't be read.
        """
        for wheel in self._sorted():
            if wheel not in self._laid:
                self._laid[wheel] = lay(wheel, self.scheme)
        return tuple(_listing(wheel, self._laid[wheel]) for wheel in self._sorted())

    def _taken(self, wheel: LockedWheel) -> Laid:
        """What was laid for `listings`, once; laid now where that was not asked for."""
        return self._laid.pop(wheel) if wheel in self._laid else lay(wheel, self.scheme)

    def _sorted(self) -> list[LockedWheel]:
        return sorted(self.wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.sha256))

    def _place(self, module: str) -> str:
        return self.pyc.path_of(module) if self.pyc else ""

    def _bytecode(self, sources: list[str], files: Mapping[str, Entry]) -> Generator[tuple[str, bytes], None, None]:
        if self.pyc is None:
            return
        modules = (_module(files[path]) for path in sources)
        with contextlib.closing(compiled(self.pyc, modules)) as coming:
            yield from zip(sources, coming, strict=True)


class _Folders:
    """The folders of a layer, each once and before what is in it."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def above(self, path: str) -> Iterator[Entry]:
        folder = posixpath.dirname(path)
        if folder and folder not in self._made:
            yield from self.above(folder)
            self._made.add(folder)
            yield Entry(folder, _FOLDER, Kind.FOLDER)


def _listing(wheel: LockedWheel, laid: Laid) -> Listing:
    return Listing(f"{wheel.name} {wheel.version}", tuple(laid.files.values()))


def _module(entry: Entry) -> Module:
    if isinstance(entry.data, ZipMember):
        return Module(entry.path, entry.data.size_bytes, partial(read, entry.data))
    content = entry.data.content if isinstance(entry.data, InMemory) else b""
    return Module(entry.path, len(content), lambda: content)
