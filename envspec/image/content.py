"""What a layer is made of: entries of a tar, in order, and where their bytes are. Values only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from envspec.model import GpuCodeFound

__all__ = [
    "PREFIX",
    "Data",
    "Entry",
    "GpuCodeFound",
    "InMemory",
    "Kind",
    "Method",
    "OnDisk",
    "Source",
    "ZipMember",
]

#: The environment's folder in every image: a standalone Python, a conda prefix or a venv, wheels and scripts in it.
PREFIX: Final = "opt/env"


class Kind(Enum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


class Method(Enum):
    """How a member of a zip is packed."""

    STORED = 0
    DEFLATED = 8


@dataclass(frozen=True, slots=True)
class InMemory:
    """Bytes that were made here."""

    content: bytes


@dataclass(frozen=True, slots=True)
class ZipMember:
    """The bytes of a zip's member, packed as they lie in the archive.

    offset, packed_bytes: of the packed stream in the file. size_bytes, crc32: of what it unpacks to, as the zip's
    directory says; whoever reads it checks both.
    """

    archive: Path
    offset: int
    packed_bytes: int
    size_bytes: int
    crc32: int
    method: Method


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A file of this machine, as it is."""

    path: Path
    size_bytes: int


Data = InMemory | ZipMember | OnDisk


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a layer. Owners are numbers, times are fixed by whoever writes it.

    path: POSIX, relative to the root, no `.` or `..` in it, no slash at its end. mode: permission bits. data: of files.
    target: of a symlink, as it stands; of a hard link, a path as `path`.
    """

    path: str
    mode: int
    kind: Kind = Kind.FILE
    data: Data | None = None
    target: str = ""
    uid: int = 0
    gid: int = 0


class Source(Protocol):
    """What one layer is made from. Implementations are frozen values; the same key always means the same entries."""

    @property
    def key(self) -> str:
        """SHA-256 (hexadecimal) over all that the entries follow from: hashes of archives, prefix, Python, pyc."""
        ...

    @property
    def title(self) -> str:
        """What the image's history says of it: `torch 2.9.1`, `41 wheels: attrs 25.1.0, certifi ...`."""
        ...

    def entries(self) -> Iterator[Entry]:
        """The entries, no path twice, every folder before what is in it. Called only where the layer is not known."""
        ...
