"""One layer, made: its entries become a recipe in the folder of its key."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from isal import isal_zlib

from envspec.effects.files import place
from envspec.image import zstd_form
from envspec.image.content import Entry, GpuCodeFound, Source
from envspec.image.conveyor import Conveyor, Lane
from envspec.image.kept import new_file
from envspec.image.layer import Compression
from envspec.image.recipe import Head, head_path, table_of
from envspec.image.splice import Archives, Sink, Splicer, Ways
from envspec.image.tar import Listing


class Watch(Protocol):
    """Looks at what goes into one layer. It is asked for every entry that has data, in order."""

    def __call__(self, entry: Entry, /) -> Sink | None:
        """What takes the entry's unpacked bytes, if they are of interest."""
        ...

    def found(self) -> tuple[tuple[str, GpuCodeFound], ...]:
        """Asked once all is written: `Layer.found`."""
        ...


class _Tally:
    """Hash, size and CRC-32 of a stream."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.crc32 = 0

    def take(self, data: bytes) -> None:
        self._hash.update(data)
        self.size_bytes += len(data)
        self.crc32 = isal_zlib.crc32(data, self.crc32)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def make(source: Source, folder: Path, cache: Path, compression: Compression, watch: Watch | None) -> Head:
    """Write the recipe, and the zstd form where it is asked for; the folder is held by the caller.

    Raises:
        BadArchive, BadEntry: see `Splicer.add` and `Listing.add`. OSError: it can't be written.
    """
    tar, blob = _Tally(), _Tally()
    with contextlib.ExitStack() as stack:
        side = stack.enter_context(new_file(folder, "side"))
        zstd = stack.enter_context(zstd_form.packing(folder)) if compression is Compression.ZSTD else None
        archives = stack.enter_context(Archives())
        with Conveyor() as hashing, Conveyor() as packing:
            to_tar = hashing.lane(tar.take)
            to_blob = hashing.lane(blob.take)
            tars = (to_tar,) if zstd is None else (to_tar, packing.lane(zstd.write))
            splicer = Splicer(archives, Ways(side.write, _all(tars), to_blob.put))
            listing = Listing(source.title)
            for entry in source.entries():
                listing.add(entry)
                splicer.add(entry, None if watch is None or entry.data is None else watch(entry))
            splicer.end()
        table = table_of(splicer.pieces)
        head = Head(
            diff_id=tar.digest,
            tar_bytes=tar.size_bytes,
            digest=blob.digest,
            blob_bytes=blob.size_bytes,
            crc32=blob.crc32,
            created_by=source.title,
            found=() if watch is None else watch.found(),
            archives=tuple((_relative(path, cache), path.stat().st_size) for path in archives.paths),
            file=Path(side.name).name,
            side_bytes=side.tell(),
            table_bytes=len(table),
            table_crc32=isal_zlib.crc32(table),
        )
        side.write(table)
        side.flush()
        if zstd is not None:
            zstd.keep()
        place(head_path(folder), head.written())
    return head


def _all(lanes: Sequence[Lane]) -> Callable[[bytes], object]:
    if len(lanes) == 1:
        return lanes[0].put

    def put(data: bytes) -> None:
        for lane in lanes:
            lane.put(data)

    return put


def _relative(path: Path, cache: Path) -> str:
    """As a head tells of an archive: a cache that is moved, or mounted elsewhere, keeps its layers."""
    return str(path.relative_to(cache) if path.is_relative_to(cache) else path.absolute())
