"""What an sdist says of its requirements without being built.

Sources: PEP 643 (metadata 2.2: what is not `Dynamic` holds for the wheel too); setuptools writes
`*.egg-info/requires.txt` into its sdists, which is what it found when the sdist was made.
"""

from __future__ import annotations

import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator

from envspec.effects.archives import LARGEST_METADATA, bounded_tar, counted
from envspec.errors import NetworkError
from envspec.resolve.requirements import declared


class BadSdist(NetworkError):
    """An sdist of the index that can't be read."""

    def __init__(self, filename: str, fault: Exception) -> None:
        super().__init__(
            f"{filename}: it can't be read ({' '.join(str(fault).split())})",
            hint="it was published like this: take another version, and report it to its publisher",
        )


def requirements(content: bytes, filename: str) -> tuple[str, ...]:
    """Requires-Dist of its PKG-INFO, else the lines of its requires.txt, else nothing.

    Raises:
        BadSdist: it is no archive that can be read within the bounds of `effects.archives`.
    """
    try:
        files = dict(_texts(content, filename))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as fault:
        raise BadSdist(filename, fault) from fault
    except (RuntimeError, NotImplementedError) as fault:
        # zipfile's words for an encrypted member, and for a method of packing that it does not have.
        raise BadSdist(filename, fault) from fault
    info = next((body for path, body in files.items() if path.count("/") == 1 and path.endswith("/PKG-INFO")), b"")
    found = declared(info)
    if found or b"Dynamic: Requires-Dist" in info:
        return found
    listed = next((body for path, body in files.items() if path.endswith(".egg-info/requires.txt")), b"")
    return tuple(_sections(listed.decode("utf-8", "replace")))


def _sections(text: str) -> Iterator[str]:
    """requires.txt has plain requirements first, then `[extra]` and `[extra:marker]` sections."""
    marker = ""
    for line in text.splitlines():
        section = re.fullmatch(r"\[([^\]:]*)(?::([^\]]*))?\]", line.strip())
        if section:
            extra = f"extra == '{section[1]}'" if section[1] else ""
            marker = " and ".join(part for part in (extra, f"({section[2]})" if section[2] else "") if part)
        elif line.strip():
            yield f"{line.strip()} ; {marker}" if marker else line.strip()


def _texts(content: bytes, filename: str) -> Iterator[tuple[str, bytes]]:
    wanted = ("/PKG-INFO", ".egg-info/requires.txt")
    if filename.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.filename.endswith(wanted):
                    _check_size(info.filename, info.file_size)
                    yield info.filename, archive.read(info)
        return
    with bounded_tar(io.BytesIO(content)) as tar:
        for member in counted(tar):
            if member.isfile() and member.name.endswith(wanted):
                _check_size(member.name, member.size)
                if member.issparse():
                    raise tarfile.ReadError(f"{member.name!r} is a sparse file")
                if file := tar.extractfile(member):
                    yield member.name, file.read()


def _check_size(path: str, size_bytes: int) -> None:
    if size_bytes > LARGEST_METADATA:
        raise tarfile.ReadError(f"{path!r} has {size_bytes} bytes, accepted are {LARGEST_METADATA}")
