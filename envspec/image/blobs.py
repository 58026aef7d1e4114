"""Blobs as files under their digest: layers of base images, configs, manifests that were fetched once."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from envspec.errors import EnvspecError, NetworkError
from envspec.lock.disk import FULL
from envspec.registry.blob import Descriptor
from envspec.registry.reference import is_digest

_CHUNK: Final = 1 << 20


class CannotKeep(EnvspecError):
    """envspec's cache can't be written: no space, no permission."""

    exit_code = 6


class WrongBlob(NetworkError):
    """Bytes that are not those of the digest."""


@dataclass(frozen=True, slots=True)
class FileBlob:
    """A blob that is a file of its own."""

    path: Path
    descriptor: Descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while data := file.read(_CHUNK):
                yield data


@dataclass(frozen=True, slots=True)
class CheckedBlob:
    """A blob of the store, whose bytes may have changed since they were checked: disks fail, and people write there."""

    path: Path
    descriptor: Descriptor

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes. Those of a damaged blob end in WrongBlob where they are read from the beginning; it is removed."""
        seen = hashlib.new(self.descriptor.digest.partition(":")[0])
        for data in FileBlob(self.path, self.descriptor).chunks(start):
            seen.update(data)
            yield data
        if start == 0 and seen.hexdigest() != self.descriptor.digest.partition(":")[2]:
            raise _damaged(self.path, self.descriptor)


class BlobStore:
    """`<cache>/blobs/<algorithm>/<hex>`. A blob gets its name when it is whole and checked."""

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

    def open(self, descriptor: Descriptor) -> CheckedBlob:
        """The blob. Reading it from its beginning raises WrongBlob where it is damaged.

        Raises:
            FileNotFoundError: it is not here. WrongBlob: its file has another size.
        """
        path = self.path(descriptor.digest)
        if path.stat().st_size != descriptor.size_bytes:
            raise _damaged(path, descriptor)
        return CheckedBlob(path, descriptor)

    def read(self, digest: str) -> bytes | None:
        """A small document, checked; None where it is not here, or damaged: then it is to be fetched again."""
        try:
            body = self.path(digest).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        algorithm, _, value = digest.partition(":")
        return body if hashlib.new(algorithm, body).hexdigest() == value else None

    @contextlib.contextmanager
    def writer(self, descriptor: Descriptor) -> Iterator[Callable[[bytes], object]]:
        """Gives what takes the blob's bytes; without a fault it has its name when this is left, else nothing is.

        Raises:
            WrongBlob: other bytes than the descriptor's. CannotKeep: no space, no permission.
        """
        with keeping(self._folder):
            path = self.path(descriptor.digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            beside = Path(name)
            try:
                with os.fdopen(handle, "wb", buffering=0) as file:
                    checked = _Checked(file, descriptor)
                    yield checked.write
                    checked.end()
                beside.chmod(0o644)
                beside.replace(path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise

    def put(self, data: bytes, media_type: str) -> Descriptor:
        """Keep a small document."""
        descriptor = Descriptor(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
        if not self.has(descriptor):
            with self.writer(descriptor) as write:
                write(data)
        return descriptor

    def adopt(self, descriptor: Descriptor, path: Path) -> FileBlob:
        """Check a file that was fetched into this store's file system, and give it its name.

        Raises:
            WrongBlob: other bytes than the descriptor's; the file stays. CannotKeep: it can't be moved.
        """
        seen = hashlib.new(descriptor.digest.partition(":")[0])
        for chunk in FileBlob(path, descriptor).chunks():
            seen.update(chunk)
        _check_size(descriptor, path.stat().st_size)
        _check_digest(descriptor, seen.hexdigest())
        with keeping(self._folder):
            place = self.path(descriptor.digest)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        return FileBlob(place, descriptor)


class _Checked:
    """Writes and hashes; a blob that is longer than it should be never fills the disk."""

    def __init__(self, file: IO[bytes], descriptor: Descriptor) -> None:
        self._file = file
        self._descriptor = descriptor
        self._seen = hashlib.new(descriptor.digest.partition(":")[0])
        self._size = 0

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._descriptor.size_bytes:
            _check_size(self._descriptor, self._size)
        self._seen.update(data)
        write_all(self._file, data)

    def end(self) -> None:
        _check_size(self._descriptor, self._size)
        _check_digest(self._descriptor, self._seen.hexdigest())


def _damaged(path: Path, descriptor: Descriptor) -> WrongBlob:
    """A blob that is not what it was when it was fetched; without it the next run fetches it again."""
    with contextlib.suppress(OSError):
        path.unlink()
    return WrongBlob(
        f"envspec's copy of {descriptor.digest}, {path}, was damaged after it had been fetched",
        hint="it is removed; run the same command again, and look after the disk",
    )


def _check_size(descriptor: Descriptor, size: int) -> None:
    if size != descriptor.size_bytes:
        raise WrongBlob(
            f"{descriptor.digest} has {size} bytes, where {descriptor.size_bytes} were told of",
            hint="nothing of it was kept; try again, and if it stays so the registry's copy is damaged",
        )


def _check_digest(descriptor: Descriptor, found: str) -> None:
    if found != descriptor.digest.partition(":")[2]:
        raise WrongBlob(
            f"the bytes under {descriptor.digest} are others: their hash is {found}",
            hint="nothing of it was kept; try again, and if it stays so the registry's copy is damaged",
        )


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file: the system may take less than it is given, on a disk that is almost full."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextlib.contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Turns the system's faults while `folder` is written into CannotKeep."""
    try:
        yield
    except OSError as fault:
        if fault.errno in FULL:
            raise CannotKeep(
                f"no space left in envspec's cache, {folder}: {fault.strerror}",
                hint="make room, or name another place by ENVSPEC_CACHE_DIR; what was made so far is kept",
            ) from fault
        if fault.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}:
            raise CannotKeep(
                f"envspec's cache can't be used: {fault.filename or folder}: {fault.strerror}",
                hint="make it readable and writable, or name another place by ENVSPEC_CACHE_DIR",
            ) from fault
        raise
