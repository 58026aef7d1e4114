"""What differs between two locks: packages, files, the image, the driver, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from packaging.version import InvalidVersion, Version

from envspec.lock.diff_conda import CondaChange, conda_changes
from envspec.lock.diff_image import image_values
from envspec.lock.diff_replaced import Replaced, is_replaced_wheel, replaced_files
from envspec.lockfile.toml_writer import time_text
from envspec.models import BaseImage, GpuCode, Lock, Package, Platform, Resolution, Target


class Move(Enum):
    """What happened to a package. MOVED: to another version; which of the two is higher is unknown."""

    ADDED = "added"
    REMOVED = "removed"
    UP = "up"
    DOWN = "down"
    MOVED = "moved"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What identifies a wheel or sdist. index: its name in the lock."""

    index: str
    filename: str
    sha256: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """The file of a package on one platform, if its version is the same."""

    platform: Platform
    old: FileIdentity
    new: FileIdentity


@dataclass(frozen=True, slots=True)
class PackageChange:
    """One package, on the platforms of both locks with equal changes.

    old, new: versions; None before it was added and after it was removed. files: for Move.FILE alone.
    """

    move: Move
    name: str
    old: str | None
    new: str | None
    platforms: tuple[Platform, ...]
    files: tuple[FileChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueChange:
    """One value of the lock. old, new: None if it is missing. platforms: empty if it does not depend on them.

    why: the reason in the new lock, or in the old one if the value was removed.
    """

    what: str
    old: str | None
    new: str | None
    platforms: tuple[Platform, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class LockDiff:
    """All differences, in the order of reports.

    platforms: those of both locks. A platform of one lock only is a change of `environment`, and its packages are not
    listed. packages: from PyPI. replaced: files replaced at the same version; the other lists do not repeat them.
    """

    old_name: str
    new_name: str
    platforms: tuple[Platform, ...]
    environment: tuple[ValueChange, ...]
    packages: tuple[PackageChange, ...]
    decisions: tuple[ValueChange, ...]
    conda: tuple[CondaChange, ...] = ()
    replaced: tuple[Replaced, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.replaced or self.environment or self.conda or self.packages or self.decisions)


def diff_locks(old: Lock, new: Lock) -> LockDiff:
    """Compare two locks of one environment, or of two."""
    olds, news = _by_platform(old), _by_platform(new)
    both = tuple(sorted(olds.keys() & news.keys(), key=lambda platform: platform.value))
    reasons = {
        (decision.what, platform): decision.why
        for lock in (old, new)
        for decision in lock.decisions
        for platform in (decision.platform, None)
    }
    environment = _values(_environment(old, new, both), _environment(new, old, both), reasons)
    decisions = _values(_decided(old, both), _decided(new, both), reasons)
    told = {change.what for change in environment}
    replaced = replaced_files(old, new, olds, news)
    shown = {(what, platform) for each in replaced for what in _values_of(each) for platform in each.platforms}
    return LockDiff(
        old_name=old.name,
        new_name=new.name,
        platforms=both,
        environment=tuple(
            each for each in environment if not each.platforms or {(each.what, p) for p in each.platforms} - shown
        ),
        packages=_packages(olds, news, both),
        decisions=tuple(change for change in decisions if change.what not in told),
        conda=conda_changes(olds, news, both),
        replaced=replaced,
    )


def _values_of(each: Replaced) -> tuple[str, ...]:
    """The values that say no more than what was replaced."""
    values = {"base image": ("image.digest",), "Python": ("python.sha256",), "built wheel": (f"built.{each.name}",)}
    return values.get(each.kind, ())


def _by_platform(lock: Lock) -> dict[Platform, Resolution]:
    return {resolution.target.platform: resolution for resolution in lock.resolutions}


#: (what, platform or none) -> value. What has no value is not there.
_Values: TypeAlias = Mapping[tuple[str, Platform | None], str]


def _environment(lock: Lock, other: Lock, both: Sequence[Platform]) -> _Values:
    """Everything but packages and decisions, under the keys that decisions have where there is one for it."""
    image, driver = lock.base_image, lock.driver
    resolutions = _by_platform(lock)
    values: dict[tuple[str, Platform | None], str | None] = {
        ("name", None): lock.name,
        ("spec", None): lock.input_sha256[:12],
        ("as_of", None): time_text(lock.as_of),
        ("facts", None): lock.facts,
        ("platforms", None): ", ".join(sorted(platform.value for platform in resolutions)),
        ("gpus", None): ", ".join(lock.gpus),
        ("channels", None): ", ".join(channel.name for channel in lock.channels),
        ("image.tag", None): image_name(image) if image else None,
        ("image.os", None): image.os if image else None,
        ("image.flavor", None): image.flavor if image else None,
        ("cuda.release", None): image.cuda_release if image else None,
        ("driver.minimum", None): driver.minimum if driver else None,
        ("driver.bundled", None): driver.bundled if driver else None,
    }
    if lock.conformance:
        size = lock.conformance.world_size
        values["conformance.checks", None] = ", ".join(lock.conformance.checks) or "all, none required"
        values["conformance.world_size", None] = "all" if size is None else str(size)
    for platform in both:
        target = resolutions[platform].target
        values["python", platform] = target.python.version
        values["python.source", platform] = target.python.source
        values["python.sha256", platform] = target.python.sha256
        values["glibc", platform] = _level(target.glibc)
        values["macos", platform] = _level(target.macos)
    for pinned in image.digests if image else ():
        values["image.digest", pinned.platform] = pinned.digest or "unresolved"
    values |= image_values(lock, other)
    for index in lock.indexes:
        words = [index.url, *index.packages, *(["undated"] if index.undated else [])]
        values[f"index.{index.name}", None] = " ".join(words)
    for name, as_of in lock.package_as_of:
        values[f"as_of.{name}", None] = time_text(as_of)
    for name, as_of in lock.conda_as_of:
        values[f"conda_as_of.{name}", None] = time_text(as_of)
    for channel in lock.channels:
        if channel.part:
            values[f"channel.{channel.name}.part", None] = (
                f"{channel.part.records:,} records, sha256:{channel.part.sha256}"
            )
    for code in lock.gpu_code:
        values[f"gpu_code.{code.package}", code.platform] = _code(code)
    return {key: value for key, value in values.items() if value and (key[1] is None or key[1] in both)}


def image_name(image: BaseImage) -> str:
    """`docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04`; without a tag where the spec names a digest alone."""
    return f"{image.repository}:{image.tag}" if image.tag else image.repository


def _level(level: tuple[int, int] | None) -> str | None:
    return level and f"{level[0]}.{level[1]}"


def _code(code: GpuCode) -> str:
    return " ".join((f"{code.variant}:", *code.sm, *code.ptx))


def _decided(lock: Lock, both: Sequence[Platform]) -> _Values:
    return {
        (decision.what, decision.platform): decision.value
        for decision in lock.decisions
        if decision.platform is None or decision.platform in both
    }


def _values(old: _Values, new: _Values, reasons: Mapping[tuple[str, Platform | None], str]) -> tuple[ValueChange, ...]:
    """What differs, in the order of the keys; platforms on which the same happened together."""
    changes: dict[tuple[str, str | None, str | None], list[Platform]] = {}
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if before != after:
            changes.setdefault((key[0], before, after), []).extend([key[1]] if key[1] else [])
    # All that is told of one key stands together, at the place where the key came first.
    places = {key[0]: place for place, key in reversed(list(enumerate(changes)))}
    return tuple(
        ValueChange(what, before, after, tuple(platforms), _reason(what, platforms, reasons))
        for (what, before, after), platforms in sorted(changes.items(), key=lambda item: places[item[0][0]])
    )


def _reason(what: str, platforms: Sequence[Platform], reasons: Mapping[tuple[str, Platform | None], str]) -> str:
    told = (reasons.get((what, platform)) for platform in (*platforms[:1], None))
    return next(filter(None, told), "")


def _packages(
    olds: Mapping[Platform, Resolution], news: Mapping[Platform, Resolution], both: Sequence[Platform]
) -> tuple[PackageChange, ...]:
    merged: dict[tuple[str, str | None, str | None], PackageChange] = {}
    for platform in both:
        before = {package.name: package for package in olds[platform].packages}
        after = {package.name: package for package in news[platform].packages}
        for name in before.keys() | after.keys():
            change = _change(before.get(name), after.get(name), olds[platform].target, news[platform].target)
            if change:
                key = (name, change.old, change.new)
                known = merged.get(key)
                merged[key] = (
                    replace(known, platforms=(*known.platforms, *change.platforms), files=(*known.files, *change.files))
                    if known
                    else change
                )
    return tuple(
        sorted(
            merged.values(),
            key=lambda change: (change.name, tuple(platform.value for platform in change.platforms)),
        )
    )


def _change(old: Package | None, new: Package | None, before: Target, after: Target) -> PackageChange | None:
    platform = after.platform
    if old is None and new is not None:
        return PackageChange(Move.ADDED, new.name, None, new.version, (platform,))
    if new is None and old is not None:
        return PackageChange(Move.REMOVED, old.name, old.version, None, (platform,))
    if old is None or new is None:
        return None
    if old.version != new.version:
        return PackageChange(_direction(old.version, new.version), new.name, old.version, new.version, (platform,))
    is_same = (old.file.filename, old.file.sha256) == (new.file.filename, new.file.sha256)
    if is_same or is_replaced_wheel(old, new, before, after):
        return None
    before_file, after_file = (
        FileIdentity(each.file.index, each.file.filename, each.file.sha256) for each in (old, new)
    )
    file = FileChange(platform, before_file, after_file)
    return PackageChange(Move.FILE, new.name, old.version, new.version, (platform,), (file,))


def _direction(old: str, new: str) -> Move:
    try:
        return Move.UP if Version(new) > Version(old) else Move.DOWN
    except InvalidVersion:
        return Move.MOVED
