"""A blob's file while it is fetched: hashed on its way in, held against other processes, named when it is whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from envspec.errors import EnvspecError
from envspec.registry.blob import Descriptor

_READ_BYTES: Final = 1024 * 1024


class CannotKeep(EnvspecError):
    """A blob that this machine has no room for, or no right to write."""

    exit_code = 6

    def __init__(self, path: Path, fault: OSError) -> None:
        super().__init__(
            f"{path} can't be written: {fault.strerror or fault}",
            hint="make room, or the folder writable, and try again",
        )


@dataclass(slots=True)
class Kept:
    """The file that a blob goes into, and the hash of what is in it."""

    file: IO[bytes]
    path: Path
    descriptor: Descriptor
    report: Callable[[int], None]
    size: int = 0
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    async def take_up(self) -> None:
        """Hash what an earlier run left; nothing of it where it is too much to be a part."""
        self._hash = hashlib.new(self.descriptor.digest.partition(":")[0])
        try:
            self.size = await asyncio.to_thread(_hash_file, self.file, self._hash)
        except OSError as fault:
            raise CannotKeep(self.path, fault) from fault
        self.report(self.size)
        if self.size > self.descriptor.size_bytes:
            await self.empty()

    async def empty(self) -> None:
        """Begin anew."""
        self.report(-self.size)
        self.size, self._hash = 0, hashlib.new(self._hash.name)
        self.file.seek(0)
        self.file.truncate()

    async def write(self, pieces: Sequence[bytes]) -> None:
        """Write and hash, in a thread."""
        try:
            self.size += await asyncio.to_thread(_write, self.file, self._hash, pieces)
        except OSError as fault:
            raise CannotKeep(self.path, fault) from fault

    @property
    def is_right(self) -> bool:
        """Whether it is the blob."""
        return f"{self._hash.name}:{self._hash.hexdigest()}" == self.descriptor.digest

    async def keep(self, unfinished: Path) -> None:
        """Give it its name."""
        try:
            await asyncio.to_thread(_name, self.file, unfinished, self.path)
        except OSError as fault:
            raise CannotKeep(self.path, fault) from fault


def _name(file: IO[bytes], unfinished: Path, path: Path) -> None:
    os.fsync(file.fileno())
    unfinished.replace(path)


def _write(file: IO[bytes], computed: hashlib._Hash, pieces: Sequence[bytes]) -> int:
    for piece in pieces:
        computed.update(piece)
        view = memoryview(piece)
        while view:
            view = view[file.write(view) :]
    return sum(map(len, pieces))


def _hash_file(file: IO[bytes], computed: hashlib._Hash) -> int:
    size = 0
    while data := file.read(_READ_BYTES):
        computed.update(data)
        size += len(data)
    return size


def is_whole(path: Path, descriptor: Descriptor) -> bool:
    computed = hashlib.new(descriptor.digest.partition(":")[0])
    try:
        with path.open("rb", buffering=0) as file:
            size = _hash_file(file, computed)
    except FileNotFoundError:
        return False
    return size == descriptor.size_bytes and f"{computed.name}:{computed.hexdigest()}" == descriptor.digest
