"""CUDA libraries in memory.

torch's own words are of the build: `torch.cuda.nccl.version()` is a constant of its compilation. So each library is
asked itself, where it is mapped.
Sources: CUDA runtime API, "Version Management"; cuDNN API, `cudnnGetVersion`; NCCL API, `ncclGetVersion`. Read 2026-11.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Mapping
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


@dataclass(frozen=True)
class CudaLibrary:
    """A library that tells its version.

    prefix: of its file's name. names: of the packages that bring it, in locks. parts: how many numbers of their
    versions it knows.
    """

    prefix: str
    names: tuple[str, ...]
    parts: int
    ask: Callable[[ctypes.CDLL], tuple[int, ...]]


def _cuda(library: ctypes.CDLL) -> tuple[int, ...]:
    number = _by_address(library.cudaRuntimeGetVersion)
    return number // 1000, number % 1000 // 10


def _cudnn(library: ctypes.CDLL) -> tuple[int, ...]:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    # Until 8.x the major was worth a thousand.
    major = number // 10000 if number >= 90000 else number // 1000
    return major, number % (10000 if number >= 90000 else 1000) // 100, number % 100


def _nccl(library: ctypes.CDLL) -> tuple[int, ...]:
    number = _by_address(library.ncclGetVersion)
    return number // 10000, number % 10000 // 100, number % 100


def _by_address(function: Callable[..., int]) -> int:
    number = ctypes.c_int()
    status = function(ctypes.byref(number))
    if status:
        raise OSError(f"it can't tell its version (status {status})")
    return number.value


LIBRARIES: Mapping[str, CudaLibrary] = {
    "CUDA runtime": CudaLibrary(
        "libcudart.so",
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11", "cuda-cudart"),
        2,
        _cuda,
    ),
    "cuDNN": CudaLibrary(
        "libcudnn.so",
        ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu11", "libcudnn", "cudnn"),
        3,
        _cudnn,
    ),
    "NCCL": CudaLibrary("libnccl.so", ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu11", "nccl"), 3, _nccl),
}


def mapped(prefix: str) -> list[Path]:
    """The files of a library that this process has mapped, by the start of their name."""
    return [Path(each.path) for each in libraries() if each.name.startswith(prefix)]


def version(library: CudaLibrary, path: Path) -> tuple[int, ...]:
    """What a mapped library says of itself.

    Raises:
        OSError, AttributeError: it can't be asked.
    """
    return library.ask(ctypes.CDLL(str(path)))
