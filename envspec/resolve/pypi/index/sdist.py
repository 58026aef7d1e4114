"""The requirements that an sdist states without being built.

Sources: PEP 643 (metadata 2.2: what is not `Dynamic` applies to the wheel too); setuptools writes
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
from typing import Final

from envspec.io.archives import MAX_METADATA_BYTES, bounded_members, bounded_tar
from envspec.resolve.pypi.metadata import declared, extras_of, metadata_file, parsed, requires_python

#: RuntimeError, NotImplementedError: zipfile's for an encrypted member and an unsupported compression.
_UNREADABLE: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, ValueError, RuntimeError, NotImplementedError),
)


class BadSdist(Exception):
    """An archive that cannot be read within the bounds of `io.archives`: nothing can be built from it."""


def metadata(content: bytes, filename: str, name: str, version: str) -> bytes:
    """The METADATA of an sdist's wheel, as far as the sdist states it; raises BadSdist if the archive cannot be read.

    Requirements are Requires-Dist of its PKG-INFO, else the lines of its requires.txt, else none.
    """
    try:
        files = dict(_texts(content, filename))
    except _UNREADABLE as error:
        raise BadSdist(f"its sdist cannot be read: {' '.join(str(error).split())}") from error
    info = next((body for path, body in files.items() if path.count("/") == 1 and path.endswith("/PKG-INFO")), b"")
    needs, extras = declared(info), set(extras_of(info))
    if not needs and b"Dynamic: Requires-Dist" not in info:
        # The nearest to the top: sdists of packaging tools also contain those of their test data.
        paths = sorted((path.count("/"), path) for path in files if path.endswith(".egg-info/requires.txt"))
        listed = files[paths[0][1]].decode("utf-8", "replace") if paths else ""
        needs = tuple(_sections(listed))
        extras |= set(re.findall(r"^\[([^\]:\n]+)[\]:]", listed, re.MULTILINE))
    python = requires_python(info)
    fields = [
        *([("Requires-Python", python)] if python else []),
        *(("Provides-Extra", extra) for extra in sorted(extras)),
        # A resolver skips a release with a line that it cannot read, and takes an older one.
        *(("Requires-Dist", each) for each in needs if parsed(each) is not None),
    ]
    return metadata_file(name, version, fields)


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
    suffixes = ("/PKG-INFO", ".egg-info/requires.txt")
    if filename.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                if info.filename.endswith(suffixes):
                    _check_size(info.filename, info.file_size)
                    yield info.filename, archive.read(info)
        return
    with bounded_tar(io.BytesIO(content)) as tar:
        for member in bounded_members(tar):
            if member.isfile() and member.name.endswith(suffixes):
                _check_size(member.name, member.size)
                if member.issparse():
                    raise tarfile.ReadError(f"{member.name!r} is a sparse file")
                if file := tar.extractfile(member):
                    yield member.name, file.read()


def _check_size(path: str, size_bytes: int) -> None:
    if size_bytes > MAX_METADATA_BYTES:
        raise tarfile.ReadError(f"{path!r} has {size_bytes} bytes, at most {MAX_METADATA_BYTES} are accepted")
