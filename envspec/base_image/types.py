"""Request, plan and CUDA pins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from envspec.errors import NoSolution, UsageError
from envspec.models import (
    DEFAULT_INDEX,
    BaseImage,
    CondaPackage,
    CudaVersion,
    Decision,
    Driver,
    GpuCode,
    Package,
    Resolution,
)

#: NVIDIA's CUDA images.
REPOSITORY: Final = "docker.io/nvidia/cuda"

#: The flavour that a spec leaves to us.
AUTO: Final = "auto"

#: Flavour, smallest first -> CUDA libraries in it, of those that also come as wheels. nvcc is in the devel ones.
#: Source: NVIDIA container-images, Dockerfiles of 12.8.1 and 13.0.0.
HELD: Final[Mapping[str, tuple[str, ...]]] = {
    "base": ("cudart",),
    "runtime": ("cudart", "cublas", "nccl"),
    "cudnn-runtime": ("cudart", "cublas", "nccl", "cudnn"),
    "devel": ("cudart", "cublas", "nccl"),
    "cudnn-devel": ("cudart", "cublas", "nccl", "cudnn"),
}


@dataclass(frozen=True, slots=True)
class CudaRequest:
    """The spec's `[cuda]` table, and its `[image] base`.

    version: None for whatever the wheels were built for. flavor: `auto`, `base`, `runtime`, `cudnn-runtime`, `devel`
    or `cudnn-devel`. gpus: names that must run it. base: an image of the user's own (`host/name:tag@sha256:...`).
    """

    version: CudaVersion | None = None
    flavor: str = AUTO
    os: str = "ubuntu24.04"
    gpus: tuple[str, ...] = ()
    base: str | None = None


@dataclass(frozen=True, slots=True)
class BaseImagePlan:
    """What was decided, before any registry was asked.

    base_image: None for an environment that needs none of NVIDIA's images. Its digests are `recorded`, `spec` or
    `unresolved`. driver: None without CUDA.
    """

    base_image: BaseImage | None
    driver: Driver | None
    gpu_code: tuple[GpuCode, ...]
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]


class NoCudaRelease(UsageError):
    """Nothing in the lock tells which CUDA it is for, nor does the spec."""


class CudaMismatch(NoSolution):
    """The pins are built for another CUDA than `[cuda] version`."""


class NoSuchImage(NoSolution):
    """NVIDIA publishes no image of that CUDA, flavour and system."""


class GpuNotServed(NoSolution):
    """A GPU of `[cuda] gpus` for which the wheels hold no code."""


class Half(Enum):
    """The half of an environment that a package is in; the value is how its packages are spoken of."""

    PYPI = "the wheels"
    CONDA = "conda's packages"


@dataclass(frozen=True, slots=True)
class Pin:
    """One package. build: what the file says of its own build (`cu128`, `cpu`); None where it says nothing.

    origin: the index of a wheel, the channel of a conda package.
    """

    half: Half
    name: str
    version: str
    build: str | None
    origin: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}" + (f" of {self.origin}" if self.half is Half.CONDA else "")

    @property
    def usual(self) -> bool:
        """Is it from the index that people get when nothing is said?"""
        return self.half is Half.PYPI and self.origin == DEFAULT_INDEX


def pins_of(resolution: Resolution) -> tuple[Pin, ...]:
    """Both halves of one target, in the order of the lock."""
    return (*map(_wheel, resolution.packages), *map(_conda, resolution.conda))


def _wheel(package: Package) -> Pin:
    index = package.file.index
    told = package.version.partition("+")[2] or _variant_of_index(index)
    return Pin(Half.PYPI, package.name, package.version, told, index)


def _conda(package: CondaPackage) -> Pin:
    origin = channel_name(package.channel)
    return Pin(Half.CONDA, package.name, package.version, variant_of_build(package.build), origin)


def _variant_of_index(index: str) -> str | None:
    last = index.rpartition("-")[2]
    return last if re.fullmatch(r"cu\d+|cpu", last) else None


def variant_of_build(build: str) -> str | None:
    """What a conda build string says of CUDA: `cuda129_mkl_py313_h1e53aa0_304` is cu129, `py3.11_cuda12.1_cudnn8.9.2_0`
    is cu121, `cpu_mkl_py312_h8abce0f_103` is cpu; None for one that names neither.
    """
    found = re.search(r"(?:^|[^a-z])cuda_?(?:(\d+\.\d+)|(\d{2}\d))(?!\d)", build)
    if found:
        return CudaVersion.parse(found[1] or f"cu{found[2]}").variant
    return "cpu" if re.search(r"(?:^|_)cpu(?:_|$)", build) else None


def channel_name(channel: str) -> str:
    """`conda-forge` for the name itself, a label of it (`conda-forge/label/x`) and any URL that ends in it."""
    path = re.sub(r"^[a-z]+://[^/]*", "", channel).split("/label/")[0]
    return path.rstrip("/").rpartition("/")[2] or channel
