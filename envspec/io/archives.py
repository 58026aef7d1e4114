"""Checks of untrusted archives: their paths, their unpacked size, and that no path has two owners."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import operator
import posixpath
import tarfile
import unicodedata
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import IO, Final, Generic, TypeVar, cast

from envspec.errors import NoSolution
from envspec.names import is_whiteout

T = TypeVar("T")

#: An archive may unpack to 64 MiB and 100 times its size. The largest ratio among 1,085 wheels of the index is 18; a
#: file of zeros has 1,000.
MAX_RATIO: Final = 100
MIN_UNPACKED_BYTES: Final = 64 << 20
#: Of an sdist; the largest wheel of torch has 15,000.
MAX_MEMBERS: Final = 100_000
#: No METADATA, RECORD or PKG-INFO is larger.
MAX_METADATA_BYTES: Final = 32 << 20

#: NAME_MAX of the file systems that environments and layers of images are unpacked on, in bytes.
MAX_NAME_BYTES: Final = 255
#: PATH_MAX of Linux is 4,096 bytes, including the environment's own folder, which has up to 255.
MAX_PATH_BYTES: Final = 3840
#: Nested folders; Python's `rmtree` fails at 1,000.
MAX_DEPTH: Final = 200
#: Control characters and line separators break line formats that contain paths (RECORD, tar, logs).
_BREAKING: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
#: Overrides of the writing direction: a terminal then shows another path.
_TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def path_problem(path: str) -> str | None:
    """What is wrong with a file's path in an archive, as text after its name; None if nothing.

    Paths are relative, with `/` between their parts; `.` and empty parts are allowed.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\\" in path or path[1:2] == ":" or not set(parts) - {"", "."}:
        return "would be put outside of its folder"
    if is_whiteout(path):
        return "would hide files of an image's lower layers"
    if len(parts) > MAX_DEPTH:
        return f"is more than {MAX_DEPTH} folders deep"
    # Nearly all paths are plain and need no check of each character.
    plain = path.isascii() and path.isprintable()
    if not plain and any(unicodedata.category(each) in _BREAKING or each in _TURNING for each in path):
        return "has a control character in its name"
    if plain and len(path) <= MAX_NAME_BYTES:
        return None
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        return f"has a name of more than {MAX_NAME_BYTES} bytes"
    return f"has a path of more than {MAX_PATH_BYTES} bytes" if len(path.encode()) > MAX_PATH_BYTES else None


def parents_of(path: str) -> Iterator[str]:
    """The folders above a path, the innermost first."""
    while path := posixpath.dirname(path):
        yield path


def max_unpacked_bytes(packed: int) -> int:
    """The size that an archive of `packed` bytes may unpack to: more is a bomb."""
    return packed * MAX_RATIO + MIN_UNPACKED_BYTES


def bounded_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of a tar. Raises tarfile.TarError if there are more than `MAX_MEMBERS`, or it can't be read."""
    for number, member in enumerate(tar):
        if number >= MAX_MEMBERS:
            raise tarfile.ReadError(f"it contains more than {MAX_MEMBERS} files, which is a bomb")
        yield member


@contextmanager
def bounded_tar(file: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """A tar, compressed by gzip, bzip2, xz or not at all, limited to `max_unpacked_bytes` including headers.

    file: at its start; closed by the caller.

    Raises:
        tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError: it can't be read, or is a bomb.
    """
    magic = file.read(6)
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        plain: IO[bytes] = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    elif magic.startswith(b"BZh"):
        plain = cast("IO[bytes]", bz2.BZ2File(file))
    elif magic.startswith(b"\xfd7zXZ\0"):
        plain = cast("IO[bytes]", lzma.LZMAFile(file))  # noqa: SIM115 (the caller closes what it reads)
    else:
        plain = file
    with tarfile.open(fileobj=cast("IO[bytes]", _Bounded(plain, max_unpacked_bytes(size))), mode="r:") as tar:
        yield tar


class _Bounded(io.RawIOBase):
    """A stream that fails if read or sought beyond a limit, before it allocates memory."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._most = stream, most

    def read(self, size: int = -1) -> bytes:
        if size < 0 or self._stream.tell() + size > self._most:
            self._check(self._stream.tell() + max(0, size))
            size = self._most - self._stream.tell()
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            self._check(offset)
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def _check(self, end: int) -> None:
        if end > self._most:
            raise tarfile.ReadError(f"it unpacks to more than {self._most} bytes, which is a bomb")


class FileConflict(NoSolution, code="file-conflict"):
    """Two packages of the lock have different files at one path."""

    def __init__(self, path: str, one: str, other: str) -> None:
        super().__init__(
            f"{path} belongs to {one} and to {other}, with different content",
            hint="lock again: the warning says which one to keep, or how to name the owner of the file (file_owner)",
        )


class PathOwners(Generic[T]):
    """Path -> its first owner and content. is_same: whether two contents are equal, which is no conflict."""

    def __init__(self, is_same: Callable[[T, T], bool] = operator.eq) -> None:
        self.first: dict[str, tuple[str, T]] = {}
        self._is_same = is_same

    def add(self, path: str, owner: str, content: T) -> None:
        """Raises FileConflict if another owner has something else at the path."""
        first_owner, first = self.first.setdefault(path, (owner, content))
        if first is not content and not self._is_same(first, content):
            raise FileConflict(path, first_owner, owner)

    @property
    def owners(self) -> dict[str, str]:
        return {path: owner for path, (owner, _) in self.first.items()}


def link_above(path: str, links: Container[str]) -> str | None:
    """The innermost of these links that a path is behind."""
    return next((folder for folder in parents_of(path) if folder in links), None)
