"""What differs between the conda halves of two locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from envspec.base_image.types import variant_of_build
from envspec.lock.conda_version import compare
from envspec.models import CondaPackage, Platform, Resolution


class CondaMove(Enum):
    """What happened to a conda package. MOVED: to another spelling of its version. BUILD, DEPENDS: the version stayed,
    and the first of them that differs. DEPENDS: its channel says something else of the same file. Another file of the
    same build is no move: see `diff_replaced`.
    """

    ADDED = "added"
    REMOVED = "removed"
    UP = "up"
    DOWN = "down"
    MOVED = "moved"
    BUILD = "build"
    DEPENDS = "depends"


@dataclass(frozen=True, slots=True)
class CondaRow:
    """What a diff tells of a row of a channel."""

    build: str
    channel: str
    filename: str
    sha256: str
    depends: tuple[str, ...]
    constrains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CondaRowChange:
    """The rows of one platform; None before the package was added and after it was removed."""

    platform: Platform
    old: CondaRow | None
    new: CondaRow | None

    @property
    def changes_variant(self) -> bool:
        """Whether one is a build for CUDA or the CPU and the other is not the same: it does not show in a version."""
        old, new = self.old, self.new
        return old is not None and new is not None and variant_of_build(old.build) != variant_of_build(new.build)


@dataclass(frozen=True, slots=True)
class CondaChange:
    """One conda package, on those platforms of both locks where the same happened to its version.

    old, new: versions; None before it was added and after it was removed. rows: one for each platform.
    """

    move: CondaMove
    name: str
    old: str | None
    new: str | None
    rows: tuple[CondaRowChange, ...]

    @property
    def platforms(self) -> tuple[Platform, ...]:
        return tuple(row.platform for row in self.rows)


def conda_changes(
    olds: Mapping[Platform, Resolution], news: Mapping[Platform, Resolution], both: Sequence[Platform]
) -> tuple[CondaChange, ...]:
    """The packages that differ on the platforms of both locks, by name."""
    merged: dict[tuple[str, str, str | None, str | None], CondaChange] = {}
    for platform in both:
        before, after = _by_name(olds[platform].conda), _by_name(news[platform].conda)
        for name in sorted(before.keys() | after.keys()):
            change = _change(name, before.get(name), after.get(name), platform)
            if change:
                key = (name, change.move.value, change.old, change.new)
                known = merged.get(key)
                merged[key] = replace(known, rows=(*known.rows, *change.rows)) if known else change
    return tuple(
        sorted(merged.values(), key=lambda change: (change.name, tuple(each.value for each in change.platforms)))
    )


def _by_name(packages: Iterable[CondaPackage]) -> dict[str, CondaPackage]:
    return {package.name: package for package in packages}


def _change(name: str, old: CondaPackage | None, new: CondaPackage | None, platform: Platform) -> CondaChange | None:
    before, after = _row(old) if old else None, _row(new) if new else None
    move = _version_move(old, new) or _row_move(before, after)
    if move is None:
        return None
    versions = (old.version if old else None, new.version if new else None)
    return CondaChange(move, name, *versions, (CondaRowChange(platform, before, after),))


def _row(package: CondaPackage) -> CondaRow:
    return CondaRow(
        package.build,
        package.channel,
        package.filename,
        package.sha256,
        tuple(sorted(package.depends)),
        tuple(sorted(package.constrains)),
    )


def _version_move(old: CondaPackage | None, new: CondaPackage | None) -> CondaMove | None:
    if old is None or new is None:
        return CondaMove.REMOVED if old else CondaMove.ADDED
    if old.version == new.version:
        return None
    order = compare(old.version, new.version)
    return CondaMove.UP if order < 0 else CondaMove.DOWN if order > 0 else CondaMove.MOVED


def _row_move(old: CondaRow | None, new: CondaRow | None) -> CondaMove | None:
    if old is None or new is None or old == new:
        return None
    if old.build != new.build:
        return CondaMove.BUILD
    return CondaMove.DEPENDS if (old.depends, old.constrains) != (new.depends, new.constrains) else None
