"""Files that wheels install at one path with different content: which wheels and files, from their RECORDs alone.

The list of a wheel is packed: a stack has 60,000 files, which are compared whenever it is locked.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from struct import iter_unpack
from typing import Final, NamedTuple

from envspec.verifier.record import RecordEntry, installed_from

#: A file: 8 bytes of its path's hash, and as many of its content's.
_ROW: Final = "8s8s"


class Overlap(NamedTuple):
    """A file that packages install with different content.

    path: relative to site-packages, or to the environment after `record.DATA`.
    contents: package -> the first 8 characters of its content's hash as in RECORD.
    """

    path: str
    contents: Mapping[str, str]


def packed(entries: Iterable[RecordEntry]) -> tuple[bytes, bytes]:
    """The files of a wheel with a SHA-256 as `overlaps` compares them, and their paths, compressed."""
    paths: dict[str, str] = {}
    for entry in entries:
        path = installed_from(entry.path)
        if path and entry.algorithm == "sha256" and entry.digest:
            paths[path] = entry.digest
    rows = b"".join(_key(path) + digest.encode("ascii", "replace")[:8].ljust(8) for path, digest in paths.items())
    return rows, zlib.compress("\n".join(paths).encode("utf-8", "surrogateescape"), 1)


def overlaps(files: Mapping[str, bytes], paths_of: Callable[[str], bytes]) -> list[Overlap]:
    """Every file in which packages differ, sorted, with all packages that have it.

    files: package -> its packed files. paths_of: a package's compressed paths; called only for those that differ.
    """
    first: dict[bytes, bytes] = {}
    differing = set[bytes]()
    for rows in files.values():
        for key, content in iter_unpack(_ROW, rows):
            if first.setdefault(key, content) != content:
                differing.add(key)
    if not differing:
        return []
    contents: dict[bytes, dict[str, str]] = {}
    for name, rows in sorted(files.items()):
        for key, content in iter_unpack(_ROW, rows):
            if key in differing:
                contents.setdefault(key, {})[name] = content.decode()
    listing = {next(iter(of_packages)) for of_packages in contents.values()}
    paths: dict[bytes, str] = {}
    for name in sorted(listing):
        for path in zlib.decompress(paths_of(name)).decode("utf-8", "surrogateescape").split("\n"):
            paths[_key(path)] = path
    # A path with a line feed in it is not among them.
    found = [Overlap(paths[key], of_packages) for key, of_packages in contents.items() if key in paths]
    return sorted(found, key=lambda each: each.path)


def _key(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
