"""Entries of layers: sources that list them, zips with members, and what a source's entries say and lay out."""

from __future__ import annotations

import hashlib
import posixpath
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envspec.image.layers.types import Entry, EntryKind, InMemory, OnDisk, ZipMember, ZipMethod
from envspec.image.layers.wheel_zip import read_member


@dataclass(frozen=True)
class Listed:
    """A source whose entries are listed. begun: called each time that they are asked for."""

    listed: tuple[Entry, ...]
    title: str = "a test"
    name: str = ""
    begun: Callable[[], object] = lambda: None

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.title} {self.name}".encode()).hexdigest()

    def entries(self) -> Iterator[Entry]:
        self.begun()
        yield from self.listed


def folder(path: str) -> Entry:
    return Entry(path, 0o755, EntryKind.FOLDER)


def file(path: str, content: bytes, mode: int = 0o644) -> Entry:
    return Entry(path, mode, data=InMemory(content))


def folders_of(paths: Iterable[str]) -> list[Entry]:
    """The folders that these paths are in, each before what is in it."""
    found = {parent.as_posix() for path in paths for parent in Path(path).parents}
    return [folder(path) for path in sorted(found - {"."})]


def members(archive: Path) -> dict[str, ZipMember]:
    """The members of a zip by name."""
    with zipfile.ZipFile(archive) as zipped, archive.open("rb") as raw:
        found = {}
        for info in zipped.infolist():
            raw.seek(info.header_offset + 26)
            name_bytes, extra_bytes = struct.unpack("<HH", raw.read(4))
            start = info.header_offset + 30 + name_bytes + extra_bytes
            found[info.filename] = ZipMember(
                archive, start, info.compress_size, info.file_size, info.CRC, ZipMethod(info.compress_type)
            )
    return found


def zipped(archive: Path, files: Iterable[tuple[str, bytes, int | None]]) -> dict[str, ZipMember]:
    """Write a zip; each file with its level of deflate, None for stored. Its members by name."""
    with zipfile.ZipFile(archive, "w") as written:
        for name, content, level in files:
            method = zipfile.ZIP_STORED if level is None else zipfile.ZIP_DEFLATED
            written.writestr(zipfile.ZipInfo(name), content, method, level)
    return members(archive)


def wheel_like(archive: Path, files: Iterable[tuple[str, bytes, int | None]], name: str = "") -> Listed:
    """A zip's files below opt/env, as a wheel's layer has them."""
    found = {f"opt/env/{path}": member for path, member in zipped(archive, files).items()}
    entries = [Entry(path, 0o644, data=member) for path, member in found.items()]
    return Listed((*folders_of(found), *entries), archive.name, name)


def content(entry: Entry) -> bytes:
    """The bytes of a file."""
    if isinstance(entry.data, InMemory):
        return entry.data.content
    if isinstance(entry.data, OnDisk):
        data = entry.data.path.read_bytes()
        assert len(data) == entry.data.size_bytes
        return data
    assert entry.data is not None
    return read_member(entry.data)


def rows_of(entries: Iterable[Entry]) -> list[tuple[str, int, str, str, int, int]]:
    """All that a tar would hold of the entries, in order; AssertionError where they are no layer."""
    found = []
    folders = {""}
    seen = set()
    for entry in entries:
        assert entry.path not in seen, f"{entry.path} twice"
        assert posixpath.dirname(entry.path) in folders, f"{entry.path} before its folder"
        assert posixpath.normpath(entry.path) == entry.path and not entry.path.startswith("/")
        seen.add(entry.path)
        if entry.kind is EntryKind.FOLDER:
            folders.add(entry.path)
        assert (entry.kind is EntryKind.FILE) is (entry.data is not None)
        digest = hashlib.sha256(content(entry)).hexdigest() if entry.data is not None else entry.target
        found.append((entry.path, entry.mode, entry.kind.value, digest, entry.uid, entry.gid))
    return found


def lay_out(entries: Iterable[Entry], root: Path) -> Path:
    """Write the entries below `root`, which stands for the image's."""
    for entry in entries:
        path = root / entry.path
        if entry.kind is EntryKind.FOLDER:
            path.mkdir(exist_ok=True)
        elif entry.kind is EntryKind.SYMLINK:
            path.symlink_to(entry.target)
        elif entry.kind is EntryKind.HARDLINK:
            path.hardlink_to(root / entry.target)
        else:
            path.write_bytes(content(entry))
            path.chmod(entry.mode)
    return root
