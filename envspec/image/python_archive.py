"""A standalone build of Python as its archive has it, checked: what is in it, before anything is made of it.

Source: python-build-standalone, `docs/distributions.rst`: all of an `install_only` archive is below `python/`.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from envspec.effects.archives import above
from envspec.errors import EnvspecError
from envspec.names import is_whiteout

#: The one folder of such an archive.
TOP: Final = "python"


class BadPython(EnvspecError):
    """A standalone build that is not laid out as those builds are, or must not be unpacked."""

    exit_code = 5

    def __init__(self, archive: str, what: str) -> None:
        super().__init__(
            f"{archive}: {what}",
            hint="its hash is the lock's, so it was published like this: take another patch of Python, and report it",
        )


@dataclass(frozen=True, slots=True)
class Member:
    """A file or link of the archive. path: below `python/`. target: a link's, in the archive's own terms."""

    path: str
    info: tarfile.TarInfo

    @property
    def is_program(self) -> bool:
        return bool(self.info.mode & 0o111)


@contextmanager
def reading(archive: Path) -> Iterator[tarfile.TarFile]:
    """The archive, open.

    Raises:
        BadPython: it is damaged. OSError: it can't be read.
    """
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError) as fault:
        raise BadPython(archive.name, f"it can't be unpacked ({fault})") from fault


def members(archive: Path, tar: tarfile.TarFile) -> Iterator[Member]:
    """All files and links, in the archive's order.

    Raises:
        BadPython: a path or a link that leads out, one path twice, or something that is no file, folder or link.
    """
    seen: set[str] = set()
    links: set[str] = set()
    for info in tar:
        path = _inside(archive, info.name)
        if info.isdir():
            continue
        if not path:
            raise BadPython(archive.name, f"{info.name!r} is in it, which is not below {TOP}/")
        if path in seen:
            raise BadPython(archive.name, f"{info.name!r} is in it twice")
        if not links.isdisjoint(above(path)):
            raise BadPython(archive.name, f"{info.name!r} is behind a link of it")
        seen.add(path)
        if info.issym():
            links.add(path)
            _inside(archive, posixpath.join(posixpath.dirname(info.name), info.linkname), info)
        elif info.islnk():
            if _inside(archive, info.linkname, info) not in seen:
                raise BadPython(archive.name, f"{info.name!r} is a link to {info.linkname!r}, which is not before it")
        elif not info.isfile():
            raise BadPython(archive.name, f"{info.name!r} is no file, folder or link")
        yield Member(path, info)


def content(tar: tarfile.TarFile, member: Member) -> bytes:
    """The bytes of a file."""
    file: IO[bytes] | None = tar.extractfile(member.info)
    return file.read() if file is not None else b""


def _inside(archive: Path, name: str, link: tarfile.TarInfo | None = None) -> str:
    """The path below `python/` that a name of the archive means. link: whose target it is."""
    parts = name.rstrip("/").split("/")
    if link is not None:
        parts = posixpath.normpath(name).split("/")
    if link is None and is_whiteout(name):
        raise BadPython(archive.name, f"{name!r} is in it, which would hide files of an image's lower layers")
    bad = name.startswith("/") or parts[0] != TOP or not {"", ".", ".."}.isdisjoint(parts) or "\\" in name
    if bad or (link is not None and link.linkname.startswith("/")):
        what = f"the link {link.name!r} leads to {link.linkname!r}" if link else f"{name!r} is in it"
        raise BadPython(archive.name, f"{what}, which is not below {TOP}/")
    return "/".join(parts[1:])
