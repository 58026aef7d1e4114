"""What the layers below the wheels own, remembered beside them: told again without their archives at hand."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Protocol

from envspec.effects.notes import Notes
from envspec.image.content import Source
from envspec.image.owners import OwnedTwice

#: What the digest of a link begins with.
LINK: Final = "-> "


@dataclass(frozen=True, slots=True)
class Owned:
    """A path of the image, and whose it is. digest: of its bytes, or LINK and where it leads; equal where they are."""

    path: str
    owner: str
    digest: str


class Owner(Source, Protocol):
    """A source that tells what is in it without bytecode being made. The same key always tells the same."""

    def owned(self) -> tuple[Owned, ...]: ...


class OwnedLists:
    """The lists of one cache, by the keys of their sources.

    Those of wheels are `wheel_lists`: paths alone, since a wheel's directory tells them and no hash.
    """

    def __init__(self, cache: Path) -> None:
        self._notes = Notes(cache / "image-owned")

    def known(self, source: Owner) -> bool:
        """Whether the list is there."""
        return self._read(source) is not None

    def of(self, source: Owner) -> tuple[Owned, ...]:
        """What a source owns: as it was told before, else asked now.

        Raises:
            As `Owner.owned`. CannotKeep: the cache can't be written.
        """
        found = self._read(source)
        if found is None:
            found = source.owned()
            self._notes.write(source.key, [astuple(each) for each in found])
        return found

    def _read(self, source: Owner) -> tuple[Owned, ...] | None:
        with suppress(ValueError, TypeError):
            return tuple(Owned(path, owner, digest) for path, owner, digest in self._notes.read(source.key))
        return None


def owners_of(lists: Iterable[Iterable[Owned]]) -> dict[str, str]:
    """Path -> its first owner.

    Raises:
        OwnedTwice: two packages have something different at one path.
    """
    first: dict[str, Owned] = {}
    for each in lists:
        for owned in each:
            there = first.setdefault(owned.path, owned)
            if there.digest != owned.digest:
                raise OwnedTwice(owned.path, there.owner, owned.owner)
    links = {path for path, owned in first.items() if owned.digest.startswith(LINK)}
    for path, owned in first.items():
        folder = posixpath.dirname(path)
        while folder and links:
            if folder in links:
                raise OwnedTwice(folder, first[folder].owner, owned.owner)
            folder = posixpath.dirname(folder)
    return {path: owned.owner for path, owned in first.items()}
