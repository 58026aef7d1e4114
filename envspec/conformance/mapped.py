"""The libraries that a process has in memory, as its map of memory says. Source: proc(5), maps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: CUDA's own, by NVIDIA's names, and what torch builds for it. Others' names begin alike: libcurl, libcups, libnvme.
#: The driver's come from the machine and not from a package: libcuda.so.1, libnvidia-ml.so.1; on WSL 2, all below
#: /usr/lib/wsl, libcuda_loader.so, libnvdxgdmal.so.1, libnvwgf2umx.so and more.
#: Sources: the libraries of CUDA 12.4 and 12.8 in NVIDIA's wheels; CUDA on WSL User Guide; nvidia-container-toolkit,
#: pkg/nvcdi/driver-wsl.go, `requiredDriverStoreFiles`. Read 2026-11.
_CUDA = re.compile(
    r"lib("
    r"cu(blas|dart|dnn|dss|fft|file|inj|pti|rand|solver|sparse|statevec|tensor)\w*"
    r"|nv(blas|comp|fatbin|imgcodec|infer|JitLink|jpeg|perf_|ptxcompiler|rtc|shmem|ToolsExt|tx|vm)\w*"
    r"|nccl|npp\w+|c10_cuda|torch_cuda\w*|caffe2_nvrtc"
    r")[._-].*"
)


@dataclass(frozen=True)
class Library:
    """A file that is mapped. is_there: whether the file at that path is the very one in memory."""

    path: str
    is_there: bool

    @property
    def name(self) -> str:
        return os.path.basename(self.path)  # noqa: PTH119 (a text of the system's)

    @property
    def is_cuda(self) -> bool:
        """One of CUDA's, and not the driver's."""
        return bool(_CUDA.fullmatch(self.name))


def libraries(maps: str | None = None) -> list[Library]:
    """Every mapped library, once, sorted by path. maps: the text to read, this process's where left out."""
    text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape") if maps is None else maps
    found: dict[str, Library] = {}
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and ".so" in fields[5]:
            device, inode, path = fields[3], int(fields[4]), fields[5]
            real = path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path
            found[real] = Library(real, path == real and _is_same(real, device, inode))
    return [found[path] for path in sorted(found)]


def _is_same(path: str, device: str, inode: int) -> bool:
    try:
        there = Path(path).stat()
    except OSError:
        return False
    # Overlay file systems map files under a device of their own: only a whole number says the same everywhere.
    major, minor = (int(part, 16) for part in device.split(":"))
    same_device = there.st_dev == os.makedev(major, minor)
    return there.st_ino == inode or not same_device


def foreign(found: Iterable[Library], prefix: str, owned: Iterable[str]) -> list[Library]:
    """CUDA's libraries that no package brought. owned: paths from `prefix`, an environment without links, on."""
    ours = frozenset(owned)
    root = f"{prefix}{os.sep}"
    return [
        each for each in found if each.is_cuda and not (each.path.startswith(root) and each.path[len(root) :] in ours)
    ]
