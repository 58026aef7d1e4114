"""What there is to tell of a lock, and of one package in it."""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from envspec.base_image.shared_libraries import SharedLibrary
from envspec.errors import UsageError
from envspec.model import (
    Asker,
    BaseImage,
    Decision,
    Driver,
    GpuCode,
    Lock,
    Package,
    Platform,
    Python,
    Refusal,
    Resolution,
    WheelFile,
)

#: The asker at the end of every chain: the user.
SPEC: Final = "spec"
_LARGEST: Final = 5
_NOTHING: Final[Mapping[Platform, Sequence[SharedLibrary]]] = {}


@dataclass(frozen=True, slots=True)
class Download:
    """What one platform has to fetch. size_bytes: of the files whose size is known. unsized: names of the others.

    largest: (name, bytes) of the biggest files, biggest first.
    """

    files: int
    size_bytes: int
    unsized: tuple[str, ...]
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PlatformExplanation:
    """One platform of a lock. glibc, macos: the newest and the oldest that its wheels may need.

    shared: CUDA libraries that the base image and the wheels both hold.
    """

    platform: Platform
    python: Python
    glibc: tuple[int, int] | None
    macos: tuple[int, int] | None
    download: Download
    warnings: tuple[str, ...]
    shared: tuple[SharedLibrary, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that was decided for a lock."""

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


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: `name` at `version` asked in the words of `requirement`. version: None for the spec."""

    name: str
    version: str | None
    requirement: str


@dataclass(frozen=True, slots=True)
class PackageFile:
    """The file of a package on one platform."""

    platform: Platform
    file: WheelFile
    uploaded: datetime | None


@dataclass(frozen=True, slots=True)
class Variant:
    """A package on those platforms where all of this is the same.

    chains: from the spec down to whoever asked for the package, the shortest for each who did.
    """

    version: str
    extras: tuple[str, ...]
    chains: tuple[tuple[Link, ...], ...]
    newest: Refusal | None
    files: tuple[PackageFile, ...]
    gpu_code: tuple[GpuCode, ...]


@dataclass(frozen=True, slots=True)
class PackageExplanation:
    """One package of a lock. absent: platforms of the lock that do without it."""

    name: str
    variants: tuple[Variant, ...]
    absent: tuple[Platform, ...]


def explain_lock(lock: Lock, shared: Mapping[Platform, Sequence[SharedLibrary]] = _NOTHING) -> Explanation:
    """Every decision with its reason and source, and what each platform fetches.

    shared: what `base_image.shared_libraries` finds that image and wheels both hold, for platforms with any.
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
    )


def explain_package(lock: Lock, name: str) -> PackageExplanation:
    """Who asked for a package, what was refused, its GPU code and its files. name: in any spelling.

    Raises:
        UsageError: the lock holds no such package; names those that look alike.
    """
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    variants: dict[tuple[object, ...], Variant] = {}
    absent: list[Platform] = []
    for resolution in lock.resolutions:
        platform = resolution.target.platform
        packages = {package.name: package for package in resolution.packages}
        package = packages.get(wanted)
        if package is None:
            absent.append(platform)
            continue
        one = _variant(lock, package, packages, platform)
        key = (one.version, one.extras, one.chains, one.newest)
        known = variants.get(key)
        variants[key] = _joined(known, one) if known else one
    if not variants:
        raise _unknown(lock, name, wanted)
    return PackageExplanation(wanted, tuple(variants.values()), tuple(absent))


def _platform(resolution: Resolution, shared: Sequence[SharedLibrary]) -> PlatformExplanation:
    target = resolution.target
    sizes = {package.name: package.file.size_bytes for package in resolution.packages}
    known = {name: size for name, size in sizes.items() if size is not None}
    largest = sorted(known.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST]
    download = Download(
        files=len(resolution.packages),
        size_bytes=sum(known.values()),
        unsized=tuple(sorted(sizes.keys() - known.keys())),
        largest=tuple(largest),
    )
    return PlatformExplanation(
        target.platform, target.python, target.glibc, target.macos, download, resolution.warnings, tuple(shared)
    )


def _variant(lock: Lock, package: Package, packages: Mapping[str, Package], platform: Platform) -> Variant:
    return Variant(
        version=package.version,
        extras=package.extras,
        chains=tuple(_chain(asker, package.name, packages) for asker in package.askers),
        newest=package.newest,
        files=(PackageFile(platform, package.file, package.uploaded),),
        gpu_code=tuple(code for code in lock.gpu_code if (code.platform, code.package) == (platform, package.name)),
    )


def _joined(one: Variant, other: Variant) -> Variant:
    return Variant(
        one.version,
        one.extras,
        one.chains,
        one.newest,
        (*one.files, *other.files),
        (*one.gpu_code, *other.gpu_code),
    )


def _chain(asker: Asker, asked: str, packages: Mapping[str, Package]) -> tuple[Link, ...]:
    """The shortest way from the spec to `asker`, which is last; where none begins at the spec, as far up as it goes.

    It does not lead through the package that was asked for. Of ways of one length the first by name, so that the same
    lock always tells the same.
    """
    waiting: deque[tuple[Asker, ...]] = deque([(asker,)])
    seen = {asked, asker.name}
    longest: tuple[Asker, ...] = (asker,)
    while waiting:
        way = waiting.popleft()
        longest = way
        if way[0].name == SPEC:
            break
        above = packages.get(way[0].name)
        for higher in sorted(above.askers) if above else ():
            if higher.name not in seen:
                seen.add(higher.name)
                waiting.append((higher, *way))
    return tuple(
        Link(step.name, packages[step.name].version if step.name in packages else None, step.requirement)
        for step in longest
    )


def _unknown(lock: Lock, name: str, wanted: str) -> UsageError:
    names = sorted({package.name for resolution in lock.resolutions for package in resolution.packages})
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else "`envspec explain LOCK` without a name tells of the lock"
    return UsageError(f"{lock.name} holds no package {name}", hint=hint)
