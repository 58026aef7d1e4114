"""What is asked of the base image, what comes of it, and how it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envspec.errors import NoSolution, UsageError
from envspec.model import BaseImage, CudaVersion, Decision, Driver, GpuCode

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
