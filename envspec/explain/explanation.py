"""Explanations of a lock and of one of its packages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from envspec.base_image.cuda import SharedLibrary
from envspec.errors import UsageError
from envspec.explain.chains import Link, Pins
from envspec.explain.downloads import Download, download_of
from envspec.explain.image import ImageExplanation, Seen, code_read, explain_image, nobody_looked
from envspec.models import (
    BaseImage,
    CondaChannel,
    CondaPackage,
    Decision,
    Driver,
    GpuCode,
    Lock,
    Package,
    Platform,
    Provided,
    Python,
    Rejected,
    Resolution,
    WheelFile,
)
from envspec.names import normalised

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NOTHING: Final[Mapping[Platform, Sequence[SharedLibrary]]] = {}


@dataclass(frozen=True, slots=True)
class PlatformExplanation:
    """One platform of a lock. glibc, macos: the newest and the oldest that its wheels may need.

    download: wheels. shared: CUDA libraries in both the base image and the packages. conda: packages from channels;
    None if there are none.
    """

    platform: Platform
    python: Python
    glibc: tuple[int, int] | None
    macos: tuple[int, int] | None
    download: Download
    warnings: tuple[str, ...]
    shared: tuple[SharedLibrary, ...]
    conda: Download | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
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


@dataclass(frozen=True, slots=True)
class PackageFile:
    """The file of a package on one platform."""

    platform: Platform
    file: WheelFile
    uploaded: datetime | None


@dataclass(frozen=True, slots=True)
class Variant:
    """A wheel's package on the platforms with equal values.

    chains: from the spec down to each package that requires it, the shortest ones.
    """

    version: str
    extras: tuple[str, ...]
    chains: tuple[tuple[Link, ...], ...]
    newest: Rejected | None
    files: tuple[PackageFile, ...]
    gpu_code: tuple[GpuCode, ...]
    gpu_code_read: tuple[GpuCode, ...] = ()


@dataclass(frozen=True, slots=True)
class CondaFile:
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


@dataclass(frozen=True, slots=True)
class CondaVariant:
    """A conda package on the platforms with equal values. provides: the Python packages in it."""

    name: str
    version: str
    channel: str
    provides: tuple[Provided, ...]
    chains: tuple[tuple[Link, ...], ...]
    newest: Rejected | None
    files: tuple[CondaFile, ...]
    gpu_code: tuple[GpuCode, ...]


@dataclass(frozen=True, slots=True)
class PackageExplanation:
    """The packages of a name. variants: wheels. conda: conda packages of that name, or with a Python package of that
    name in them. absent: platforms of the lock without the package.
    """

    name: str
    variants: tuple[Variant, ...]
    absent: tuple[Platform, ...]
    conda: tuple[CondaVariant, ...] = ()


def explain_lock(
    lock: Lock, shared: Mapping[Platform, Sequence[SharedLibrary]] = _NOTHING, seen: Seen = nobody_looked
) -> Explanation:
    """Every decision with its reason and source, and the downloads of each platform.

    shared: libraries in both image and packages, as `base_image.shared_libraries` finds them, for platforms with any.
    """
    return Explanation(
        name=lock.name,
        as_of=lock.as_of,
        facts=lock.facts,
        gpus=lock.gpus,
        decisions=lock.decisions,
        base_image=lock.base_image,
        driver=lock.driver,
        gpu_code=lock.gpu_code,
        platforms=tuple(_platform(item, shared.get(item.target.platform, ())) for item in lock.resolutions),
        package_as_of=lock.package_as_of,
        conda_as_of=lock.conda_as_of,
        channels=lock.channels,
        image=explain_image(lock),
        gpu_code_read=tuple(
            code
            for resolution in lock.resolutions
            for package in resolution.packages
            for code in code_read(package, resolution.target.platform, seen)
        ),
    )


def explain_package(lock: Lock, name: str, seen: Seen = nobody_looked) -> PackageExplanation:
    """What requires a package, which newer version was rejected, its GPU code and its files.

    name: in any spelling; a conda package is found by conda's name and by the names of the Python packages in it.

    Raises:
        UsageError: the package is not in the lock; the message names similar ones.
    """
    wanted = normalised(name)
    variants: dict[tuple[object, ...], Variant] = {}
    conda: dict[tuple[object, ...], CondaVariant] = {}
    absent: list[Platform] = []
    for resolution in lock.resolutions:
        platform = resolution.target.platform
        pins = Pins(resolution)
        package, rows = pins.named(wanted)
        if package is None and not rows:
            absent.append(platform)
        if package is not None:
            one = _variant(lock, package, pins, platform, seen)
            key = (one.version, one.extras, one.chains, one.newest)
            known = variants.get(key)
            variants[key] = _joined(known, one) if known else one
        for row in rows:
            other = _conda_variant(lock, row, pins, platform)
            row_key = (other.name, other.version, other.channel, other.provides, other.chains, other.newest)
            before = conda.get(row_key)
            conda[row_key] = _joined_conda(before, other) if before else other
    if not variants and not conda:
        raise _unknown(lock, name, wanted)
    return PackageExplanation(wanted, tuple(variants.values()), tuple(absent), tuple(conda.values()))


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
    )


def _variant(lock: Lock, package: Package, pins: Pins, platform: Platform, seen: Seen) -> Variant:
    return Variant(
        version=package.version,
        extras=package.extras,
        chains=pins.to_wheel(package),
        newest=package.rejected,
        files=(PackageFile(platform, package.file, package.uploaded),),
        gpu_code=_code(lock, platform, {package.name}),
        gpu_code_read=code_read(package, platform, seen),
    )


def _conda_variant(lock: Lock, package: CondaPackage, pins: Pins, platform: Platform) -> CondaVariant:
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
        chains=pins.to_conda(package),
        newest=package.rejected,
        files=(file,),
        # The GPU code of what only a conda package holds goes by conda's name for it.
        gpu_code=() if package.name in pins.wheels else _code(lock, platform, {package.name}),
    )


def _code(lock: Lock, platform: Platform, names: Collection[str]) -> tuple[GpuCode, ...]:
    return tuple(code for code in lock.gpu_code if code.platform is platform and code.package in names)


def _joined(one: Variant, other: Variant) -> Variant:
    return replace(
        one,
        files=(*one.files, *other.files),
        gpu_code=(*one.gpu_code, *other.gpu_code),
        gpu_code_read=(*one.gpu_code_read, *other.gpu_code_read),
    )


def _joined_conda(one: CondaVariant, other: CondaVariant) -> CondaVariant:
    return replace(one, files=(*one.files, *other.files), gpu_code=(*one.gpu_code, *other.gpu_code))


def _unknown(lock: Lock, name: str, wanted: str) -> UsageError:
    names = {package.name for resolution in lock.resolutions for package in resolution.packages}
    for resolution in lock.resolutions:
        for package in resolution.conda:
            names |= {package.name, *(each.name for each in package.provides)}
    close = difflib.get_close_matches(wanted, sorted(names), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "`envspec explain LOCK` without a name explains the lock"
    return UsageError(f"package {name} is not in {lock.name}", hint=hint)
