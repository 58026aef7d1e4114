"""Entries, sources and layers.

Source: OCI image specification 1.1, `config.md`, `layer.md`, `manifest.md`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from envspec.models import Platform, WheelContent
from envspec.registry.types import Descriptor

#: The environment's folder in every image: a standalone Python, a conda prefix or a venv, wheels and scripts in it.
PREFIX: Final = "opt/env"


class EntryKind(Enum):
    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


class ZipMethod(Enum):
    """Compression method of a zip's member."""

    STORED = 0
    DEFLATED = 8


class InMemory(Struct, frozen=True):
    """Generated content."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)


class ZipMember(Struct, frozen=True):
    """A member of a zip, still packed.

    offset, packed_bytes: of the packed stream in the archive. size_bytes, crc32: of the unpacked content, from the
    zip's directory; readers check both.
    """

    archive: Path
    offset: int
    packed_bytes: int
    size_bytes: int
    crc32: int
    method: ZipMethod


class OnDisk(Struct, frozen=True):
    """A file on this machine."""

    path: Path
    size_bytes: int


Data = InMemory | ZipMember | OnDisk


class Entry(Struct, frozen=True):
    """One entry of a layer.

    path: POSIX, relative to the root, without `.`, `..` or a trailing slash. mode: permission bits. data: only for
    files. target: of a symlink, verbatim; of a hard link, a path like `path`.
    """

    path: str
    mode: int
    kind: EntryKind = EntryKind.FILE
    data: Data | None = None
    target: str = ""
    uid: int = 0
    gid: int = 0

    @property
    def size_bytes(self) -> int:
        return 0 if self.data is None else self.data.size_bytes


class LayerSource(Protocol):
    """The content of one layer. Implementations are frozen values; equal keys mean equal entries."""

    @property
    def key(self) -> str:
        """SHA-256 (hexadecimal) of everything that determines the entries: archives' hashes, prefix, Python, pyc."""
        ...

    @property
    def title(self) -> str:
        """Text in the image's history: `torch 2.9.1`, `41 wheels: attrs 25.1.0, certifi ...`."""
        ...

    def entries(self) -> Iterator[Entry]:
        """All entries, each path once, every folder before its content. Called only if the layer is not cached."""
        ...


def with_folders(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Each entry after its parents, outermost first; each folder once."""
    written = {""}

    def missing(folder: str) -> Iterator[Entry]:
        if folder not in written:
            yield from missing(posixpath.dirname(folder))
            written.add(folder)
            yield Entry(folder, 0o755, EntryKind.FOLDER)

    for entry in entries:
        if entry.kind is EntryKind.FOLDER:
            yield from missing(entry.path)
        else:
            yield from missing(posixpath.dirname(entry.path))
            yield entry


class Compression(Enum):
    """How layers' blobs are packed. The image ID does not depend on it."""

    GZIP = "gzip"
    ZSTD = "zstd"
    NONE = "none"

    @property
    def media_type(self) -> str:
        suffix = "" if self is Compression.NONE else f"+{self.value}"
        return f"application/vnd.oci.image.layer.v1.tar{suffix}"


class Layer(Struct, frozen=True):
    """A layer of an image. diff_id: digest of its tar. created_by: text in the history.

    wheels: (SHA-256, what its libraries contain and need), only of wheels with libraries.
    """

    diff_id: str
    blob: Descriptor
    created_by: str
    wheels: tuple[tuple[str, WheelContent], ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """One platform's image. id: digest of `config`. digest: of `manifest`. layers: the base's first."""

    platform: Platform
    id: str
    config: bytes = field(repr=False)
    digest: str
    manifest: bytes = field(repr=False)
    layers: tuple[Layer, ...]
