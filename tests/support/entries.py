"""What a source gives, told and laid out: for tests that look at entries before any layer is made of them."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable
from pathlib import Path

from envspec.image.layers.types import Entry, EntryKind, InMemory, OnDisk
from envspec.image.layers.wheel_zip import read_member


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


def told(entries: Iterable[Entry]) -> list[tuple[str, int, str, str, int, int]]:
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
