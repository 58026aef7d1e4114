"""What an sdist says of its requirements without being built.

Sources: PEP 643 (metadata 2.2: what is not `Dynamic` holds for the wheel too); setuptools writes
`*.egg-info/requires.txt` into its sdists, which is what it found when the sdist was made.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator

from envspec.resolve.requirements import declared


def requirements(content: bytes, filename: str) -> tuple[str, ...]:
    """Requires-Dist of its PKG-INFO, else the lines of its requires.txt, else nothing."""
    files = dict(_texts(content, filename))
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
            yield from ((path, archive.read(path)) for path in archive.namelist() if path.endswith(wanted))
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(wanted) and (file := tar.extractfile(member)):
                yield member.name, file.read()
