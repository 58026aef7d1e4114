"""Deterministic tar: the same entries are the same bytes on every machine.

Format: ustar; names that are too long or not ASCII, and sizes of 8 GiB and more, in pax headers. Every time is the
start of 1980, as in wheels; owners are numbers without names.
Source: POSIX.1-2017, `pax`, "ustar Interchange Format" and "pax Header Block".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from envspec.errors import EnvspecError
from envspec.image.layers.types import Entry, EntryKind

#: 1980-01-01T00:00:00Z in seconds since 1970: the oldest time of a zip.
EPOCH_S: Final = 315_532_800
#: The end of a tar.
END: Final = bytes(1024)
_BLOCK: Final = 512
_HEAD: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_TYPES: Final[Mapping[EntryKind, bytes]] = {
    EntryKind.FILE: b"0",
    EntryKind.HARDLINK: b"1",
    EntryKind.SYMLINK: b"2",
    EntryKind.FOLDER: b"5",
}
_PADDING: Final = tuple(map(bytes, range(_BLOCK)))
_NAME, _PREFIX, _LINK = 100, 155, 100
_BLANKS: Final = b"        "
_SUM_AT: Final = 148
_OCTAL_7: Final = 0o7777777
_OCTAL_11: Final = 0o77777777777


class BadEntry(EnvspecError, code="internal"):
    """An entry that engines would reject or misread: a bug in its source."""

    def __init__(self, layer: str, path: str, why: str) -> None:
        super().__init__(
            f"internal error: layer `{layer}`: {path!r} {why}", hint="report this bug in envspec, with the lock"
        )


class EntryCheck:
    """Checks a layer's entries: each path once, every folder before its content.

    Docker refuses to pull a layer with a duplicate path; a folder without an entry gets a mode and a time of the
    engine's choice.
    """

    def __init__(self, layer: str) -> None:
        self._layer = layer
        self._folders: dict[str, bool] = {"": True}

    def add(self, entry: Entry) -> None:
        """Check the next entry.

        Raises:
            BadEntry: a path that is invalid, a duplicate or before its folder; data that does not fit the kind.
        """
        path = entry.path
        parent, _, name = path.rpartition("/")
        if name in {"", ".", ".."} or path.startswith("/") or "\0" in path or "\0" in entry.target:
            raise BadEntry(self._layer, path, "is not a path below the root")
        if path in self._folders:
            raise BadEntry(self._layer, path, "is a duplicate")
        if not self._folders.get(parent, False):
            raise BadEntry(self._layer, path, "comes before its folder")
        if (entry.kind is EntryKind.FILE) is (entry.data is None):
            how = "without" if entry.data is None else "with"
            raise BadEntry(self._layer, path, f"is a {entry.kind.value} {how} data")
        self._folders[path] = entry.kind is EntryKind.FOLDER


def padding(size_bytes: int) -> bytes:
    """Fills the last block of a file of this size."""
    return _PADDING[-size_bytes % _BLOCK]


def header(entry: Entry) -> bytes:
    """The header of an entry, after a pax header if ustar is too small. Raises BadEntry: a name that is not UTF-8."""
    records: dict[str, str | int] = {}
    path = f"{entry.path}/" if entry.kind is EntryKind.FOLDER else entry.path
    name, prefix = _split(path)
    if name is None:
        records["path"] = path
        name = path.encode("ascii", "replace")[:_NAME]
    target = entry.target.encode("ascii", "replace")
    if len(target) > _LINK or not entry.target.isascii():
        records["linkpath"] = entry.target
        target = target[:_LINK]
    # The mode of a symlink differs between systems; nothing reads it.
    mode = 0o777 if entry.kind is EntryKind.SYMLINK else entry.mode & 0o7777
    ustar = _block(
        name,
        mode,
        (
            _bounded("uid", entry.uid, _OCTAL_7, records),
            _bounded("gid", entry.gid, _OCTAL_7, records),
            _bounded("size", entry.size_bytes, _OCTAL_11, records),
        ),
        _TYPES[entry.kind],
        target,
        prefix,
    )
    if records:
        return _pax(entry, records) + ustar
    return ustar


def _bounded(key: str, number: int, limit: int, records: dict[str, str | int]) -> int:
    if number <= limit:
        return number
    records[key] = number
    return 0


def _split(path: str) -> tuple[bytes | None, bytes]:
    """Name and prefix in ustar; (None, b"") if the path does not fit."""
    if not path.isascii():
        return None, b""
    raw = path.encode()
    if len(raw) <= _NAME:
        return raw, b""
    at = raw.find(b"/", len(raw) - _NAME - 1, len(raw) - 1)
    return (raw[at + 1 :], raw[:at]) if 0 < at <= _PREFIX else (None, b"")


def _block(
    name: bytes, mode: int, numbers: tuple[int, int, int], kind: bytes, target: bytes = b"", prefix: bytes = b""
) -> bytes:
    """numbers: uid, gid, size."""
    uid, gid, size = numbers
    block = _HEAD.pack(
        name,
        b"%07o" % mode,
        b"%07o" % uid,
        b"%07o" % gid,
        b"%011o" % size,
        b"%011o" % EPOCH_S,
        _BLANKS,
        kind,
        target,
        b"ustar\x0000",
        b"",
        b"",
        b"0000000",
        b"0000000",
        prefix,
    )
    # The checksum covers the header with blanks in its own place.
    return b"%b%06o\0 %b" % (block[:_SUM_AT], sum(block), block[_SUM_AT + len(_BLANKS) :])


def _pax(entry: Entry, records: Mapping[str, str | int]) -> bytes:
    try:
        content = b"".join(_record(key, str(value).encode()) for key, value in sorted(records.items()))
    except UnicodeEncodeError as fault:
        raise BadEntry("", entry.path, "has a name that is not UTF-8") from fault
    return _block(b"././@PaxHeader", 0o644, (0, 0, len(content)), b"x") + content + padding(len(content))


def _record(key: str, value: bytes) -> bytes:
    """`<length> <key>=<value>` and a newline; the length counts its own digits."""
    bare = len(key) + len(value) + 3
    length = bare + len(str(bare))
    length = bare + len(str(length))
    return b"%d %s=%s\n" % (length, key.encode(), value)
