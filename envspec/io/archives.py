"""What is accepted of an archive that anyone may have made: its paths, and how much it unpacks to."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import posixpath
import tarfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, cast

from envspec.names import is_whiteout

#: Of a whole archive: 100 times its size, over a start. The largest ratio among 1,085 wheels of the index is 18, and a
#: file of zeros alone has 1,000.
MAX_RATIO: Final = 100
MOST_AT_LEAST: Final = 64 << 20
#: Of an sdist; the largest wheel of torch has 15,000.
MAX_MEMBERS: Final = 100_000
#: No METADATA, RECORD or PKG-INFO is larger; what says so is broken, or wants to fill the memory.
MAX_METADATA_BYTES: Final = 32 << 20

#: NAME_MAX of the file systems that environments and layers of images are unpacked on, in bytes.
LONGEST_NAME: Final = 255
#: PATH_MAX of Linux is 4,096 bytes with the environment's own folder, which has up to 255, before it.
LONGEST_PATH: Final = 3840
#: Folders within each other; Python's own `rmtree` gives up at 1,000.
DEEPEST: Final = 200
#: Control characters and separators of lines: they break the line formats that paths stand in (RECORD, tar, logs).
_BREAKING: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
#: Overrides of the writing direction: what a terminal shows is then not the path.
_TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def path_problem(path: str) -> str | None:
    """What is wrong with a path that an archive gives for a file: what follows its name in a message; None if nothing.

    A path is relative, with `/` between its parts. `.` and empty parts are no fault of their own.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\\" in path or path[1:2] == ":" or not set(parts) - {"", "."}:
        return "would be put outside of its folder"
    if is_whiteout(path):
        return "would hide files of an image's lower layers"
    if len(parts) > DEEPEST:
        return f"is more than {DEEPEST} folders deep"
    # Nearly all paths of 10,000 are plain, and need no look at each character.
    plain = path.isascii() and path.isprintable()
    if not plain and any(unicodedata.category(each) in _BREAKING or each in _TURNING for each in path):
        return "has a control character in its name"
    if plain and len(path) <= LONGEST_NAME:
        return None
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        return f"has a name of more than {LONGEST_NAME} bytes"
    return f"has a path of more than {LONGEST_PATH} bytes" if len(path.encode()) > LONGEST_PATH else None


def parents_of(path: str) -> Iterator[str]:
    """The folders that a path is in, the innermost first."""
    while path := posixpath.dirname(path):
        yield path


def max_unpacked_bytes(packed: int) -> int:
    """The most that an archive of `packed` bytes may unpack to: more is a bomb."""
    return packed * MAX_RATIO + MOST_AT_LEAST


def bounded_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of a tar.

    Raises:
        tarfile.ReadError: there are more than `MAX_MEMBERS`; another TarError: it can't be read.
    """
    for number, member in enumerate(tar):
        if number >= MAX_MEMBERS:
            raise tarfile.ReadError(f"it holds more than {MAX_MEMBERS} files, which is a bomb")
        yield member


@contextmanager
def bounded_tar(file: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """A tar, packed by gzip, bzip2, xz or not at all, that unpacks to `max_unpacked_bytes` of its size, headers included.

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
    """The first bytes of a stream; reading or seeking behind them fails before it takes memory."""

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
