"""Entries, sources and layers.

Source: OCI image specification 1.1, `config.md`, `layer.md`, `manifest.md`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from envspec.models import GpuCodeFound, Platform
from envspec.registry.types import Descriptor

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


class Compression(Enum):
    """How the blobs of layers are packed; the image ID is the same for all of them."""

    GZIP = "gzip"
    ZSTD = "zstd"
    NONE = "none"

    @property
    def media_type(self) -> str:
        """OCI's name of a layer that is packed so."""
        end = {"gzip": "+gzip", "zstd": "+zstd", "none": ""}[self.value]
        return f"application/vnd.oci.image.layer.v1.tar{end}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image. diff_id: digest of its tar. created_by: what the history says of it.

    found: GPU code of the wheels in it, by the wheel's SHA-256.
    """

    diff_id: str
    blob: Descriptor
    created_by: str
    found: tuple[tuple[str, GpuCodeFound], ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """One platform's image. id: digest of `config`. digest: of `manifest`. layers: the base's first."""

    platform: Platform
    id: str
    config: bytes = field(repr=False)
    digest: str
    manifest: bytes = field(repr=False)
    layers: tuple[Layer, ...]
