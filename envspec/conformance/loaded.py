"""The CUDA libraries that are in this process's memory, and which versions they say they are.

torch's own words are of the build: `torch.cuda.nccl.version()` is a constant of its compilation. So each library is
asked itself, where it is mapped.
Sources: CUDA runtime API, "Version Management"; cuDNN API, `cudnnGetVersion`; NCCL API, `ncclGetVersion`. Read 2026-11.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envspec.conformance.mapped import libraries


@dataclass(frozen=True)
class Library:
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


LIBRARIES: Mapping[str, Library] = {
    "CUDA runtime": Library(
        "libcudart.so",
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11", "cuda-cudart"),
        2,
        _cuda,
    ),
    "cuDNN": Library(
        "libcudnn.so",
        ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu11", "libcudnn", "cudnn"),
        3,
        _cudnn,
    ),
    "NCCL": Library("libnccl.so", ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu11", "nccl"), 3, _nccl),
}


def mapped(prefix: str) -> list[Path]:
    """The files of a library that this process has mapped, by the start of their name."""
    return [Path(each.path) for each in libraries() if each.name.startswith(prefix)]


def version(library: Library, path: Path) -> tuple[int, ...]:
    """What a mapped library says of itself.

    Raises:
        OSError, AttributeError: it can't be asked.
    """
    return library.ask(ctypes.CDLL(str(path)))
