"""What the pins of one platform say of CUDA: its release, the libraries that come as wheels, and torch's build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envspec.facts import Facts
from envspec.facts.rows import numeric
from envspec.model import DEFAULT_INDEX, CudaVersion, Package, Platform, Resolution

#: CUDA library -> the wheels that bring it (`-cu12` is gone from the names since CUDA 13, but for cuDNN and NCCL).
LIBRARIES: Final[Mapping[str, re.Pattern[str]]] = {
    "cudart": re.compile(r"nvidia-cuda-runtime(-cu\d+)?"),
    "cublas": re.compile(r"nvidia-cublas(-cu\d+)?"),
    "nccl": re.compile(r"nvidia-nccl-cu\d+"),
    "cudnn": re.compile(r"nvidia-cudnn-cu\d+"),
}

#: NVIDIA's metapackage: its version is the CUDA release itself.
TOOLKIT: Final = "cuda-toolkit"


@dataclass(frozen=True, slots=True)
class PinnedCuda:
    """A CUDA that the pins name. release: exact (`12.8.1`), None where only the minor is told. told_by: the pin."""

    cuda: CudaVersion
    release: str | None
    told_by: str
    source: str


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """torch on one platform. variant: `cu128`, `cpu`; None where it cannot be told."""

    version: str
    variant: str | None

    @property
    def cuda(self) -> CudaVersion | None:
        return CudaVersion.parse(self.variant) if self.variant and self.variant.startswith("cu") else None


@dataclass(frozen=True, slots=True)
class Pins:
    """One platform. cudas: newest first; more than one is two CUDAs in one environment. libraries: library -> pin."""

    platform: Platform
    cudas: tuple[PinnedCuda, ...]
    libraries: Mapping[str, Package]
    torch: TorchBuild | None


def read_pins(resolution: Resolution, facts: Facts) -> Pins:
    """What the packages of one target say of CUDA."""
    by_name = {package.name: package for package in resolution.packages}
    libraries = {
        library: package
        for package in resolution.packages
        for library, pattern in LIBRARIES.items()
        if pattern.fullmatch(package.name)
    }
    cudas = _cudas(resolution, facts)
    platform = resolution.target.platform
    torch = by_name.get("torch")
    return Pins(platform, cudas, libraries, _torch_build(torch, platform, cudas, facts) if torch else None)


def _cudas(resolution: Resolution, facts: Facts) -> tuple[PinnedCuda, ...]:
    found: dict[CudaVersion, PinnedCuda] = {}
    for package in resolution.packages:
        pinned = _pinned(package, facts)
        if pinned and (package.name == TOOLKIT or pinned.cuda not in found):
            found[pinned.cuda] = pinned
    return tuple(found[cuda] for cuda in sorted(found, reverse=True))


def _pinned(package: Package, facts: Facts) -> PinnedCuda | None:
    told_by = f"{package.name} {package.version}"
    numbers = numeric(package.version)
    if len(numbers) < 2:
        return None
    cuda = CudaVersion(numbers[0], numbers[1])
    if package.name == TOOLKIT:
        return PinnedCuda(cuda, ".".join(map(str, numbers[:3])), told_by, "the version of NVIDIA's metapackage")
    if not LIBRARIES["cudart"].fullmatch(package.name):
        return None
    rows = [row for row in facts.parts if numeric(row.cudart) == numbers]
    if rows:
        return PinnedCuda(cuda, rows[-1].cuda, told_by, rows[-1].source)
    return PinnedCuda(cuda, None, told_by, "the first two numbers of the runtime's version")


def _torch_build(torch: Package, platform: Platform, cudas: tuple[PinnedCuda, ...], facts: Facts) -> TorchBuild:
    local = torch.version.partition("+")[2]
    return TorchBuild(torch.version, local or _told_variant(torch, platform, cudas, facts))


def _told_variant(torch: Package, platform: Platform, cudas: tuple[PinnedCuda, ...], facts: Facts) -> str | None:
    index = torch.file.index.rpartition("-")[2]
    if re.fullmatch(r"cu\d+|cpu", index):
        return index
    known = facts.default_variant(torch.version, platform) if torch.file.index == DEFAULT_INDEX else None
    if known:
        return known
    if cudas:
        return cudas[0].cuda.variant
    # Every CUDA build on the default index asks for NVIDIA's wheels on linux: none pinned means a CPU build.
    return "cpu" if torch.file.index == DEFAULT_INDEX and platform.is_linux else None
