"""Whose each path of an image is: two wheels share none that they would differ in."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envspec.errors import NoSolution
from envspec.image.content import Data, Entry, InMemory, Kind, OnDisk, ZipMember
from envspec.image.wheel_zip import unpacked


class OwnedTwice(NoSolution):
    """Two packages of the lock put different files at one path."""

    def __init__(self, path: str, one: str, other: str) -> None:
        super().__init__(
            f"{path} belongs to {one} and to {other}, with different content",
            hint="one of them has to go, or another version of it to be taken: they can't be installed together",
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """What one owner puts into the image. owner: as messages say it: `numpy 2.2.6`."""

    owner: str
    entries: tuple[Entry, ...]


def conflicts(listings: Iterable[Listing]) -> dict[str, str]:
    """Path -> its first owner, of all that is no folder.

    Several of NVIDIA's wheels share an empty `nvidia/__init__.py`: equal bytes are no conflict.

    Raises:
        OwnedTwice: names the path and both owners.
    """
    first: dict[str, tuple[str, Entry]] = {}
    for listing in listings:
        for entry in listing.entries:
            if entry.kind is Kind.FOLDER:
                continue
            owner, there = first.setdefault(entry.path, (listing.owner, entry))
            if there is not entry and not are_same(there, entry):
                raise OwnedTwice(entry.path, owner, listing.owner)
    folders: set[str] = set()
    for path in first:
        folder = posixpath.dirname(path)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    for path in sorted(folders.intersection(first)):
        below = next(other for other in first if other.startswith(f"{path}/"))
        raise OwnedTwice(path, first[path][0], first[below][0])
    return {path: owner for path, (owner, _) in first.items()}


def are_same(one: Entry, other: Entry) -> bool:
    """Whether two entries put the same there; their bytes are compared only where sizes and checksums are equal."""
    if (one.kind, one.mode, one.target, one.uid, one.gid) != (
        other.kind,
        other.mode,
        other.target,
        other.uid,
        other.gid,
    ):
        return False
    if one.data is None or other.data is None or _size(one.data) != _size(other.data):
        return one.data is other.data
    if isinstance(one.data, ZipMember) and isinstance(other.data, ZipMember) and one.data.crc32 != other.data.crc32:
        return False
    return _sha256(one.data) == _sha256(other.data)


def _size(data: Data) -> int:
    return len(data.content) if isinstance(data, InMemory) else data.size_bytes


def _sha256(data: Data) -> bytes:
    digest = hashlib.sha256()
    for chunk in _chunks(data):
        digest.update(chunk)
    return digest.digest()


def _chunks(data: Data) -> Iterator[bytes]:
    if isinstance(data, InMemory):
        yield data.content
    elif isinstance(data, OnDisk):
        with data.path.open("rb") as file:
            while chunk := file.read(1 << 20):
                yield chunk
    else:
        yield from unpacked(data)
