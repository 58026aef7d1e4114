"""Files that two wheels install at one path: which wheels and which files, from their RECORDs alone.

The list of a wheel is packed: a stack has 60,000 files, which are compared whenever it is locked.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from struct import iter_unpack
from typing import Final, NamedTuple

from envspec.verifier.record import DATA, RecordEntry, installed_from

#: A file: 8 bytes of its path's hash, and as many of its content's.
_ROW: Final = "8s8s"


class Overlap(NamedTuple):
    """Files that two packages install with different content.

    paths: sorted; relative to site-packages, then those of the environment, such as `bin/tool`.
    """

    one: str
    other: str
    paths: tuple[str, ...]


def packed(entries: Iterable[RecordEntry]) -> tuple[bytes, bytes]:
    """The files of a wheel as `overlaps` compares them, and their paths, compressed; without those without a hash."""
    paths = {path: entry.digest for entry in entries if entry.digest and (path := installed_from(entry.path))}
    rows = b"".join(_key(path) + digest.encode("ascii", "replace")[:8].ljust(8) for path, digest in paths.items())
    return rows, zlib.compress("\n".join(paths).encode("utf-8", "surrogateescape"), 1)


def overlaps(files: Mapping[str, bytes], paths_of: Callable[[str], bytes]) -> list[Overlap]:
    """Every two packages that differ in a file of both.

    files: package -> its packed files. paths_of: a package's compressed paths; called only for those that differ.
    """
    first: dict[bytes, tuple[str, bytes]] = {}
    found: list[tuple[str, str, bytes]] = []
    for name, rows in sorted(files.items()):
        for key, content in iter_unpack(_ROW, rows):
            owner, known = first.setdefault(key, (name, content))
            if known != content and owner != name:
                found.append((owner, name, key))
    result = []
    for (one, other), rows_of_both in groupby(sorted(found), key=itemgetter(0, 1)):
        keys = {key for _, _, key in rows_of_both}
        names = zlib.decompress(paths_of(one)).decode("utf-8", "surrogateescape").split("\n")
        paths = sorted((name.startswith(DATA), name.removeprefix(DATA)) for name in names if _key(name) in keys)
        result.append(Overlap(one, other, tuple(path for _, path in paths)))
    return result


def _key(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
