"""A system's folder as the tar of a layer: the same bytes from the same packages."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer


#: What debootstrap writes of its own run and of this machine, of no use in an image; below a folder: what is in it.
_OF_THE_RUN: Final = re.compile(
    r"(dev|proc|sys|run|tmp|var/tmp|debootstrap|var/log|var/cache/apt|var/lib/apt/lists)/.*"
    r"|debootstrap|etc/(hostname|resolv\.conf|mtab|\.pwd\.lock)|var/cache/ldconfig/.*|var/lib/systemd/.*"
    r"|var/(lib/dpkg|cache/debconf)/[^/]*-old|var/lib/dpkg/lock.*|etc/(passwd|group|shadow|gshadow)-"
)
#: Files that come from the packages keep their times, or Debian's bytecode would be stale; all others get this one.
_TIME: Final = 1_577_836_800
#: Days since 1970 of the last change of a password, third in a row of /etc/shadow.
_CHANGED: Final = re.compile(rb"(?m)^([^:\n]+:[^:\n]*:)\d+:")


@dataclass(frozen=True, slots=True)
class Packed:
    """A gzip blob named by its digest. diff_id: of the tar in it."""

    diff_id: str
    digest: str
    size_bytes: int


Member = tuple[tarfile.TarInfo, IO[bytes] | None]


def system(root: Path, started: float) -> Iterator[Member]:
    """Everything below `root` that belongs into an image, in order. started: when nothing of it was there yet."""
    hard: dict[tuple[int, int], str] = {}
    for path in sorted(_walk(root), key=str):
        name = path.relative_to(root).as_posix()
        if _OF_THE_RUN.fullmatch(name):
            continue
        found = path.lstat()
        member = _member(name, found, started)
        first = hard.setdefault((found.st_dev, found.st_ino), name)
        if stat.S_ISDIR(found.st_mode):
            member.type = tarfile.DIRTYPE
            yield member, None
        elif stat.S_ISLNK(found.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            yield member, None
        elif first != name:
            member.type, member.linkname = tarfile.LNKTYPE, first
            yield member, None
        elif stat.S_ISREG(found.st_mode):
            yield _file(member, _content(path, name))


def cuda() -> Iterator[Member]:
    """What NVIDIA's base image has where wheels bring the libraries: folders, and a name without the version."""
    for name in ("usr/local/cuda-12.8", "usr/local/cuda-12.8/lib64", "usr/local/cuda-12.8/bin"):
        folder = _plain(name, 0o755)
        folder.type = tarfile.DIRTYPE
        yield folder, None
    yield link("usr/local/cuda", "cuda-12.8")


def file(name: str, content: bytes, mode: int) -> Member:
    """A file of a layer, of the same time as all."""
    return _file(_plain(name, mode), content)


def link(name: str, target: str) -> Member:
    """A symbolic link of a layer."""
    member = _plain(name, 0o777)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member, None


def pack(members: Iterable[Member], blobs: Path) -> Packed:
    """Write them as a blob; the same members give the same bytes, with the same zlib."""
    with tempfile.NamedTemporaryFile(dir=blobs, delete=False) as raw:
        outer = _Hashing(raw)
        with gzip.GzipFile(filename="", mode="wb", fileobj=outer, mtime=0, compresslevel=6) as packed:
            inner = _Hashing(packed)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for member, content in members:
                    tar.addfile(member, content)
    path = Path(raw.name)
    size = path.stat().st_size
    path.chmod(0o644)
    path.rename(blobs / outer.digest.removeprefix("sha256:"))
    return Packed(inner.digest, outer.digest, size)


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*folders, *files))


def _plain(name: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = mode, _TIME
    return member


def _member(name: str, found: os.stat_result, started: float) -> tarfile.TarInfo:
    member = _plain(name, stat.S_IMODE(found.st_mode))
    member.uid, member.gid = found.st_uid, found.st_gid
    if not stat.S_ISDIR(found.st_mode) and found.st_mtime < started:
        member.mtime = int(found.st_mtime)
    return member


def _content(path: Path, name: str) -> bytes:
    content = path.read_bytes()
    if name == "etc/machine-id":
        return b""
    return _CHANGED.sub(rb"\g<1>18262:", content) if name == "etc/shadow" else content


def _file(member: tarfile.TarInfo, content: bytes) -> Member:
    member.size = len(content)
    return member, io.BytesIO(content)


class _Hashing(io.BufferedIOBase):
    """A file that is hashed as it is written."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        super().__init__()
        self._file, self._hash = file, hashlib.sha256()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        self._hash.update(data)
        return self._file.write(data)
