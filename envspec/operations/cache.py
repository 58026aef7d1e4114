"""`envspec cache`: what is in the cache, and removing it.

An entry is what the cache keeps or loses as a whole: a wheel, an unpacked wheel, a layer. Entries are renamed before
they are removed: a kill leaves no half of one.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.io.cache import (
    BASE_CONTENTS,
    COMPILED,
    CONDA_PACKAGES,
    IMAGE_ACCOUNTS,
    CacheInUse,
    only_user_of,
)
from envspec.io.files import remove_tree

#: Kind -> what it is; in the order of reports.
KINDS: Final = {
    "archives": "wheels, sdists, conda packages and Pythons, as fetched or built",
    "unpacked": "wheels and conda packages as installed; environments have hard links to their files",
    "images": "layers, documents of base images, system packages",
    "pythons": "Pythons that compile modules for images",
    "compiled": "kernels that containers compiled",
    "indexes": "index pages, metadata, resolutions",
    "other": "what killed runs left, and folders of other versions",
}


#: Folder of the cache -> the kind of its entries.
_FOLDERS: Final = {
    "archives": "archives",
    "built": "archives",
    "uv": "indexes",
    CONDA_PACKAGES: "unpacked",
    "blobs": "images",
    "wheel-content": "images",
    BASE_CONTENTS: "images",
    IMAGE_ACCOUNTS: "images",
    "image-known": "images",
    "image-layers": "images",
    "image-owned": "images",
    "image-owners": "images",
    "system-layers": "images",
    "pythons": "pythons",
    COMPILED: "compiled",
    "conda": "indexes",
    "engines": "indexes",
    "index": "indexes",
}
#: How deep entries are below their folder, if they are not its children; a folder of another name is one entry.
_DEPTHS: Final = {"blobs": 2}
#: uv's folder of unpacked wheels, of any version of uv.
_UNPACKED: Final = "archive-v"
#: Entries on their way out.
_REMOVED: Final = "removed"


class CacheEntry(Struct, frozen=True):
    """What the cache keeps or removes as a whole.

    size_bytes: what its removal frees.
    shared_bytes: of files that are also elsewhere, by hard links.
    used: when one of its files was last written, read or linked, as far as the file system records it.
    """

    kind: str
    path: Path
    size_bytes: int
    shared_bytes: int
    used: datetime


class KindUsage(Struct, frozen=True):
    """All entries of one kind."""

    kind: str
    description: str
    entries: int
    size_bytes: int
    shared_bytes: int


class CacheUsage(Struct, frozen=True):
    """Bytes on disk, without files that environments share."""

    kinds: tuple[KindUsage, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.kinds)


class Removal(Struct, frozen=True):
    """What `remove` did, or would do. failed: paths that can't be removed, with the reason."""

    removed: CacheUsage
    kept: CacheUsage
    failed: tuple[str, ...] = ()


def entries(cache: Path) -> list[CacheEntry]:
    """Every entry of a cache."""
    return [_measure(kind, path) for kind, path in _paths(cache)]


def usage(found: Iterable[CacheEntry]) -> CacheUsage:
    """The sums by kind; kinds without entries are left out."""
    number, size_bytes, shared_bytes = Counter[str](), Counter[str](), Counter[str]()
    for entry in found:
        number[entry.kind] += 1
        size_bytes[entry.kind] += entry.size_bytes
        shared_bytes[entry.kind] += entry.shared_bytes
    kinds: list[KindUsage] = []
    for kind, description in KINDS.items():
        if number[kind]:
            kinds.append(KindUsage(kind, description, number[kind], size_bytes[kind], shared_bytes[kind]))
    return CacheUsage(tuple(kinds))


def choose(
    found: Sequence[CacheEntry],
    *,
    before: datetime | None = None,
    max_bytes: int | None = None,
    kinds: Sequence[str] = (),
) -> list[CacheEntry]:
    """The entries to remove. What an environment has hard links to is kept, unless all is removed: it takes no space.

    before: those not used since then.
    max_bytes: the longest unused, until the rest has no more. Without either: all.
    kinds: only these, by default all.
    """
    own = [each for each in found if each.kind in (kinds or KINDS)]
    if before is None and max_bytes is None:
        return own
    chosen = []
    rest = sum(each.size_bytes for each in found)
    for each in sorted(own, key=lambda each: each.used):
        is_unused = before is not None and each.used < before
        is_too_much = max_bytes is not None and rest > max_bytes
        if not each.shared_bytes and (is_unused or is_too_much):
            chosen.append(each)
            rest -= each.size_bytes
    return chosen


def remove(
    cache: Path,
    *,
    older_than: timedelta | None = None,
    max_bytes: int | None = None,
    kinds: Sequence[str] = (),
    now: datetime,
    dry_run: bool,
) -> Removal:
    """Remove the entries that `choose` chooses. A cache that does not exist is empty.

    Raises:
        CacheInUse: another envspec uses the cache.
    """
    if not cache.is_dir():
        return Removal(CacheUsage(()), CacheUsage(()))
    with only_user_of(cache):
        found = entries(cache)
        before = now - older_than if older_than is not None else None
        chosen = choose(found, before=before, max_bytes=max_bytes, kinds=kinds)
        kept = {each.path: each for each in found}
        removed, failed = [], []
        for entry in chosen:
            reason = "" if dry_run else _remove(entry, cache)
            if reason:
                failed.append(f"{entry.path}: {reason}")
            else:
                removed.append(kept.pop(entry.path))
        if not dry_run:
            with suppress(OSError):
                remove_tree(cache / _REMOVED)
    return Removal(usage(removed), usage(kept.values()), tuple(failed))


def _remove(entry: CacheEntry, cache: Path) -> str:
    """Remove one entry; why it can't be removed, else empty."""
    try:
        if entry.kind == "compiled" and entry.path.is_dir():
            with only_user_of(entry.path):
                remove_tree(entry.path)
            return ""
        trash = cache / _REMOVED
        trash.mkdir(exist_ok=True)
        moved = entry.path.rename(trash / secrets.token_hex(8))
        remove_tree(moved)
    except CacheInUse:
        return "a container uses it"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _paths(cache: Path) -> Iterator[tuple[str, Path]]:
    for top in _children(cache):
        kind = _FOLDERS.get(top.name, "other")
        if top.name == "uv":
            for folder in _children(top):
                if folder.name.startswith(_UNPACKED):
                    for path in _children(folder):
                        yield "unpacked", path
                else:
                    yield kind, folder
            continue
        depth = _DEPTHS.get(top.name, 0 if kind == "other" else 1)
        for path in _entries_below(top, depth):
            yield kind, path


def _entries_below(folder: Path, depth: int) -> Iterator[Path]:
    if depth == 0 or folder.is_symlink() or not folder.is_dir():
        yield folder
        return
    for child in _children(folder):
        yield from _entries_below(child, depth - 1)


def _children(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _measure(kind: str, path: Path) -> CacheEntry:
    files: dict[tuple[int, int], list[os.stat_result]] = {}
    used, own, shared = 0.0, 0, 0
    for status in _stat_all(path):
        if stat.S_ISDIR(status.st_mode):
            # Reading a folder, which this does, changes its times.
            own += _on_disk(status)
            continue
        used = max(used, status.st_atime, status.st_mtime, status.st_ctime)
        files.setdefault((status.st_dev, status.st_ino), []).append(status)
    for links in files.values():
        if links[0].st_nlink > len(links):
            shared += _on_disk(links[0])
        else:
            own += _on_disk(links[0])
    return CacheEntry(kind, path, own, shared, datetime.fromtimestamp(used, timezone.utc))


def _on_disk(status: os.stat_result) -> int:
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512


def _stat_all(path: Path) -> Iterator[os.stat_result]:
    """Of a path and all below it; what disappears meanwhile is left out."""
    with suppress(OSError):
        status = path.lstat()
        yield status
        if not stat.S_ISDIR(status.st_mode):
            return
    for parent, names, others in os.walk(path):
        for name in (*names, *others):
            with suppress(OSError):
                yield Path(parent, name).lstat()
