"""Bases that contain Python and packages, as made layers: METADATA, RECORD, and a torch whose library has GPU code."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence

from tests.support.builders.cuda_library import CUBIN, Code, container, library
from tests.support.builders.wheels import core_metadata
from tests.support.builders.zips import tarred

#: Of Debian's Python, where pip installs as root.
SITE = "usr/local/lib/python3.11/dist-packages"
#: Content of a symbolic link: `Link("python3.11")`.
Files = Mapping[str, "bytes | Link | Folder"]


class Folder:
    """Content of a folder's entry."""


class Link(str):
    """The target of a symbolic link."""

    __slots__ = ()


def layer(*parts: Files) -> bytes:
    """A layer's tar."""
    members = []
    for path, content in (each for part in parts for each in part.items()):
        info = tarfile.TarInfo(path)
        if isinstance(content, Link):
            info.type, info.linkname = tarfile.SYMTYPE, str(content)
        elif isinstance(content, Folder):
            info.type = tarfile.DIRTYPE
        members.append((info, content if isinstance(content, bytes) else b""))
    return tarred(members)


def system(python: str = "3.11.7", glibc: str = "2.36") -> Files:
    """Debian's Python and C library, as far as they are read."""
    series = ".".join(python.split(".")[:2])
    return {
        "bin": Link("usr/bin"),
        f"usr/bin/python{series}": b"\x7fELF" + bytes(5000) + b"\0" + python.encode() + b"\0" + bytes(5000),
        "usr/bin/python3": Link(f"python{series}"),
        "usr/lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF"
        + b"GNU C Library (Debian) stable release version %s." % glibc.encode(),
    }


def distribution(name: str, version: str, requires: Sequence[str] = (), site: str = SITE) -> dict[str, bytes | Link]:
    """An installed package, as far as pip records it."""
    folder = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
    return {
        f"{site}/{name}/__init__.py": b"",
        f"{folder}/METADATA": core_metadata(name, version, requires=requires),
        f"{folder}/RECORD": f"{name}/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n".encode(),
        f"{folder}/INSTALLER": b"pip\n",
    }


def torch(version: str, requires: Sequence[str] = (), sm: Sequence[int] = (80, 90), site: str = SITE) -> Files:
    """A torch with SASS for these; without any, one for the CPU."""
    code = library([(".nv_fatbin", container([Code(CUBIN, each) for each in sm]))])
    libraries = {f"{site}/torch/lib/libtorch_cuda.so": code} if sm else {}
    return {**distribution("torch", version, requires, site), **libraries}
