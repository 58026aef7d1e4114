"""Differences between the conda packages of two locks.

By the rules of conda's `VersionOrder`; rattler has them as well, and costs more to import than a diff. Tests hold what
is here against rattler's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import Final, TypeAlias

from envspec.base_image.cuda import variant_of_build
from envspec.models import CondaPackage, Platform, Resolution

#: A number, or letters; letters come before any number, but for `post`, and `dev` before other letters.
_Atom: TypeAlias = "tuple[int, int, str]"
_ZERO: Final = (2, 0, "")
_WORDS: Final[dict[str, _Atom]] = {"dev": (0, 0, ""), "post": (3, 0, "")}


def compare(one: str, other: str) -> int:
    """Below zero where `one` is older, above where it is newer, zero where they are the same (1.0 and 1.0.0)."""
    for left, right in zip(_parts(one), _parts(other), strict=True):
        for first, second in zip_longest(left, right, fillvalue=()):
            for a, b in zip_longest(first, second, fillvalue=_ZERO):
                if a != b:
                    return -1 if a < b else 1
    return 0


def _parts(version: str) -> tuple[list[tuple[_Atom, ...]], ...]:
    """Epoch, version and local version, each as its components."""
    epoch, _, rest = version.lower().rpartition("!")
    public, _, local = rest.partition("+")
    return _components(epoch), _components(public), _components(local)


def _components(text: str) -> list[tuple[_Atom, ...]]:
    return [_atoms(component) for component in re.split(r"[._-]", text)]


def _atoms(component: str) -> tuple[_Atom, ...]:
    """`4a` is 4 and a; `a4` is 0, a and 4: what begins with letters stands below any number."""
    runs = [_WORDS.get(run) or ((2, int(run), "") if run.isdecimal() else (1, 0, run)) for run in _runs(component)]
    return tuple(runs) if component[:1].isdecimal() else (_ZERO, *runs)


def _runs(component: str) -> list[str]:
    return re.findall(r"[0-9]+|[^0-9]+", component)


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
class CondaRecordValues:
    """The values of a channel's record in a diff."""

    build: str
    channel: str
    filename: str
    sha256: str
    depends: tuple[str, ...]
    constrains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CondaRecordChange:
    """The rows of one platform; None before the package was added and after it was removed."""

    platform: Platform
    old: CondaRecordValues | None
    new: CondaRecordValues | None

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
    records: tuple[CondaRecordChange, ...]

    @property
    def platforms(self) -> tuple[Platform, ...]:
        return tuple(record.platform for record in self.records)


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
                previous = merged.get(key)
                merged[key] = replace(previous, records=(*previous.records, *change.records)) if previous else change
    return tuple(
        sorted(merged.values(), key=lambda change: (change.name, tuple(each.value for each in change.platforms)))
    )


def _by_name(packages: Iterable[CondaPackage]) -> dict[str, CondaPackage]:
    return {package.name: package for package in packages}


def _change(name: str, old: CondaPackage | None, new: CondaPackage | None, platform: Platform) -> CondaChange | None:
    before, after = _record(old) if old else None, _record(new) if new else None
    move = _version_move(old, new) or _record_move(before, after)
    if move is None:
        return None
    versions = (old.version if old else None, new.version if new else None)
    return CondaChange(move, name, *versions, (CondaRecordChange(platform, before, after),))


def _record(package: CondaPackage) -> CondaRecordValues:
    return CondaRecordValues(
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
    comparison = compare(old.version, new.version)
    return CondaMove.UP if comparison < 0 else CondaMove.DOWN if comparison > 0 else CondaMove.MOVED


def _record_move(old: CondaRecordValues | None, new: CondaRecordValues | None) -> CondaMove | None:
    if old is None or new is None or old == new:
        return None
    if old.build != new.build:
        return CondaMove.BUILD
    return CondaMove.DEPENDS if (old.depends, old.constrains) != (new.depends, new.constrains) else None
