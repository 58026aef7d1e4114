"""Bytes and lines between this process and a container."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Final

from envspec.effects.files import open_foreign
from envspec.image.system_script import WORK

_LAST_LINES: Final = 12

#: The files that a container gives, by name; each is read before the next one is asked for.
Outputs = Iterator[tuple[str, IO[bytes]]]


def in_folder(folder: Path) -> Outputs:
    """A folder's files. What wrote there may have left links, which lead anywhere, and what can't be read to an end."""
    for path in sorted(folder.iterdir()):
        try:
            file = open_foreign(path)
        except OSError:
            continue
        with file:
            yield path.name, file


def in_tar(stream: IO[bytes]) -> Outputs:
    """The files of a folder that comes as a tar."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                yield PurePosixPath(member.name).name, file


def packed(files: Mapping[str, bytes]) -> bytes:
    """A tar of WORK with these files, as an engine unpacks it at a container's root."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        folder = tarfile.TarInfo(WORK[1:])
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(f"{WORK[1:]}/{name}")
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Text that comes in pieces, by lines."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace").rstrip() for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace").rstrip()


def telling(lines: Iterable[str], told: Callable[[str], None]) -> list[str]:
    """Every line to who wants to know; gives the last ones, for a message."""
    kept: list[str] = []
    for line in filter(None, lines):
        told(line)
        kept = [*kept[1 - _LAST_LINES :], line]
    return kept


class Pieces:
    """Bytes that come in pieces, read as a file is read from its start to its end."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end only."""
        parts: list[memoryview] = []
        missing = size
        while missing:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
                if not self._rest:
                    break
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)
