"""CUDA libraries in memory.

torch reports versions of its build: `torch.cuda.nccl.version()` is a constant of its compilation. So each mapped
library is queried itself.
Sources: CUDA runtime API, "Version Management"; cuDNN API, `cudnnGetVersion`; NCCL API, `ncclGetVersion`; cuBLAS,
`cublasGetProperty`. Read 2026-11.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

#: CUDA's own libraries, by NVIDIA's names, and what torch builds for it. Others begin alike: libcurl, libcups, libnvme.
#: The driver's are the machine's, not a package's: libcuda.so.1, libnvidia-ml.so.1; on WSL 2, all below /usr/lib/wsl,
#: libcuda_loader.so, libnvdxgdmal.so.1, libnvwgf2umx.so and more.
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
class LoadedLibrary:
    """A mapped file. is_current: whether the file now at that path is the one in memory."""

    path: str
    is_current: bool

    @property
    def name(self) -> str:
        return os.path.basename(self.path)  # noqa: PTH119 (a string of the system's)

    @property
    def kind(self) -> str:
        """`libcudart` for `libcudart.so.12` and for a copy that a wheel brings, `libcudart-d0da41ae.so.11.0`."""
        return re.sub(r"[-.][0-9a-f]{8}$", "", self.name.partition(".so")[0])

    @property
    def is_cuda(self) -> bool:
        """One of CUDA's, and not the driver's."""
        return bool(_CUDA.fullmatch(self.name))


def libraries(maps: str | None = None) -> list[LoadedLibrary]:
    """Every mapped library, once, sorted by path. maps: text to read instead of this process's."""
    if maps is None:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    found: dict[str, LoadedLibrary] = {}
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and ".so" in fields[5]:
            device, inode, path = fields[3], int(fields[4]), fields[5]
            real = path.removesuffix(" (deleted)")
            found[real] = LoadedLibrary(real, path == real and _is_same(real, device, inode))
    return [found[path] for path in sorted(found)]


def _is_same(path: str, device: str, inode: int) -> bool:
    try:
        current = Path(path).stat()
    except OSError:
        return False
    # Overlay file systems map files under another device number: only equal devices make inodes comparable.
    major, minor = (int(part, 16) for part in device.split(":"))
    return current.st_ino == inode or current.st_dev != os.makedev(major, minor)


def debian_packages(paths: Collection[str]) -> dict[str, str]:
    """File -> the Debian package that it belongs to, without those of none. Source: dpkg(1)."""
    found: dict[str, str] = {}
    if not paths:
        return found
    for listed in sorted(Path("/var/lib/dpkg/info").glob("*.list")):
        files = set(paths).intersection(listed.read_text(encoding="utf-8", errors="replace").splitlines())
        found.update(dict.fromkeys(files, listed.stem.partition(":")[0]))
    return found


@dataclass(frozen=True)
class CudaLibrary:
    """A library that reports its version.

    prefix: of its file name. names: of its packages in locks. parts: how many numbers of their versions it reports.
    """

    prefix: str
    names: tuple[str, ...]
    parts: int
    query: Callable[[ctypes.CDLL], tuple[int, ...]]

    def mapped(self) -> list[Path]:
        """Its files in this process's memory."""
        return [Path(each.path) for each in libraries() if each.name.startswith(self.prefix)]

    def version(self, path: Path) -> tuple[int, ...]:
        """What a mapped file reports.

        Raises:
            OSError, AttributeError: it can't be queried.
        """
        return self.query(ctypes.CDLL(str(path)))

    def loaded(self) -> str:
        """The version of its file in memory, of each if there are several; empty if there is none."""
        return " and ".join(sorted({".".join(map(str, self.version(path))) for path in self.mapped()}))


def _cuda(library: ctypes.CDLL) -> tuple[int, ...]:
    number = _by_address(library.cudaRuntimeGetVersion)
    return number // 1000, number % 1000 // 10


def _cudnn(library: ctypes.CDLL) -> tuple[int, ...]:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    # Until 8.x the major was worth a thousand.
    unit = 10000 if number >= 90000 else 1000
    return number // unit, number % unit // 100, number % 100


def _nccl(library: ctypes.CDLL) -> tuple[int, ...]:
    number = _by_address(library.ncclGetVersion)
    return number // 10000, number % 10000 // 100, number % 100


def _by_address(function: Callable[..., int], *arguments: int) -> int:
    number = ctypes.c_int()
    if status := function(*arguments, ctypes.byref(number)):
        raise OSError(f"it cannot report its version (status {status})")
    return number.value


def _cublas(library: ctypes.CDLL) -> tuple[int, ...]:
    # The arguments are libraryPropertyType: major, minor and patch level.
    return tuple(_by_address(library.cublasGetProperty, part) for part in range(3))


CUBLAS = CudaLibrary("libcublas.so", (), 3, _cublas)
CUDNN = CudaLibrary(
    "libcudnn.so", ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu11", "libcudnn", "cudnn"), 3, _cudnn
)
LIBRARIES: Mapping[str, CudaLibrary] = {
    "CUDA runtime": CudaLibrary(
        "libcudart.so",
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11", "cuda-cudart"),
        2,
        _cuda,
    ),
    "cuDNN": CUDNN,
    "NCCL": CudaLibrary("libnccl.so", ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu11", "nccl"), 3, _nccl),
}
