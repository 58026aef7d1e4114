"""A layer's zstd form: a file of its own beside the layer's recipe."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from envspec.image.layers.recipe import FORM, new_file
from envspec.image.layers.threads import Conveyor
from envspec.io.files import write_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: zstd's own default. In one thread: layers are packed side by side, and zstd's own threads take 100 MB and more each.
_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """The head of the form, `<form>.zstd.json`. file: the blob's name beside it."""

    digest: str
    blob_bytes: int
    file: str


def head_path(folder: Path) -> Path:
    return folder / f"{FORM}.zstd.json"


def read(folder: Path) -> Kept | None:
    """The form, if it was made and its file is whole."""
    try:
        kept = Kept(**json.loads(head_path(folder).read_bytes()))
        return kept if (folder / kept.file).stat().st_size == kept.blob_bytes else None
    except (OSError, ValueError, TypeError):
        return None


class Packing:
    """Takes a tar; `keep` ends it and gives it its head."""

    def __init__(self, folder: Path, file: IO[bytes]) -> None:
        self._folder = folder
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0
        self._packer = zstd.ZstdCompressor(level=_LEVEL)

    def write(self, data: bytes) -> None:
        self._write(self._packer.compress(data))

    def keep(self) -> None:
        self._write(self._packer.flush())
        self._file.flush()
        kept = Kept(f"sha256:{self._hash.hexdigest()}", self._size, Path(self._file.name).name)
        write_file(head_path(self._folder), json.dumps(asdict(kept)).encode())

    def _write(self, packed: bytes) -> None:
        self._hash.update(packed)
        self._size += len(packed)
        self._file.write(packed)


@contextlib.contextmanager
def packing(folder: Path) -> Iterator[Packing]:
    """What packs a tar into a new file of the layer's folder; without `keep` the file goes."""
    with new_file(folder, "zst") as file:
        yield Packing(folder, file)


def pack(folder: Path, chunks: Iterable[bytes]) -> None:
    """Make the form from the layer's tar."""
    with packing(folder) as packer:
        with Conveyor() as conveyor:
            lane = conveyor.lane(packer.write)
            for chunk in chunks:
                lane.put(chunk)
        packer.keep()
