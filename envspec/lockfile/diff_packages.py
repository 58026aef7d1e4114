"""What happened to the packages of two locks, those from PyPI and those from conda channels.

Versions of conda packages are compared by the rules of conda's `VersionOrder`; rattler has them as well, and costs more
to import than a diff. Tests compare the two.

Another Python series or glibc changes the wheel of every compiled package: `without_retagged` groups such changes,
which hide the rest if they are reported one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest
from typing import Final, TypeAlias, TypeVar

from packaging.version import InvalidVersion, Version

from envspec.base_image.cuda import variant_of_build
from envspec.models import CondaPackage, Package, Platform, Resolution, Target
from envspec.origins import origin_of

_Pinned = TypeVar("_Pinned", Package, CondaPackage)
Resolutions: TypeAlias = Mapping[Platform, Resolution]


class Move(Enum):
    """What happened to a package. MOVED: to another version; which of the two is higher is unknown, or they are two
    spellings of one. FILE (PyPI), BUILD, DEPENDS (conda): the version is the same. DEPENDS: the channel has other
    requirements for the same file. Another file of the same build is no move: see `diff.Replaced`.
    """

    ADDED = "added"
    REMOVED = "removed"
    UP = "up"
    DOWN = "down"
    MOVED = "moved"
    FILE = "file"
    BUILD = "build"
    DEPENDS = "depends"


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
    """The records of one platform; None before the package was added and after it was removed."""

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
    """As PackageChange. records: one for each platform."""

    move: Move
    name: str
    old: str | None
    new: str | None
    records: tuple[CondaRecordChange, ...]

    @property
    def platforms(self) -> tuple[Platform, ...]:
        return tuple(record.platform for record in self.records)


def package_changes(olds: Resolutions, news: Resolutions, both: Sequence[Platform]) -> tuple[PackageChange, ...]:
    """The packages from PyPI that differ on the platforms of both locks, by name."""

    def move(old: Package, new: Package, platform: Platform) -> Move | None:
        if old.version != new.version:
            return _direction(old.version, new.version)
        is_same = _identity(old) == _identity(new)
        is_replaced = is_replaced_wheel(old, new, olds[platform].target, news[platform].target)
        return None if is_same or is_replaced else Move.FILE

    return tuple(
        PackageChange(
            *key,
            tuple(platform for platform, _, _ in pairs),
            tuple(
                FileChange(platform, _identity(old), _identity(new))
                for platform, old, new in pairs
                if old and new and key[0] is Move.FILE
            ),
        )
        for key, pairs in _moves({p: (olds[p].packages, news[p].packages) for p in both}, move)
    )


def conda_changes(olds: Resolutions, news: Resolutions, both: Sequence[Platform]) -> tuple[CondaChange, ...]:
    """The conda packages that differ on the platforms of both locks, by name."""
    return tuple(
        CondaChange(
            *key,
            tuple(
                CondaRecordChange(platform, _record(old) if old else None, _record(new) if new else None)
                for platform, old, new in pairs
            ),
        )
        for key, pairs in _moves({p: (olds[p].conda, news[p].conda) for p in both}, _conda_move)
    )


_Key: TypeAlias = tuple[Move, str, "str | None", "str | None"]
_Pairs: TypeAlias = "list[tuple[Platform, _Pinned | None, _Pinned | None]]"


def _moves(
    pinned: Mapping[Platform, tuple[Iterable[_Pinned], Iterable[_Pinned]]],
    move_of: Callable[[_Pinned, _Pinned, Platform], Move | None],
) -> list[tuple[_Key, _Pairs[_Pinned]]]:
    """(move, name, old and new version) and the packages with this move on each platform, by name.

    pinned: the packages of the old and of the new lock. move_of: what happened to a package that both have.
    """
    found: dict[_Key, _Pairs[_Pinned]] = {}
    for platform, sides in pinned.items():
        before, after = ({each.name: each for each in side} for side in sides)
        for name in before.keys() | after.keys():
            old, new = before.get(name), after.get(name)
            move = move_of(old, new, platform) if old and new else Move.REMOVED if old else Move.ADDED
            if move:
                key = (move, name, old.version if old else None, new.version if new else None)
                found.setdefault(key, []).append((platform, old, new))
    return sorted(found.items(), key=lambda item: (item[0][1], [platform.value for platform, _, _ in item[1]]))


def _identity(package: Package) -> FileIdentity:
    return FileIdentity(package.file.index, package.file.filename, package.file.sha256)


def _direction(old: str, new: str) -> Move:
    try:
        return Move.UP if Version(new) > Version(old) else Move.DOWN
    except InvalidVersion:
        return Move.MOVED


def is_replaced_wheel(old: Package, new: Package, before: Target, after: Target) -> bool:
    """Whether a package has another file than its version and its target explain.

    Another Python, glibc or macOS takes another wheel of the same release, from the same place.
    """
    files = ((each.file.index, each.file.filename, each.file.url, each.file.sha256) for each in (old, new))
    if old.version != new.version or len(set(files)) == 1:
        return False
    targets = ((each.python.series, each.glibc, each.macos) for each in (before, after))
    order = ((each.file.index, origin_of(each.file.url or "")) for each in (old, new))
    return len(set(targets)) == 1 or len(set(order)) > 1 or old.file.filename == new.file.filename


def _record(package: CondaPackage) -> CondaRecordValues:
    return CondaRecordValues(
        package.build,
        package.channel,
        package.filename,
        package.sha256,
        tuple(sorted(package.depends)),
        tuple(sorted(package.constrains)),
    )


def _conda_move(old: CondaPackage, new: CondaPackage, _: Platform) -> Move | None:
    if old.version != new.version:
        comparison = compare(old.version, new.version)
        return Move.UP if comparison < 0 else Move.DOWN if comparison > 0 else Move.MOVED
    if old.build != new.build:
        return Move.BUILD
    before, after = _record(old), _record(new)
    return Move.DEPENDS if (before.depends, before.constrains) != (after.depends, after.constrains) else None


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


@dataclass(frozen=True, slots=True)
class Retagged:
    """old, new: `cp311-cp311` or `manylinux_2_28_x86_64` if only that part of the tag differs, else the whole tag.

    packages: `name version` of each package with this change on these platforms.
    """

    old: str
    new: str
    platforms: tuple[Platform, ...]
    packages: tuple[str, ...]


def without_retagged(
    changes: Sequence[PackageChange],
) -> tuple[tuple[PackageChange, ...], tuple[Retagged, ...]]:
    """The changes that are reported one by one, and the others grouped by their tags.

    A file of another index, or another file of the same name, is always reported by itself.
    """
    rest: list[PackageChange] = []
    groups: dict[tuple[str, str, tuple[Platform, ...]], list[str]] = {}
    for change in changes:
        moved = _tag_changes(change)
        if not moved:
            rest.append(change)
        for (old, new), platforms in moved.items():
            groups.setdefault((old, new, tuple(platforms)), []).append(f"{change.name} {change.new}")
    return tuple(rest), tuple(Retagged(*key, tuple(packages)) for key, packages in groups.items())


def _tag_changes(change: PackageChange) -> dict[tuple[str, str], list[Platform]]:
    """(old tag, new tag) -> platforms; empty if anything else differs on any platform."""
    found: dict[tuple[str, str], list[Platform]] = {}
    for file in change.files if change.move is Move.FILE else ():
        tags = _tags(file)
        if tags is None:
            return {}
        found.setdefault(tags, []).append(file.platform)
    return found


def _tags(file: FileChange) -> tuple[str, str] | None:
    """What differs between the tags of two wheels; None if more than the tags differs, or nothing."""
    old_stem, *old = file.old.filename.rsplit("-", 3)
    new_stem, *new = file.new.filename.rsplit("-", 3)
    are_wheels = file.old.filename.endswith(".whl") and file.new.filename.endswith(".whl")
    if not are_wheels or file.old.index != file.new.index or old_stem != new_stem or old == new:
        return None
    if len(old) != 3 or len(new) != 3:
        return None
    if old[2] == new[2]:
        return "-".join(old[:2]), "-".join(new[:2])
    if old[:2] == new[:2]:
        return old[2].removesuffix(".whl"), new[2].removesuffix(".whl")
    return "-".join(old).removesuffix(".whl"), "-".join(new).removesuffix(".whl")
