"""What the pins of one platform say of CUDA: its release, the libraries that come with them, and torch's build."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from envspec.base_image.pin import Half, Pin, pins_of
from envspec.facts import Facts
from envspec.facts.rows import numeric
from envspec.model import CudaVersion, Platform, Resolution

#: CUDA library -> the packages that bring it. Wheels: `-cu12` is gone from the names since CUDA 13, but for cuDNN and
#: NCCL. conda: `cudatoolkit` held them all but cuDNN and NCCL up to CUDA 11.
LIBRARIES: Final[Mapping[Half, Mapping[str, re.Pattern[str]]]] = {
    Half.PYPI: {
        "cudart": re.compile(r"nvidia-cuda-runtime(-cu\d+)?"),
        "cublas": re.compile(r"nvidia-cublas(-cu\d+)?"),
        "nccl": re.compile(r"nvidia-nccl-cu\d+"),
        "cudnn": re.compile(r"nvidia-cudnn-cu\d+"),
    },
    Half.CONDA: {
        "cudart": re.compile(r"cuda-cudart|cudatoolkit"),
        "cublas": re.compile(r"libcublas|cudatoolkit"),
        "nccl": re.compile(r"nccl"),
        "cudnn": re.compile(r"(lib)?cudnn"),
    },
}


class Tells(Enum):
    """What a package's version says of CUDA; the value says why."""

    RELEASE = "the version of NVIDIA's metapackage"
    TOOLKIT = "the version of the toolkit's package"
    RUNTIME = "the first two numbers of the runtime's version"
    MINOR = "its version is a minor version of CUDA"
    COMPILER = "the first two numbers of the compiler's version"


#: What names the CUDA of a half: the first row that finds a package decides, within it the first pattern. What is
#: loaded goes before what bounds it: beside cuda-cudart 12.1.105 the nvidia channel's cuda-version may be 12.5, and its
#: metapackages ask for "this release or a newer one".
_TELLERS: Final[Mapping[Half, Sequence[Mapping[str, Tells]]]] = {
    Half.PYPI: ({r"cuda-toolkit": Tells.RELEASE, r"nvidia-cuda-runtime(-cu\d+)?": Tells.RUNTIME},),
    Half.CONDA: (
        {r"cuda-cudart(_.+)?": Tells.RUNTIME, r"cudatoolkit": Tells.TOOLKIT},
        {r"cuda|cuda-(toolkit|runtime|libraries)": Tells.RELEASE},
        {r"cuda-version|pytorch-cuda": Tells.MINOR},
        {r"cuda-nvcc([-_].+)?": Tells.COMPILER},
    ),
}

#: torch in conda, or its C++ half alone.
_TORCH: Final = ("pytorch", "libtorch")


@dataclass(frozen=True, slots=True)
class PinnedCuda:
    """A CUDA that the pins name. release: exact (`12.8.1`), None where only the minor is told. told_by: the pin."""

    cuda: CudaVersion
    release: str | None
    told_by: Pin
    source: str


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """torch on one platform. variant: `cu128`, `cpu`; None where it cannot be told. pin: the package that it is."""

    version: str
    variant: str | None
    pin: Pin

    @property
    def cuda(self) -> CudaVersion | None:
        return CudaVersion.parse(self.variant) if self.variant and self.variant.startswith("cu") else None

    @property
    def channel(self) -> str:
        """The conda channel; empty for a wheel."""
        return self.pin.origin if self.pin.half is Half.CONDA else ""

    def __str__(self) -> str:
        """`torch 2.8.0`, `conda-forge's pytorch 2.8.0`."""
        return f"{self.channel}'s {self.pin.name} {self.version}" if self.channel else f"torch {self.version}"


@dataclass(frozen=True, slots=True)
class Pins:
    """One platform. cudas: newest first; more than one is two CUDAs in one environment. libraries: library -> pins
    that bring it, of either half. halves: those that the lock has anything in.
    """

    platform: Platform
    cudas: tuple[PinnedCuda, ...]
    libraries: Mapping[str, tuple[Pin, ...]]
    torch: TorchBuild | None
    halves: frozenset[Half]


def read_pins(resolution: Resolution, facts: Facts) -> Pins:
    """What the packages of one target say of CUDA."""
    pins = pins_of(resolution)
    cudas = _cudas(pins, facts)
    platform = resolution.target.platform
    torch = _torch(pins)
    build = _build(torch, platform, cudas, facts) if torch else None
    return Pins(platform, cudas, libraries_of(pins), build, frozenset(pin.half for pin in pins))


def libraries_of(pins: Sequence[Pin]) -> dict[str, tuple[Pin, ...]]:
    """CUDA library -> the pins that bring it, one a half; libraries that no pin brings are left out."""
    found: dict[str, tuple[Pin, ...]] = {}
    for half, patterns in LIBRARIES.items():
        for library, pattern in patterns.items():
            first = next((pin for pin in pins if pin.half is half and pattern.fullmatch(pin.name)), None)
            if first:
                found[library] = (*found.get(library, ()), first)
    return found


def _torch(pins: Sequence[Pin]) -> Pin | None:
    wheel = next((pin for pin in pins if pin.half is Half.PYPI and pin.name == "torch"), None)
    conda = {pin.name: pin for pin in pins if pin.half is Half.CONDA}
    return wheel or next((conda[name] for name in _TORCH if name in conda), None)


def _cudas(pins: Sequence[Pin], facts: Facts) -> tuple[PinnedCuda, ...]:
    found: dict[CudaVersion, PinnedCuda] = {}
    for half, rows in _TELLERS.items():
        mine = [pin for pin in pins if pin.half is half]
        told = next(filter(None, (tuple(_told(row, mine, facts)) for row in rows)), ())
        for pinned in told:
            found.setdefault(pinned.cuda, pinned)
    return tuple(found[cuda] for cuda in sorted(found, reverse=True))


def _told(row: Mapping[str, Tells], pins: Sequence[Pin], facts: Facts) -> Iterator[PinnedCuda]:
    for names, tells in row.items():
        for pin in pins:
            numbers = numeric(pin.version)
            if re.fullmatch(names, pin.name) and len(numbers) >= 2:
                yield _pinned(pin, numbers, tells, facts)


def _pinned(pin: Pin, numbers: tuple[int, ...], tells: Tells, facts: Facts) -> PinnedCuda:
    cuda = CudaVersion(numbers[0], numbers[1])
    if tells in (Tells.RELEASE, Tells.TOOLKIT):
        return PinnedCuda(cuda, ".".join(map(str, numbers[:3])), pin, tells.value)
    rows = [row for row in facts.parts if numeric(row.cudart) == numbers] if tells is Tells.RUNTIME else []
    if rows:
        return PinnedCuda(cuda, rows[-1].cuda, pin, rows[-1].source)
    return PinnedCuda(cuda, None, pin, tells.value)


def _build(torch: Pin, platform: Platform, cudas: tuple[PinnedCuda, ...], facts: Facts) -> TorchBuild:
    return TorchBuild(torch.version, torch.build or _told_variant(torch, platform, cudas, facts), torch)


def _told_variant(torch: Pin, platform: Platform, cudas: tuple[PinnedCuda, ...], facts: Facts) -> str | None:
    known = facts.default_variant(torch.version, platform) if torch.usual else None
    if known:
        return known
    mine = [found for found in cudas if found.told_by.half is torch.half]
    if mine:
        return mine[0].cuda.variant
    # Every CUDA build on the default index asks for NVIDIA's wheels on linux: none pinned means a CPU build.
    return "cpu" if torch.usual and platform.is_linux else None
