"""CUDA 12.4's compiler from Debian's packages (non-free), as the layer of a stand-in for NVIDIA's devel image.

Debian 12 has CUDA 11.8: the packages are those of Debian 13, whose programs need a C library that Debian 12 has.
They are unpacked, not installed, and of the libraries the runtime alone; links lead to them from where NVIDIA's image
has them.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import subprocess
import tarfile
import urllib.request
import urllib.response
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.machines import NotRun, program, rootfs, standin

CUDA: Final = "12.4"
HOME: Final = f"usr/local/cuda-{CUDA}"
_SUITE: Final = "trixie"
#: nvcc and what it runs; headers and the runtime; CCCL's headers, which those of torch include.
_PACKAGES: Final = {
    "non-free": ("nvidia-cuda-toolkit", "nvidia-cuda-dev", "libcudart12"),
    "main": ("libcu++-dev", "libcub-dev", "libthrust-dev"),
}
_NEEDED: Final = re.compile(
    r"etc/nvcc\.profile|usr/bin/.+|usr/include/.+"
    r"|usr/lib/x86_64-linux-gnu/(libcudart\.so.*|libcudart_static\.a|libcudadevrt\.a)"
    r"|usr/lib/nvidia-cuda-toolkit/(bin|libdevice)/.+"
)
_LINKS: Final = {"bin": "/usr/bin", "include": "/usr/include", "lib64": "/usr/lib/x86_64-linux-gnu"}


def members(folder: Path) -> Iterator[rootfs.Member]:
    """The layer's members. folder: where the packages are kept.

    Raises:
        NotRun: Debian's archive has no such packages.
    """
    yield rootfs.link("usr/local/cuda", f"cuda-{CUDA}")
    for name, target in _LINKS.items():
        yield rootfs.link(f"{HOME}/{name}", target)
    for component, names in _PACKAGES.items():
        for path in _fetched(component, names, folder):
            yield from _of_package(path)


def _of_package(path: Path) -> Iterator[rootfs.Member]:
    words = [program("dpkg-deb"), "--fsys-tarfile", str(path)]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        for member in tar:
            member.name = member.name.removeprefix("./")
            if _NEEDED.fullmatch(member.name):
                yield member, tar.extractfile(member) if member.isfile() else None


def _fetched(component: str, names: tuple[str, ...], folder: Path) -> Iterator[Path]:
    archive = standin.mirror().rstrip("/")
    with _opened(f"{archive}/dists/{_SUITE}/{component}/binary-amd64/Packages.xz") as answer:
        listed = lzma.decompress(answer.read()).decode()
    for name in names:
        found = re.search(rf"(?ms)^Package: {re.escape(name)}\n.*?^Filename: (\S+)\n.*?^SHA256: (\w+)$", listed)
        if found is None:
            raise NotRun(f"Debian's {_SUITE} has no {name}")
        path = folder / f"{name}.deb"
        with _opened(f"{archive}/{found[1]}") as answer, path.open("wb") as file:
            digest = hashlib.sha256()
            while data := answer.read(1 << 20):
                digest.update(data)
                file.write(data)
        assert digest.hexdigest() == found[2], name
        yield path
        path.unlink()


def _opened(url: str) -> urllib.response.addinfourl:
    answer: urllib.response.addinfourl = urllib.request.urlopen(url, timeout=120)
    return answer
