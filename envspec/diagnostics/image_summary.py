"""What an image has, for the end of `envspec image build`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from packaging.specifiers import SpecifierSet

from envspec.base_image.cuda import CudaPins, PackageSource, Pin, SharedLibrary, pins_of, read_pins, shared_libraries
from envspec.base_image.libraries import covered, is_known_base, library_groups
from envspec.facts import Facts
from envspec.facts.gpu import Runs, capability_of, runs
from envspec.facts.tables import pep440
from envspec.facts.torch import family_mismatch
from envspec.models import GIT, LOCAL, BaseImage, Lock, Platform, Python, Resolution

#: Members of the torch family that are built for one CUDA.
_BUILT_FOR_CUDA: Final = ("torchvision", "torchaudio")
#: Digits of a commit.
_SHORT: Final = 10


class BuiltSource(Struct, frozen=True):
    """A package that is built for the image. version: empty if its build computes it. how: `sdist`, `git COMMIT`,
    `folder PATH`.
    """

    name: str
    version: str
    how: str


class MissingLibrary(Struct, frozen=True):
    """What a package loads and nothing in the image has. apt: packages with it, as far as they are known."""

    package: str
    version: str
    libraries: tuple[str, ...]
    apt: tuple[str, ...]


class GpuSupport(Struct, frozen=True):
    """Names of the GPUs that envspec knows, by what they run of torch: compiled code, what the driver compiles from
    PTX, nothing.
    """

    compiled: tuple[str, ...]
    ptx: tuple[str, ...]
    without: tuple[str, ...]


class TorchFamily(Struct, frozen=True):
    """torch and its family.

    build: of torch, `cu128`, `cpu`; empty if it is unknown. problem: why they do not fit; empty if they do.
    is_one_build: whether all are known to be of this build.
    """

    packages: tuple[str, ...]
    build: str
    problem: str = ""
    is_one_build: bool = False


class BuiltSize(Struct, frozen=True):
    """Of an image. layers: with those of the base. size_bytes: of all of them, compressed."""

    layers: int
    size_bytes: int


class PlatformSummary(Struct, frozen=True):
    """The image of one platform.

    packages, size_bytes: their number and the sum of the sizes that are known. unsized: how many have no known size.
    is_base_known: whether facts state what the base image has.
    cuda: versions of the packages' CUDA.
    libraries: CUDA libraries in the packages, `torch` for those inside of it; shared: those that the base image has,
        too; repeated: those in packages of several sources, such as wheels and conda's.
    is_cuda_of_base: whether this CUDA is that of packages of the base image.
    driver: the oldest.
    gpus: None without a build of torch whose code is known.
    image: None if it is not built.
    """

    platform: Platform
    packages: int
    size_bytes: int
    base_image: BaseImage | None
    is_base_known: bool
    python: Python
    cuda: tuple[str, ...]
    libraries: tuple[str, ...]
    shared: tuple[SharedLibrary, ...]
    driver: str | None
    gpus: GpuSupport | None
    torch: TorchFamily | None
    built: tuple[BuiltSource, ...]
    missing_libraries: tuple[MissingLibrary, ...]
    image: BuiltSize | None = None
    unsized: int = 0
    repeated: tuple[str, ...] = ()
    is_cuda_of_base: bool = False


class LeftOutSummary(Struct, frozen=True):
    """What is not selected of another tool's lock. words: that select it. packages: how many only it adds."""

    words: str
    packages: int


class InstalledBy(Struct, frozen=True):
    """A Dockerfile of the project that installs more than is selected. words: that select the rest."""

    file: str
    words: tuple[str, ...]


class ImageSummary(Struct, frozen=True):
    """What the images of a lock have.

    left_out, installed_by, settings, project: of the lock of another tool. settings: the part of pyproject.toml that
    makes its selection last; empty if it is there. project: `wheel`, `editable`, `copy` for files of it, `none`; empty
    if there is no project.
    """

    lock: str
    platforms: tuple[PlatformSummary, ...]
    left_out: tuple[LeftOutSummary, ...] = ()
    installed_by: InstalledBy | None = None
    settings: str = ""
    project: str = ""


def summarize(lock: Lock, platform: Platform, facts: Facts, image: BuiltSize | None = None) -> PlatformSummary:
    """What the image of a lock has on one platform. image: of the image that was built."""
    lock = lock.on(platform)
    part = next(each for each in lock.resolutions if each.target.platform is platform)
    pins = read_pins(part, facts)
    base = lock.base_image
    sizes = [each.file.size_bytes for each in part.packages]
    sizes += [each.size_bytes for each in part.conda]
    return PlatformSummary(
        platform,
        len(sizes),
        sum(filter(None, sizes)),
        base,
        base is not None and is_known_base(base, facts),
        part.target.python,
        tuple(_cudas(pins)),
        tuple(pins.libraries) or _inside_torch(pins),
        shared_libraries(base, part, facts) if base else (),
        lock.driver.minimum if lock.driver else None,
        _gpus(lock, platform, facts),
        _family(part, pins, facts),
        tuple(_built(part)),
        tuple(_missing(lock, part, facts)),
        image,
        sizes.count(None),
        tuple(name for name, found in pins.libraries.items() if len(found) > 1),
        _is_of_base(pins),
    )


def _is_of_base(pins: CudaPins) -> bool:
    first: Pin | None = pins.torch
    if pins.cudas:
        first = pins.cudas[0].pin
    return first is not None and first.source is PackageSource.FOUND


def _cudas(pins: CudaPins) -> Iterator[str]:
    for found in pins.cudas:
        yield str(found.cuda)
    if pins.torch and pins.torch.cuda and not pins.cudas:
        yield str(pins.torch.cuda)


def _inside_torch(pins: CudaPins) -> tuple[str, ...]:
    """Of builds that contain their libraries: PyTorch's own without requirements on them, and conda's."""
    torch = pins.torch
    is_inside = torch is not None and torch.cuda and (torch.is_projects_own or torch.channel)
    return ("torch",) if is_inside else ()


def _gpus(lock: Lock, platform: Platform, facts: Facts) -> GpuSupport | None:
    """Of torch's own code, as `fit` compares it."""
    for code in lock.gpu_code:
        if code.platform is not platform or code.variant == "cpu":
            continue
        names: dict[Runs, list[str]] = {how: [] for how in Runs}
        for gpu in facts.gpus:
            names[runs(capability_of(gpu), code.sm, code.ptx)].append(gpu.name)
        return GpuSupport(tuple(names[Runs.SASS]), tuple(names[Runs.PTX]), tuple(names[Runs.NOT]))
    return None


def _family(part: Resolution, pins: CudaPins, facts: Facts) -> TorchFamily | None:
    torch = pins.torch
    if torch is None:
        return None
    members = [pin for pin in pins_of(part) if pin.name in _BUILT_FOR_CUDA]
    packages = tuple(f"{pin.name} {pin.version}" for pin in (torch, *members))
    problem = _mismatch(torch, members, facts if torch.cuda else facts.without_cuda())
    builds = {torch.build}
    for pin in members:
        build = pin.build
        if pin.is_default_index:
            build = build or facts.default_variant(torch.version, pins.platform)
        builds.add(build)
        if not problem and build and torch.build and build != torch.build:
            problem = f"{pin.name} is built for {build}, torch for {torch.build}"
    return TorchFamily(packages, torch.build or "", problem, len(builds) == 1 and not problem)


def _mismatch(torch: Pin, members: Sequence[Pin], facts: Facts) -> str:
    """Why releases do not fit, as far as facts list them."""
    if pep440(torch.version) is None:
        return ""
    requests = {"torch": SpecifierSet(f"=={torch.version}")}
    for pin in members:
        if any(row.version == pin.version.partition("+")[0] for row in facts.members_by_package.get(pin.name, ())):
            requests[pin.name] = SpecifierSet(f"=={pin.version}")
    found = family_mismatch(facts, requests)
    return found.because or found.what if found else ""


def _built(part: Resolution) -> Iterator[BuiltSource]:
    for package in part.packages:
        if package.file.index not in (GIT, LOCAL) and package.file.filename.endswith(".whl"):
            continue
        address, how, version = package.file.url or "", "sdist", package.version
        if package.file.index == GIT:
            how = f"git {address.partition('#')[0].rpartition('@')[2][:_SHORT]}"
        elif package.file.index == LOCAL:
            how = f"folder {address.partition('#sha256=')[0]}".rstrip()
        if package.unbuilt and version == "0":
            version = ""
        yield BuiltSource(package.name, version, how)


def _missing(lock: Lock, part: Resolution, facts: Facts) -> Iterator[MissingLibrary]:
    """Libraries of the system that rows of the facts name for the packages."""
    base = lock.base_image
    if base is None or not is_known_base(base, facts):
        return
    for group in library_groups(lambda _: base.os, [part], facts):
        apt = [name for name in group.apt if name not in covered(lock.image.apt, base.os, facts)]
        if apt or group.unknown:
            yield MissingLibrary(group.package, group.version, group.loads, tuple(apt))
