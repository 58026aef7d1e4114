"""Explanations of a lock, of its image and of one of its packages."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from envspec.base_image.cuda import SharedLibrary
from envspec.errors import UsageError
from envspec.facts import Facts, load_facts
from envspec.facts.gpu import ComputeCapability, capabilities_of, first_driver, has_other_kernels, without_code
from envspec.facts.tables import at_least
from envspec.lockfile.decided import all_decisions
from envspec.lockfile.export.dockerfile import without_image
from envspec.models import (
    DIRECT_URL,
    GIT,
    LOCAL,
    SPEC,
    BaseImage,
    CondaChannel,
    CondaPackage,
    CpuBuild,
    Decision,
    Dependent,
    Driver,
    GpuCode,
    GpuCodeFound,
    ImageId,
    ImageSettings,
    InstalledPackage,
    Lock,
    Package,
    Platform,
    PlatformCuda,
    Provided,
    Python,
    Rejected,
    Resolution,
    SystemLayer,
    Unbuilt,
    WheelFile,
    WrongRow,
)
from envspec.names import normalised
from envspec.origins import PYTORCH
from envspec.reasons import Why
from envspec.structs import replace


class Link(Struct, frozen=True):
    """One step of a chain: `name` at `version` has `requirement`. version: None for the spec.

    channel: where conda took the package from; None for a wheel and for the spec.
    """

    name: str
    version: str | None
    requirement: str
    channel: str | None = None


class ChainSource(Enum):
    """The two halves of an environment."""

    WHEELS = "wheels"
    CONDA = "conda"


class _Step(NamedTuple):
    """A package, or the spec, and its requirement."""

    source: ChainSource
    dependent: Dependent

    @property
    def key(self) -> tuple[ChainSource, str]:
        return self.source, self.dependent.name


_AnyPackage: TypeAlias = Package | CondaPackage | InstalledPackage


class LockedPackages:
    """The packages of one platform by name: wheels, conda's, conda's by PyPI's names of what is in them, and those on
    top of which it is installed.
    """

    def __init__(self, resolution: Resolution) -> None:
        self.wheels = {package.name: package for package in resolution.packages}
        self.conda = {package.name: package for package in resolution.conda}
        self.installed = {package.name: package for package in resolution.installed}
        self._provided: dict[str, CondaPackage] = {}
        for package in resolution.conda:
            for each in package.provides:
                self._provided[each.name] = package

    def named(self, normal: str) -> tuple[Package | None, tuple[CondaPackage, ...]]:
        """The wheel and the conda packages of a name of conda or PyPI. normal: normalised."""
        conda = []
        for package in self.conda.values():
            names = {normalised(package.name), *(each.name for each in package.provides)}
            if normal in names:
                conda.append(package)
        return self.wheels.get(normal), tuple(conda)

    def chains(self, package: _AnyPackage) -> tuple[tuple[Link, ...], ...]:
        """The shortest chain from the spec down to each dependent."""
        source = ChainSource.WHEELS
        if isinstance(package, CondaPackage):
            source = ChainSource.CONDA
        start = (source, package.name)
        return tuple(self._chain(self._step(source, dependent), start) for dependent in package.required_by)

    def _chain(self, last: _Step, start: tuple[ChainSource, str]) -> tuple[Link, ...]:
        """The shortest chain from the spec to `last`; if none begins at the spec, the longest.

        It does not lead through `start`. Of chains of one length the first by name, so that the
        same lock always gives the same chains.
        """
        waiting: deque[tuple[_Step, ...]] = deque([(last,)])
        cached = {start, last.key}
        longest: tuple[_Step, ...] = (last,)
        while waiting:
            chain = waiting.popleft()
            longest = chain
            if chain[0].dependent.name == SPEC:
                break
            above = self._package(chain[0])
            if above is None:
                continue
            for dependent in sorted(above.required_by):
                higher = self._step(chain[0].source, dependent)
                if higher.key not in cached:
                    cached.add(higher.key)
                    waiting.append((higher, *chain))
        return tuple(map(self._link, longest))

    def _step(self, source: ChainSource, dependent: Dependent) -> _Step:
        """A dependent of a wheel may be in a conda package: then the step is that package."""
        if source is ChainSource.WHEELS and dependent.name not in self.wheels and dependent.name in self._provided:
            return _Step(ChainSource.CONDA, Dependent(self._provided[dependent.name].name, dependent.requirement))
        return _Step(source, dependent)

    def _package(self, step: _Step) -> _AnyPackage | None:
        name = step.dependent.name
        if step.source is ChainSource.CONDA:
            return self.conda.get(name)
        return self.wheels.get(name) or self.installed.get(name)

    def _link(self, step: _Step) -> Link:
        requirement, replaces = step.dependent.requirement, step.dependent.replaces
        if replaces:
            requirement += f" (pip.overrides, instead of {replaces})"
        package = self._package(step)
        version = package.version if package else None
        channel = package.channel if isinstance(package, CondaPackage) else None
        return Link(step.dependent.name, version, requirement, channel)


_LARGEST: Final = 5


class Download(Struct, frozen=True):
    """Downloads of one platform. size_bytes: of the files with a known size. unsized: names of the others.

    largest: (name, bytes) of the biggest files, biggest first.
    """

    files: int
    size_bytes: int
    unsized: tuple[str, ...]
    largest: tuple[tuple[str, int], ...]


def download_of(sizes: Mapping[str, int | None]) -> Download:
    """sizes: name -> bytes, None if unknown."""
    previous = {name: size for name, size in sizes.items() if size is not None}
    largest = sorted(previous.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST]
    return Download(
        files=len(sizes),
        size_bytes=sum(previous.values()),
        unsized=tuple(sorted(sizes.keys() - previous.keys())),
        largest=tuple(largest),
    )


#: SHA-256 of a wheel -> GPU code that was read from it; None if it was not read.
CachedGpuCode: TypeAlias = Callable[[str], GpuCodeFound | None]

#: Source of GPU code that no table has.
READ: Final = "read from the wheel during an image build on this machine"


class ImageExplanation(Struct, frozen=True):
    """The image of a lock. does_not_run: what its settings rule out. without: why there is none."""

    settings: ImageSettings
    system: tuple[SystemLayer, ...]
    ids: tuple[ImageId, ...]
    does_not_run: tuple[str, ...]
    without: str | None


def explain_image(lock: Lock) -> ImageExplanation | None:
    """None for a lock without a linux platform."""
    if not lock.linux_platforms:
        return None
    without = without_image(lock)
    missing: tuple[str, ...] = ()
    if not without:
        missing = tuple(_does_not_run(lock))
    return ImageExplanation(lock.image, lock.system, lock.images, missing, without)


def code_read(
    gpus: Mapping[str, ComputeCapability], package: Package, platform: Platform, cached: CachedGpuCode
) -> tuple[GpuCode, ...]:
    """The GPU code that was read from a package's wheel, if any, and the GPUs of the spec that run none of it."""
    found = cached(package.wheel.sha256)
    if found is None or not (found.sm or found.ptx):
        return ()
    source = READ
    if not has_other_kernels(package.name) and (lost := without_code(gpus, found)):
        source += f"; nothing for {', '.join(lost)}"
    return (GpuCode(platform, package.name, package.version, "", found.sm, found.ptx, source),)


def _does_not_run(lock: Lock) -> Iterator[str]:
    if lock.image.compiler != "none":
        return
    names: set[str] = set()
    for resolution in lock.resolutions:
        if resolution.target.platform.is_linux:
            names |= resolution.names
    if "triton" in names:
        yield "torch.compile and other kernels of Triton: they need a C compiler ([image] compiler)"
    elif names & {"torch", "pytorch"}:
        yield "torch.compile: on a CPU it needs a C++ compiler ([image] compiler)"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NOTHING: Final[Mapping[Platform, Sequence[SharedLibrary]]] = {}


class PlatformExplanation(Struct, frozen=True):
    """One platform of a lock. glibc, macos: the newest and the oldest that its wheels may need.

    download: wheels. shared: CUDA libraries in both the base image and the packages. conda: packages from channels;
    None if there are none. on_top_of, installed: what it is installed on top of, and the number of its packages.
    """

    platform: Platform
    python: Python
    glibc: tuple[int, int] | None
    macos: tuple[int, int] | None
    download: Download
    warnings: Why
    shared: tuple[SharedLibrary, ...]
    conda: Download | None = None
    on_top_of: str = ""
    installed: int = 0


class GpuDriver(Struct, frozen=True):
    """A GPU of the spec that needs a newer driver than the lock. minimum: its first driver, of toolkit `cuda`."""

    gpu: str
    minimum: str
    cuda: str
    source: str


class Explanation(Struct, frozen=True):
    """All decisions of a lock. gpu_code_read: from wheels, see `code_read`. image: None without a linux platform."""

    name: str
    as_of: datetime
    facts: str
    gpus: tuple[str, ...]
    decisions: tuple[Decision, ...]
    base_image: BaseImage | None
    driver: Driver | None
    gpu_code: tuple[GpuCode, ...]
    platforms: tuple[PlatformExplanation, ...]
    package_as_of: tuple[tuple[str, datetime], ...]
    conda_as_of: tuple[tuple[str, datetime], ...] = ()
    channels: tuple[CondaChannel, ...] = ()
    image: ImageExplanation | None = None
    gpu_code_read: tuple[GpuCode, ...] = ()
    platform_cuda: tuple[PlatformCuda, ...] = ()
    gpu_drivers: tuple[GpuDriver, ...] = ()
    cpu_builds: tuple[CpuBuild, ...] = ()


class PackageFile(Struct, frozen=True):
    """The file of a package on one platform. unbuilt, wrong_record: as the lock has it."""

    platform: Platform
    file: WheelFile
    uploaded: datetime | None
    unbuilt: Unbuilt | None
    wrong_record: tuple[WrongRow, ...]


class Variant(Struct, frozen=True):
    """A wheel's package on the platforms with equal values.

    chains: from the spec down to each package that requires it, the shortest ones. as_of: up to when releases were
    considered; None: its index gives no upload times, or another tool chose it. is_newest: whether that index had no
    newer release that this Python's platform could use; False too if the spec names the file or its source.
    """

    version: str
    extras: tuple[str, ...]
    chains: tuple[tuple[Link, ...], ...]
    rejected: Rejected | None
    preferred: Rejected | None
    files: tuple[PackageFile, ...]
    gpu_code: tuple[GpuCode, ...]
    gpu_code_read: tuple[GpuCode, ...] = ()
    as_of: datetime | None = None
    is_newest: bool = False


class CondaFile(Struct, frozen=True):
    """The archive of a conda package on one platform. built: None if its channel does not show it."""

    platform: Platform
    build: str
    build_number: int
    channel: str
    subdir: str
    filename: str
    url: str
    sha256: str
    size_bytes: int | None
    built: datetime | None


class CondaVariant(Struct, frozen=True):
    """A conda package on the platforms with equal values. provides: the Python packages in it.

    as_of, is_newest: as of `Variant`; records without a build time count as older.
    """

    name: str
    version: str
    channel: str
    provides: tuple[Provided, ...]
    chains: tuple[tuple[Link, ...], ...]
    rejected: Rejected | None
    preferred: Rejected | None
    files: tuple[CondaFile, ...]
    gpu_code: tuple[GpuCode, ...]
    as_of: datetime
    is_newest: bool


class InstalledVariant(Struct, frozen=True):
    """A package of what the lock is installed on top of. place: the base image, or the file that lists it."""

    platform: Platform
    version: str
    place: str
    chains: tuple[tuple[Link, ...], ...]
    gpu_code: tuple[GpuCode, ...]
    record_sha256: str | None


class PackageExplanation(Struct, frozen=True):
    """The packages of a name. variants: wheels. conda: conda packages of that name, or with a Python package of that
    name in them. absent: platforms of the lock without the package. installed: those that were there before.
    """

    name: str
    variants: tuple[Variant, ...]
    absent: tuple[Platform, ...]
    conda: tuple[CondaVariant, ...] = ()
    installed: tuple[InstalledVariant, ...] = ()


def explain_lock(
    lock: Lock, shared: Mapping[Platform, Sequence[SharedLibrary]] = _NOTHING, cached: CachedGpuCode = lambda _: None
) -> Explanation:
    """Every decision with its reason and source, and the downloads of each platform.

    shared: libraries in both image and packages, as `base_image.shared_libraries` finds them, for platforms with any.
    """
    facts = load_facts()
    gpus = capabilities_of(facts, lock.gpus)
    read: list[GpuCode] = []
    for resolution in lock.resolutions:
        for package in resolution.packages:
            read += code_read(gpus, package, resolution.target.platform, cached)
    return Explanation(
        name=lock.name,
        as_of=lock.as_of,
        facts=lock.facts,
        gpus=lock.gpus,
        decisions=all_decisions(lock),
        base_image=lock.base_image,
        driver=lock.driver,
        gpu_code=lock.gpu_code,
        platforms=tuple(_platform(item, shared.get(item.target.platform, ())) for item in lock.resolutions),
        package_as_of=lock.package_as_of,
        conda_as_of=lock.conda_as_of,
        channels=lock.channels,
        platform_cuda=lock.platform_cuda,
        image=explain_image(lock),
        gpu_drivers=tuple(_gpu_drivers(lock, gpus, facts)),
        cpu_builds=lock.cpu_builds,
        gpu_code_read=tuple(read),
    )


def _gpu_drivers(lock: Lock, gpus: Mapping[str, ComputeCapability], facts: Facts) -> Iterator[GpuDriver]:
    """The lock's own driver is for all GPUs that run its CUDA."""
    drivers = list(filter(None, (lock.driver, *(own.driver for own in lock.platform_cuda))))
    for name, capability in gpus.items():
        first = first_driver(facts, capability)
        if first and not all(at_least(driver.minimum, first.version) for driver in drivers):
            yield GpuDriver(name, first.version, str(first.cuda), first.source)


def explain_package(lock: Lock, name: str, cached: CachedGpuCode = lambda _: None) -> PackageExplanation:
    """What requires a package, which newer version was rejected, its GPU code and its files.

    name: in any spelling; a conda package is found by conda's name and by the names of the Python packages in it.

    Raises:
        UsageError: the package is not in the lock; the message names similar ones.
    """
    normal = normalised(name)
    variants: dict[tuple[object, ...], Variant] = {}
    conda: dict[tuple[object, ...], CondaVariant] = {}
    absent: list[Platform] = []
    installed: list[InstalledVariant] = []
    for resolution in lock.resolutions:
        platform = resolution.target.platform
        pins = LockedPackages(resolution)
        package, records = pins.named(normal)
        if there := pins.installed.get(normal):
            found = (_place(resolution), pins.chains(there), _code(lock, platform, normal), there.record_sha256)
            installed.append(InstalledVariant(platform, there.version, *found))
        elif package is None and not records:
            absent.append(platform)
        if package is not None:
            one = _variant(lock, package, pins, platform, cached)
            key = (one.version, one.extras, one.chains, one.rejected, one.preferred, one.as_of, one.is_newest)
            if previous := variants.get(key):
                read = (*previous.gpu_code_read, *one.gpu_code_read)
                one = replace(one, **_joined(previous, one), gpu_code_read=read)
            variants[key] = one
        for record in records:
            other = _conda_variant(lock, record, pins, platform)
            names = (other.name, other.version, other.channel, other.provides, other.chains)
            conda_key = (*names, other.rejected, other.preferred)
            if before := conda.get(conda_key):
                other = replace(other, **_joined(before, other))
            conda[conda_key] = other
    if not (variants or conda or installed):
        raise _unknown(lock, name, normal)
    return PackageExplanation(normal, tuple(variants.values()), tuple(absent), tuple(conda.values()), tuple(installed))


def _platform(resolution: Resolution, shared: Sequence[SharedLibrary]) -> PlatformExplanation:
    target = resolution.target
    conda = {package.name: package.size_bytes for package in resolution.conda}
    return PlatformExplanation(
        target.platform,
        target.python,
        target.glibc,
        target.macos,
        download_of({package.name: package.file.size_bytes for package in resolution.packages}),
        resolution.warnings,
        tuple(shared),
        download_of(conda) if conda else None,
        _place(resolution),
        len(resolution.installed),
    )


def _place(resolution: Resolution) -> str:
    """What a platform is installed on top of; empty if it is nothing."""
    return resolution.on_top_of.source if resolution.on_top_of else ""


def _variant(lock: Lock, package: Package, pins: LockedPackages, platform: Platform, cached: CachedGpuCode) -> Variant:
    is_chosen_here = not lock.is_adopted
    as_of = None
    if is_chosen_here and _is_dated(lock, package.file.index):
        as_of = _cutoff(lock.package_as_of, package.name, lock.as_of)
    is_on_index = package.file.index not in {DIRECT_URL, GIT, LOCAL}
    return Variant(
        version=package.version,
        extras=package.extras,
        chains=pins.chains(package),
        rejected=package.rejected,
        preferred=package.preferred,
        files=(PackageFile(platform, package.file, package.uploaded, package.unbuilt, package.wrong_record),),
        gpu_code=_code(lock, platform, package.name),
        gpu_code_read=code_read(capabilities_of(load_facts(), lock.gpus), package, platform, cached),
        as_of=as_of,
        is_newest=is_chosen_here and is_on_index and package.rejected is None,
    )


def _cutoff(own: Sequence[tuple[str, datetime]], name: str, as_of: datetime) -> datetime:
    for each, at in own:
        if normalised(each) == normalised(name):
            return at
    return as_of


def _is_dated(lock: Lock, index: str) -> bool:
    """Whether `as_of` bounds the releases of an index by their upload times."""
    undated = {each.name for each in lock.indexes if each.undated} | {DIRECT_URL, GIT, LOCAL}
    return index not in undated and not index.startswith(PYTORCH)


def _conda_variant(lock: Lock, package: CondaPackage, pins: LockedPackages, platform: Platform) -> CondaVariant:
    stamp = package.timestamp_ms
    file = CondaFile(
        platform,
        package.build,
        package.build_number,
        package.channel,
        package.subdir,
        package.filename,
        package.url,
        package.sha256,
        package.size_bytes,
        _EPOCH + timedelta(milliseconds=stamp) if stamp is not None else None,
    )
    return CondaVariant(
        name=package.name,
        version=package.version,
        channel=package.channel,
        provides=package.provides,
        chains=pins.chains(package),
        rejected=package.rejected,
        preferred=package.preferred,
        files=(file,),
        # The GPU code of what only a conda package holds goes by conda's name for it.
        gpu_code=() if package.name in pins.wheels else _code(lock, platform, package.name),
        as_of=_cutoff(lock.conda_as_of, package.name, lock.as_of),
        is_newest=package.rejected is None,
    )


def _code(lock: Lock, platform: Platform, name: str) -> tuple[GpuCode, ...]:
    return tuple(code for code in lock.gpu_code if code.platform is platform and code.package == name)


def _joined(one: Variant | CondaVariant, other: Variant | CondaVariant) -> dict[str, Any]:
    return {"files": (*one.files, *other.files), "gpu_code": (*one.gpu_code, *other.gpu_code)}


def _unknown(lock: Lock, name: str, normal: str) -> UsageError:
    for each in lock.overrides:
        if each.name == normal and each.removed:
            return UsageError(
                f"package {name} is not in {lock.name}: pip.overrides removes it ({each.reason})",
                hint="remove that override from the spec, and lock again, if it is needed",
            )
    names: set[str] = set()
    for resolution in lock.resolutions:
        names |= resolution.names | {package.name for package in resolution.installed}
    hint = "`envspec explain LOCK` without a name explains the lock"
    if close := difflib.get_close_matches(normal, sorted(names), n=3, cutoff=0.6):
        hint = f"did you mean {' or '.join(close)}?"
    return UsageError(f"package {name} is not in {lock.name}", hint=hint)
