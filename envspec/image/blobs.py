"""Blobs as files under their digest: layers of base images, configs, manifests that were fetched once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.effects.cache import keeping
from envspec.effects.files import place
from envspec.errors import NetworkError
from envspec.registry.blob import Descriptor
from envspec.registry.reference import is_digest

_CHUNK: Final = 1 << 20


class WrongBlob(NetworkError):
    """Bytes that are not those of the digest."""


@dataclass(frozen=True, slots=True)
class FileBlob:
    """A blob that is a file of its own. It may have changed since it was written: disks fail, people write there."""

    path: Path
    descriptor: Descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes. Those of a damaged blob end in WrongBlob where they are read from the beginning; it is removed."""
        seen = hashlib.new(self.descriptor.digest.partition(":")[0])
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while data := file.read(_CHUNK):
                seen.update(data)
                yield data
        if start == 0 and seen.hexdigest() != self.descriptor.digest.partition(":")[2]:
            raise _damaged(self.path, self.descriptor)


class BlobStore:
    """`<cache>/blobs/<algorithm>/<hex>`: documents by `keep`, layers where `registry.pull` puts them."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / "blobs"

    def path(self, digest: str) -> Path:
        """Where the blob is, or would be.

        Raises:
            ValueError: not a digest.
        """
        if not is_digest(digest):
            raise ValueError(f"not a digest: {digest!r}")
        algorithm, _, value = digest.partition(":")
        return self._folder / algorithm / value

    def has(self, descriptor: Descriptor) -> bool:
        """Whether it is here, by its size: its bytes are looked at when they are read."""
        try:
            return self.path(descriptor.digest).stat().st_size == descriptor.size_bytes
        except (FileNotFoundError, NotADirectoryError):
            return False

    def open(self, descriptor: Descriptor) -> FileBlob:
        """The blob. Reading it from its beginning raises WrongBlob where it is damaged.

        Raises:
            FileNotFoundError: it is not here. WrongBlob: its file has another size.
        """
        path = self.path(descriptor.digest)
        if path.stat().st_size != descriptor.size_bytes:
            raise _damaged(path, descriptor)
        return FileBlob(path, descriptor)

    def read(self, digest: str) -> bytes | None:
        """A small document, checked; None where it is not here, or damaged: then it is to be fetched again."""
        try:
            body = self.path(digest).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return body if _hex_of(digest, body) == digest.partition(":")[2] else None

    def keep(self, digest: str, body: bytes) -> None:
        """Keep a small document.

        Raises:
            WrongBlob: it is not what the digest is of. CannotKeep: the cache can't be written.
        """
        path = self.path(digest)
        found = _hex_of(digest, body)
        if found != path.name:
            raise WrongBlob(
                f"the bytes under {digest} are others: their hash is {found}",
                hint="nothing of it was kept; try again, and if it stays so the registry's copy is damaged",
            )
        with keeping(self._folder):
            place(path, body)


def _damaged(path: Path, descriptor: Descriptor) -> WrongBlob:
    """A blob that is not what it was when it was written; without it the next run fetches or makes it again."""
    with contextlib.suppress(OSError):
        path.unlink()
    return WrongBlob(
        f"envspec's copy of {descriptor.digest}, {path}, was damaged after it had been written",
        hint="it is removed; run the same command again, and look after the disk",
    )


def _hex_of(digest: str, body: bytes) -> str:
    return hashlib.new(digest.partition(":")[0], body).hexdigest()
