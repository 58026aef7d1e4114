"""Pins -> CUDA release and flavour."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct, field

from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.cuda import require_for
from envspec.facts.tables import CpuBuildRow, CudaBuildRow, PartsRow, numeric, rows_on, rows_with
from envspec.models import (
    CONFLICT,
    DEFAULT_INDEX,
    SPEC,
    BaseImage,
    CpuBuild,
    CudaVersion,
    Decision,
    Dependent,
    Driver,
    GpuCode,
    GpuCodeFound,
    Platform,
    PlatformCuda,
    Resolution,
    SharedFiles,
    dependents_of,
)
from envspec.origins import PYTORCH
from envspec.reasons import Why, reason

#: NVIDIA's CUDA images.
REPOSITORY: Final = "docker.io/nvidia/cuda"
#: The same as a spec may write them.
REPOSITORIES: Final = (REPOSITORY, REPOSITORY.removeprefix("docker.io/"))
#: Sources of packages in these images that have no snapshots. Source: container-images, Dockerfiles of `base`.
UNDATED: Final = ("https://developer.download.nvidia.com/compute/cuda/repos",)

#: The flavour that a spec leaves to us.
AUTO: Final = "auto"

#: Flavour, smallest first -> CUDA libraries in it, of those that also come as wheels. nvcc is in the devel ones.
#: Source: NVIDIA container-images, Dockerfiles of 12.8.1 and 13.0.0.
FLAVOR_LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "base": ("cudart",),
    "runtime": ("cudart", "cublas", "nccl"),
    "cudnn-runtime": ("cudart", "cublas", "nccl", "cudnn"),
    "devel": ("cudart", "cublas", "nccl"),
    "cudnn-devel": ("cudart", "cublas", "nccl", "cudnn"),
}


class CudaRequest(Struct, frozen=True):
    """The spec's `[cuda]` table, and its `[image] base`.

    version: None for whatever the wheels were built for.
    flavor: `auto`, `base`, `runtime`, `cudnn-runtime`, `devel` or `cudnn-devel`.
    gpus: names that must run it.
    base: an image of the user's own (`host/name:tag@sha256:...`).
    driver: the oldest that must run it, or its branch.
    as_of: up to when releases of torch were considered.
    is_implied: whether the packages alone decide if there is a CUDA.
    """

    version: CudaVersion | None = None
    flavor: str = AUTO
    os: str = "ubuntu24.04"
    gpus: tuple[str, ...] = ()
    base: str | None = None
    driver: str | None = None
    as_of: datetime | None = None
    is_implied: bool = False


class BaseImagePlan(Struct, frozen=True):
    """The decisions before any registry is contacted.

    base_image: None for an environment without CUDA. Its digests are `recorded`, `spec` or `unresolved`.
    driver: None without CUDA, and if nothing names its release.
    platform_cuda: of the platforms whose request differs.
    cpu_builds: packages that use no GPU although CUDA is requested.
    """

    base_image: BaseImage | None
    driver: Driver | None
    gpu_code: tuple[GpuCode, ...]
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]
    platform_cuda: tuple[PlatformCuda, ...] = ()
    cpu_builds: tuple[CpuBuild, ...] = ()


class DriverTooOld(NoSolution, code="driver-too-old"):
    """The driver of `[cuda] driver` does not run the lock."""


class CudaMismatch(NoSolution, code="cuda-mismatch"):
    """The pins are built for another CUDA than `[cuda] version`."""


class NoSuchImage(NoSolution, code="no-cuda-image"):
    """NVIDIA publishes no image of that CUDA, flavour and system."""


class GpuNotServed(NoSolution, code="gpu-not-supported"):
    """A GPU of `[cuda] gpus` for which the wheels have no code."""


class PackageSource(Enum):
    """Where a package comes from; the value is the name of these packages in messages."""

    PYPI = "the wheels"
    CONDA = "conda's packages"
    FOUND = "the packages that are there"


class Pin(Struct, frozen=True):
    """One package. build: `cu128`, `cpu`; None if it is unknown. origin: a wheel's index, a conda package's channel, or
    what has one that is there already.
    """

    source: PackageSource
    name: str
    version: str
    build: str | None
    origin: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}" + ("" if self.source is PackageSource.PYPI else f" of {self.origin}")

    @property
    def channel(self) -> str:
        """The conda channel; empty for a wheel."""
        return self.origin if self.source is PackageSource.CONDA else ""

    @property
    def is_default_index(self) -> bool:
        """Whether it is from the default index."""
        return self.source is PackageSource.PYPI and self.origin == DEFAULT_INDEX


def pins_of(resolution: Resolution) -> tuple[Pin, ...]:
    """The wheels and conda packages of one target, and those that are there before, in the order of the lock."""
    found = []
    for wheel in resolution.packages:
        of_index = re.search(r"(?:^|-)(cu\d+|cpu)$", wheel.file.index)
        variant = wheel.version.partition("+")[2] or None
        if variant is None and of_index:
            variant = of_index[1]
        found.append(Pin(PackageSource.PYPI, wheel.name, wheel.version, variant, wheel.file.index))
    for each in resolution.conda:
        variant = variant_of_build(each.build)
        found.append(Pin(PackageSource.CONDA, each.name, each.version, variant, channel_name(each.channel)))
    if below := resolution.on_top_of:
        for there in resolution.installed:
            variant = below.torch_build if there.name == "torch" else ""
            found.append(Pin(PackageSource.FOUND, there.name, there.version, variant or None, below.source))
    return tuple(found)


def variant_of_build(build: str) -> str | None:
    """The CUDA in a conda build string: `cuda129_mkl_py313_h1e53aa0_304` is cu129, `py3.11_cuda12.1_cudnn8.9.2_0` is
    cu121, `cpu_mkl_py312_h8abce0f_103` is cpu; None if it names neither.
    """
    found = re.search(r"(?:^|[^a-z])cuda_?(?:(\d+\.\d+)|(\d{2}\d))(?!\d)", build)
    if found:
        return CudaVersion.parse(found[1] or f"cu{found[2]}").variant
    return "cpu" if re.search(r"(?:^|_)cpu(?:_|$)", build) else None


def channel_name(channel: str) -> str:
    """`conda-forge` for the name itself, a label of it (`conda-forge/label/x`) and any URL that ends in it."""
    path = re.sub(r"^[a-z]+://[^/]*", "", channel).split("/label/")[0]
    return path.rstrip("/").rpartition("/")[2] or channel


_WHEEL_LIBRARIES: Final = {
    "cudart": re.compile(r"nvidia-cuda-runtime(-cu\d+)?"),
    "cublas": re.compile(r"nvidia-cublas(-cu\d+)?"),
    "nccl": re.compile(r"nvidia-nccl-cu\d+"),
    "cudnn": re.compile(r"nvidia-cudnn-cu\d+"),
}
#: CUDA library -> the packages that bring it. Wheels: `-cu12` is gone from the names since CUDA 13, but for cuDNN and
#: NCCL. conda: `cudatoolkit` held them all but cuDNN and NCCL up to CUDA 11.
LIBRARIES: Final[Mapping[PackageSource, Mapping[str, re.Pattern[str]]]] = {
    PackageSource.PYPI: _WHEEL_LIBRARIES,
    PackageSource.FOUND: _WHEEL_LIBRARIES,
    PackageSource.CONDA: {
        "cudart": re.compile(r"cuda-cudart|cudatoolkit"),
        "cublas": re.compile(r"libcublas|cudatoolkit"),
        "nccl": re.compile(r"nccl"),
        "cudnn": re.compile(r"(lib)?cudnn"),
    },
}


class CudaEvidence(Enum):
    """How a package's version names CUDA; the value is the reason in decisions."""

    RELEASE = "the version of NVIDIA's metapackage"
    TOOLKIT = "the version of the toolkit's package"
    RUNTIME = "the first two numbers of the runtime's version"
    MINOR = "its version is a minor version of CUDA"
    COMPILER = "the first two numbers of the compiler's version"


#: What names the CUDA of a source: the first entry that finds a package decides, within it the first pattern. What is
#: loaded goes before what bounds it: beside cuda-cudart 12.1.105 the nvidia channel's cuda-version may be 12.5, and its
#: metapackages require "this release or a newer one".
_OF_WHEELS: Final = {r"cuda-toolkit": CudaEvidence.RELEASE, r"nvidia-cuda-runtime(-cu\d+)?": CudaEvidence.RUNTIME}
_CUDA_PACKAGES: Final[Mapping[PackageSource, Sequence[Mapping[str, CudaEvidence]]]] = {
    PackageSource.PYPI: (_OF_WHEELS,),
    PackageSource.FOUND: (_OF_WHEELS,),
    PackageSource.CONDA: (
        {r"cuda-cudart(_.+)?": CudaEvidence.RUNTIME, r"cudatoolkit": CudaEvidence.TOOLKIT},
        {r"cuda|cuda-(toolkit|runtime|libraries)": CudaEvidence.RELEASE},
        {r"cuda-version|pytorch-cuda": CudaEvidence.MINOR},
        {r"cuda-nvcc([-_].+)?": CudaEvidence.COMPILER},
    ),
}

#: torch in conda, or its C++ half alone.
TORCH_OF_CONDA: Final = ("pytorch", "libtorch")
#: The packages that are torch; the first that is there decides.
_TORCH: Final = (
    (PackageSource.PYPI, "torch"),
    (PackageSource.FOUND, "torch"),
    *((PackageSource.CONDA, name) for name in TORCH_OF_CONDA),
)


class PinnedCuda(Struct, frozen=True):
    """A CUDA that the pins name. release: exact (`12.8.1`), None if only the minor is known."""

    cuda: CudaVersion
    release: str | None
    pin: Pin
    source: str


class TorchBuild(Pin, frozen=True):
    """torch on one platform."""

    @property
    def cuda(self) -> CudaVersion | None:
        return CudaVersion.parse(self.build) if self.build and self.build.startswith("cu") else None

    @property
    def is_projects_own(self) -> bool:
        """Whether it is a wheel of the default index or of PyTorch's own."""
        return self.is_default_index or (self.source is PackageSource.PYPI and self.origin == f"{PYTORCH}{self.build}")

    def __str__(self) -> str:
        """`torch 2.8.0`, `conda-forge's pytorch 2.8.0`, `torch 2.8.0 of nvcr.io/nvidia/pytorch:25.09-py3`."""
        if self.source is PackageSource.FOUND:
            return super().__str__()
        return f"{self.channel}'s {self.name} {self.version}" if self.channel else f"torch {self.version}"


def _is_library(name: str) -> bool:
    """Whether a package is one of NVIDIA's, which contains libraries or requires those that do."""
    return name.startswith("nvidia-") or name == "cuda-toolkit"


class CudaPins(Struct, frozen=True):
    """What the packages of one platform say about CUDA.

    python: its series.
    cudas: newest first; more than one is two CUDAs in one environment.
    libraries: library -> pins that contain it.
    builds: packages whose CUDA only a fact states.
    sources: those that the lock has packages of.
    gpu_code: of a torch that is there already, as it was read.
    without_cuda: packages whose wheels have no CUDA, with what is known of them.
    brings_cuda: whether a package is one that brings CUDA to such a package.
    dependents: what requires each wheel.
    clashing: packages with the same files for different CUDAs.
    """

    platform: Platform
    python: str
    cudas: tuple[PinnedCuda, ...]
    libraries: Mapping[str, tuple[Pin, ...]]
    torch: TorchBuild | None
    builds: tuple[tuple[Pin, CudaBuildRow], ...]
    sources: frozenset[PackageSource]
    gpu_code: GpuCodeFound | None = None
    without_cuda: tuple[tuple[Pin, tuple[CpuBuildRow, ...]], ...] = ()
    brings_cuda: bool = False
    dependents: Mapping[str, Sequence[Dependent]] = field(default_factory=dict)
    clashing: tuple[tuple[str, ...], ...] = ()

    def bringing(self, name: str) -> list[str]:
        """The packages that require a library of NVIDIA's, directly or through others of these, sorted."""
        return sorted(each for each in dependents_of(name, self.dependents, _is_library) if not _is_library(each))

    @property
    def has_cuda(self) -> bool:
        """Whether a package is known to use CUDA."""
        return bool(self.cudas or self.builds or self.brings_cuda or (self.torch and self.torch.cuda))


def read_pins(resolution: Resolution, facts: Facts) -> CudaPins:
    pins = pins_of(resolution)
    cudas = _cudas(pins, facts)
    platform = resolution.target.platform
    torch = None
    if pin := _torch(pins):
        variant = pin.build or _torch_variant(pin, platform, cudas, facts)
        torch = TorchBuild(pin.source, pin.name, pin.version, variant, pin.origin)
    builds = []
    for pin in pins:
        if pin.is_default_index and (row := facts.cuda_build(pin.name, pin.version, platform)):
            builds.append((pin, row))
    return CudaPins(
        platform,
        resolution.target.python.series,
        cudas,
        libraries_of(pins),
        torch,
        tuple(builds),
        sources=frozenset(pin.source for pin in pins),
        gpu_code=resolution.on_top_of.gpu_code if resolution.on_top_of else None,
        without_cuda=tuple(_without_cuda(pins, platform, facts)),
        brings_cuda=any(_with_cuda(row, pins) for row in rows_on(facts.cpu_builds, platform)),
        dependents={wheel.name: wheel.required_by for wheel in resolution.packages},
        clashing=tuple(each.packages for each in resolution.shared if is_of_two_cudas(each)),
    )


def is_of_two_cudas(shared: SharedFiles) -> bool:
    """Whether packages for different CUDAs conflict: `nvidia-nccl-cu12` and `nvidia-nccl-cu13`, `cupy-cuda12x`."""
    majors = set()
    for name in shared.packages:
        if found := re.search(r"-cu(?:da)?(\d\d)\d*x?$", name):
            majors.add(found[1])
    return shared.why == CONFLICT and len(majors) > 1


def _without_cuda(
    pins: Sequence[Pin], platform: Platform, facts: Facts
) -> Iterator[tuple[Pin, tuple[CpuBuildRow, ...]]]:
    """The packages whose wheels have no CUDA, but for those to which another package brings it."""
    for pin in pins:
        if not pin.is_default_index:
            continue
        rows = facts.cpu_builds_of(pin.name, pin.version, platform)
        if rows and not any(_with_cuda(row, pins) for row in rows):
            yield pin, rows


def _with_cuda(row: CpuBuildRow, pins: Sequence[Pin]) -> bool:
    return any(fnmatchcase(pin.name, pattern) for pin in pins for pattern in row.with_cuda)


def libraries_of(pins: Sequence[Pin]) -> dict[str, tuple[Pin, ...]]:
    """CUDA library -> the pins that contain it, one of each source."""
    found: dict[str, tuple[Pin, ...]] = {}
    for source, patterns in LIBRARIES.items():
        for library, pattern in patterns.items():
            first = _first_pin(pins, source, pattern)
            if first:
                found[library] = (*found.get(library, ()), first)
    return found


def _first_pin(pins: Sequence[Pin], source: PackageSource, name: str | re.Pattern[str]) -> Pin | None:
    for pin in pins:
        if pin.source is source and re.fullmatch(name, pin.name):
            return pin
    return None


def _torch(pins: Sequence[Pin]) -> Pin | None:
    for source, name in _TORCH:
        if pin := _first_pin(pins, source, name):
            return pin
    return None


def _cudas(pins: Sequence[Pin], facts: Facts) -> tuple[PinnedCuda, ...]:
    found: dict[CudaVersion, PinnedCuda] = {}
    for source, ranked in _CUDA_PACKAGES.items():
        of_source = [pin for pin in pins if pin.source is source]
        for evidence_of in ranked:
            pinned_cudas = list(_pinned_cudas(of_source, evidence_of, facts))
            for pinned in pinned_cudas:
                found.setdefault(pinned.cuda, pinned)
            if pinned_cudas:
                break
    return tuple(found[cuda] for cuda in sorted(found, reverse=True))


def _pinned_cudas(pins: Sequence[Pin], evidence_of: Mapping[str, CudaEvidence], facts: Facts) -> Iterator[PinnedCuda]:
    for pattern, evidence in evidence_of.items():
        for pin in pins:
            if not re.fullmatch(pattern, pin.name):
                continue
            numbers = numeric(pin.version)
            if len(numbers) >= 2:
                yield _pinned(pin, numbers, evidence, facts)


def _pinned(pin: Pin, numbers: tuple[int, ...], evidence: CudaEvidence, facts: Facts) -> PinnedCuda:
    cuda = CudaVersion(numbers[0], numbers[1])
    if evidence in (CudaEvidence.RELEASE, CudaEvidence.TOOLKIT):
        return PinnedCuda(cuda, ".".join(map(str, numbers[:3])), pin, evidence.value)
    if evidence is CudaEvidence.RUNTIME:
        for row in reversed(facts.parts):
            if numeric(row.cudart) == numbers:
                return PinnedCuda(cuda, row.cuda, pin, row.source)
    return PinnedCuda(cuda, None, pin, evidence.value)


def _torch_variant(torch: Pin, platform: Platform, cudas: tuple[PinnedCuda, ...], facts: Facts) -> str | None:
    if torch.is_default_index and (default := facts.default_variant(torch.version, platform)):
        return default
    for found in cudas:
        if found.pin.source is torch.source:
            return found.cuda.variant
    # Every CUDA build on the default index requires NVIDIA's wheels on linux: none pinned means a CPU build.
    return "cpu" if torch.is_default_index and platform.is_linux else None


class Release(Struct, frozen=True):
    """The CUDA of a lock.

    cuda: the minor that the packages are built for.
    exact: the release that the pins name, if they do.
    pinned: the package that names it; None if a fact or the spec does.
    """

    cuda: CudaVersion
    exact: str | None
    decision: Decision
    warnings: tuple[str, ...] = ()
    pinned: PinnedCuda | None = None


def choose_release(request: CudaRequest, pins: Sequence[CudaPins], facts: Facts) -> Release | None:
    """The CUDA of the lock: what the pins name, else torch's build, else facts about packages, else the spec.

    None if none of them names one.

    Raises:
        CudaMismatch: the pins are for another CUDA than the spec's.
    """
    for release_of in (_release_of_pins, _release_of_torch, _release_of_builds, _release_of_spec):
        release = release_of(request, pins, facts)
        if release is not None:
            return release
    return None


def _release_of_pins(request: CudaRequest, pins: Sequence[CudaPins], facts: Facts) -> Release | None:
    """The newest CUDA that CUDA's own packages name."""
    pinned_cudas: list[tuple[PinnedCuda, CudaPins]] = []
    for each in pins:
        pinned_cudas += [(found, each) for found in each.cudas]
    if not pinned_cudas:
        return None
    pinned_cudas.sort(key=lambda pair: pair[0].cuda, reverse=True)
    first, of_first = pinned_cudas[0]
    releases, warnings = [], []
    for found, its in pinned_cudas:
        if request.version is not None and not _within(found.pin, found.cuda, request.version):
            ways = [f'set [cuda] version = "{found.cuda}"', _instead(found.pin, request.version, its, facts)]
            raise CudaMismatch(
                f"[cuda] version is {request.version}, but {found.pin} on {its.platform.value} is CUDA {found.cuda}",
                hint=", or ".join(filter(None, ways)),
            )
        if found.cuda == first.cuda and found.release:
            releases.append(found.release)
        # Those of one platform's wheels have advice of their own (`two_cudas`).
        are_wheels = found.pin.source is first.pin.source is PackageSource.PYPI
        if found.cuda != first.cuda and not (its is of_first and are_wheels):
            warnings.append(_beside(found, its.platform, first, of_first.platform))
    exact = max(releases, key=numeric, default=None)
    value = exact or str(first.cuda)
    why = (reason("is-cuda", package=first.pin, cuda=value), *_below(first.cuda, request.version))
    decision = Decision("cuda.release", value, why, first.source)
    return Release(first.cuda, exact, decision, tuple(warnings), first)


def _within(pin: Pin, cuda: CudaVersion, version: CudaVersion) -> bool:
    """Wheels are built for one CUDA; of conda's packages `[cuda] version` is the newest that is let in."""
    return cuda == version or (pin.source is PackageSource.CONDA and cuda < version)


def _instead(pin: Pin, version: CudaVersion, pins: CudaPins, facts: Facts) -> str:
    """What to change so that a package is for another CUDA; empty if nothing is known."""
    if pin.source is PackageSource.FOUND:
        return f"install on top of another one, for CUDA {version}"
    if pin.source is PackageSource.PYPI:
        bringing = pins.bringing(pin.name)
        if not bringing and any(each.name == SPEC for each in pins.dependents.get(pin.name, ())):
            return f"remove {pin.name} from [pip] dependencies"
        needed = [require_for(name, version.major, pins.platform, facts) for name in bringing]
        if not needed or not all(needed):
            return ""
        return f"require {' and '.join(needed)}"
    return f'require builds of CUDA {version} or older ("cuda-version <={version}" in [conda] dependencies)'


def _below(cuda: CudaVersion, version: CudaVersion | None) -> Why:
    if version in (None, cuda):
        return ()
    return (reason("version-allows", version=version),)


def _beside(found: PinnedCuda, where: Platform, first: PinnedCuda, platform: Platform) -> str:
    text = f"{found.pin} on {where.value} is CUDA {found.cuda}, beside {first.pin} on {platform.value}"
    sources = {found.pin.source, first.pin.source}
    if where is not platform or len(sources) == 1:
        return f"{text}: two CUDAs in one lock; the image and the driver are chosen for the newer one"
    wheels = found if found.pin.source is PackageSource.PYPI else first
    return (
        f"{text} (CUDA {first.cuda}): the wheels and conda's packages each bring their own CUDA into one environment; "
        "image and driver are chosen for the newer one. Install torch from conda as well, or pin conda to the CUDA "
        f'of the wheels: "cuda-version {wheels.cuda}.*" in [conda] dependencies'
    )


def _release_of_torch(request: CudaRequest, pins: Sequence[CudaPins], facts: Facts) -> Release | None:
    builds = [(each.torch, each.torch.cuda) for each in pins if each.torch and each.torch.cuda]
    if not builds:
        return None
    torch, cuda = builds[0]
    if request.version is None or _within(torch, cuda, request.version):
        is_build = reason("is-build", package=torch, build=torch.build)
        why = (is_build, *_below(cuda, request.version), reason(f"no-cuda-{_package_kind(pins)}"))
        return Release(cuda, None, Decision("cuda.release", str(cuda), why, "torch's variant"))
    if torch.channel:
        raise CudaMismatch(
            f"[cuda] version is {request.version}, but {torch} is built for CUDA {cuda}",
            hint=f'set [cuda] version = "{cuda}", or {_instead(torch, request.version, pins[0], facts)}',
        )
    return None


def _package_kind(pins: Sequence[CudaPins]) -> str:
    """`wheel`, or `package` if some of them are conda's: a word of reasons' codes."""
    return "package" if any(PackageSource.CONDA in each.sources for each in pins) else "wheel"


def _release_of_builds(request: CudaRequest, pins: Sequence[CudaPins], facts: Facts) -> Release | None:
    """The newest CUDA for which facts say that packages are built. Libraries of one major version replace each other,
    so any minor of it will do.
    """
    builds: list[tuple[Pin, CudaBuildRow]] = []
    for each in pins:
        builds += each.builds
    if not builds:
        return None
    builds.sort(key=lambda build: CudaVersion.parse(build[1].cuda))
    newest, row = builds[-1]
    platform = pins[0].platform
    major = CudaVersion.parse(row.cuda).major
    warnings = []
    for pin, other in builds:
        its_major = CudaVersion.parse(other.cuda).major
        if request.version is not None and request.version.major != its_major:
            needed = require_for(pin.name, request.version.major, platform, facts)
            alternative = f", or require {needed}" if needed else ""
            raise CudaMismatch(
                f"[cuda] version is {request.version}, but {pin} is built for CUDA {other.cuda}",
                hint=f'set [cuda] version = "{other.cuda}"{alternative}',
            )
        if its_major != major:
            needed = require_for(pin.name, major, platform, facts)
            needed = needed or require_for(newest.name, its_major, platform, facts)
            text = (
                f"{pin} is built for CUDA {other.cuda}, beside {newest} for CUDA {row.cuda}: an image has the "
                "libraries of one major version, here those of the newer one"
            )
            if needed:
                text += f". Require {needed}"
            warnings.append(text)
    cuda = request.version or CudaVersion.parse(row.cuda)
    why: Why = (reason("built-for", package=newest, cuda=row.cuda),)
    if cuda != CudaVersion.parse(row.cuda):
        why = (reason("in-spec"), *why, reason("any-minor", major=cuda.major))
    return Release(cuda, None, Decision("cuda.release", str(cuda), why, row.source), tuple(warnings))


def _release_of_spec(request: CudaRequest, pins: Sequence[CudaPins], _: Facts) -> Release | None:
    if request.version is None:
        return None
    why = (reason("in-spec"), reason(f"no-cuda-{_package_kind(pins)}"))
    return Release(request.version, None, Decision("cuda.release", str(request.version), why, "[cuda] version"))


class ImageNeeds(Struct, frozen=True):
    """libraries: those that the image has to bring. cudnn: the major version of its cuDNN; None for any."""

    libraries: frozenset[str]
    cudnn: int | None
    why: Why
    source: str


def image_needs(release: Release, pins: Sequence[CudaPins]) -> ImageNeeds:
    """The CUDA libraries that the packages load and do not bring.

    A CUDA build of torch loads all of them. Its own wheels bring each one, inside or by their requirements, since
    manylinux allows no other; one from conda brings or depends on them, since conda knows no image; of one from another
    index that is not known.
    """
    packages = f"{_package_kind(pins)}s"
    source = f"names of the locked {packages}; NVIDIA container-images Dockerfiles"
    torches = [each.torch for each in pins if each.torch and each.torch.cuda]
    brought: set[str] = set()
    for each in pins:
        brought.update(each.libraries)
    if not torches and (needs := _needs_of_builds(release, pins, brought)):
        return needs
    if not torches and not brought:
        return ImageNeeds(frozenset({"cudart", "cublas", "nccl"}), None, (reason(f"image-brings-{packages}"),), source)
    lacking = _lacking_libraries(pins)
    if lacking:
        smallest = reason("smallest-flavor", libraries=", ".join(sorted(lacking)))
        return ImageNeeds(frozenset(lacking), None, (smallest, reason(f"not-in-{packages}")), source)
    if not brought:
        return ImageNeeds(frozenset(), None, (reason("brought-by-torch", torch=torches[0]),), source)
    bringing: set[PackageSource] = set()
    for each in pins:
        for found in each.libraries.values():
            bringing.update(pin.source for pin in found)
    names = " and ".join(source.value for source in PackageSource if source in bringing)
    all_brought = reason("brought", sources=names, libraries=", ".join(sorted(brought)))
    return ImageNeeds(frozenset(), None, (all_brought,), source)


def _needs_of_builds(release: Release, pins: Sequence[CudaPins], brought: set[str]) -> ImageNeeds | None:
    """What packages load that facts say are built for this CUDA; None if the lock brings it, or if there are none."""
    libraries = {"cudart", "cublas"}
    names, sources, cudnns = set(), [], []
    for each in pins:
        for pin, row in each.builds:
            if CudaVersion.parse(row.cuda).major != release.cuda.major:
                continue
            names.add(pin.name)
            sources.append(row.source)
            if row.cudnn:
                cudnns.append(row.cudnn)
                libraries.add("cudnn")
    libraries -= brought
    if not names or not libraries:
        return None
    loading = " and ".join(sorted(names))
    why = [reason("smallest-flavor-for", libraries=", ".join(sorted(libraries)), packages=loading)]
    if brought:
        why.append(reason(f"not-in-{_package_kind(pins)}s"))
    cudnn = max(cudnns, default=None)
    return ImageNeeds(frozenset(libraries), cudnn, tuple(why), "; ".join(dict.fromkeys(sources)))


def _lacking_libraries(pins: Sequence[CudaPins]) -> set[str]:
    """The CUDA libraries that are not in the lock, if a CUDA build of torch is of another index than PyTorch's."""
    lacking: set[str] = set()
    for each in pins:
        torch = each.torch
        if torch and torch.cuda and not torch.channel and not torch.is_projects_own:
            lacking |= LIBRARIES[PackageSource.PYPI].keys() - each.libraries.keys()
    return lacking


def flavors_to_try(request: CudaRequest, needs: ImageNeeds) -> tuple[Decision, ...]:
    """The flavours with the libraries that are needed, smallest first; else the spec's own. `auto` never takes a devel
    flavour: nvcc is needed to build, not to run.
    """
    if request.flavor != AUTO:
        return (Decision("image.flavor", request.flavor, (reason("in-spec"),), "[cuda] flavor"),)
    flavors = []
    for name, libraries in FLAVOR_LIBRARIES.items():
        if needs.libraries <= set(libraries) and "devel" not in name:
            flavors.append(Decision("image.flavor", name, needs.why, needs.source))
    return tuple(flavors)


class SharedLibrary(Struct, frozen=True):
    """A library that is installed twice. image_version: None if the image's parts are not known."""

    library: str
    image_version: str | None
    package: str
    package_version: str


def shared_libraries(image: BaseImage, resolution: Resolution, facts: Facts) -> tuple[SharedLibrary, ...]:
    """What image and packages both contain on one platform. Python loads the packages' copy, by the paths in them."""
    if image.flavor is None or image.cuda_release is None:
        return ()
    parts = _parts_of(image, facts)
    brought = libraries_of(pins_of(resolution))
    found = []
    for library in FLAVOR_LIBRARIES.get(image.flavor, ()):
        for pin in brought.get(library, ()):
            found.append(SharedLibrary(library, getattr(parts, library, None), pin.name, pin.version))
    return tuple(found)


def _parts_of(image: BaseImage, facts: Facts) -> PartsRow | None:
    for row in rows_with(facts.parts, cuda=image.cuda_release):
        if image.os in row.os or not row.os:
            return row
    return None
