"""What happened to the packages of two locks, those from PyPI and those from conda channels.

Another Python series or glibc changes the wheel of every compiled package: `without_retagged` groups such changes,
which hide the rest if they are reported one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeAlias, TypeVar

from msgspec import Struct
from packaging.version import InvalidVersion, Version

from envspec.base_image.cuda import variant_of_build
from envspec.models import CondaPackage, Package, Platform, Resolution, Target
from envspec.origins import origin_of
from envspec.structs import replace

_Pinned = TypeVar("_Pinned", Package, CondaPackage)
Resolutions: TypeAlias = Mapping[Platform, Resolution]


class Move(Enum):
    """What happened to a package. MOVED: to another version; which of the two is higher is unknown, or they are two
    spellings of one. FILE (PyPI), BUILD, DEPENDS (conda): the version is the same. DEPENDS: the channel has other
    requirements for the same file. REPLACED: another file of the same version, or of the same build, which nothing
    explains.
    """

    ADDED = "added"
    REMOVED = "removed"
    UP = "up"
    DOWN = "down"
    MOVED = "moved"
    FILE = "file"
    BUILD = "build"
    DEPENDS = "depends"
    REPLACED = "replaced"


class Detail(Struct, frozen=True):
    """What else differs of a package or a file, such as its index or its hash. old, new: None if it is missing."""

    name: str
    old: str | None
    new: str | None


class Change(Struct, frozen=True):
    """One difference between two locks.

    name: of a package or a file, or the key of a value.
    old, new: versions of a package, or the values; None if it is missing.
    move: what happened to a package or a file; None for values.
    kind: of a replaced file: `wheel`, `built wheel`, `conda package`, `Python` or `base image`.
    platforms: those on which it is the same change; empty if it does not depend on them.
    why: the reason in the new lock, or in the old one if the value was removed.
    """

    name: str
    old: str | None
    new: str | None
    move: Move | None = None
    kind: str = ""
    platforms: tuple[Platform, ...] = ()
    why: str = ""
    details: tuple[Detail, ...] = ()


def grouped(changes: Iterable[tuple[Platform | None, Change]]) -> tuple[Change, ...]:
    """Equal changes of several platforms as one, in the order of the first ones. None: of no platform."""
    platforms: dict[Change, list[Platform]] = {}
    for platform, change in changes:
        found = platforms.setdefault(change, [])
        if platform:
            found.append(platform)
    return tuple(replace(change, platforms=tuple(found)) for change, found in platforms.items())


def package_changes(olds: Resolutions, news: Resolutions, both: Sequence[Platform]) -> tuple[Change, ...]:
    """The packages from PyPI that differ on the platforms of both locks, by name."""

    def change(old: Package, new: Package, platform: Platform) -> Change | None:
        if old.version != new.version:
            return Change(new.name, old.version, new.version, _direction(old.version, new.version))
        details = attributes(old.file, new.file, "index", "filename", "sha256")
        if not details or is_replaced_wheel(old, new, olds[platform].target, news[platform].target):
            return None
        return Change(new.name, old.version, new.version, Move.FILE, details=details)

    return _changes({p: (by_name(olds[p].packages), by_name(news[p].packages)) for p in both}, change)


def conda_changes(olds: Resolutions, news: Resolutions, both: Sequence[Platform]) -> tuple[Change, ...]:
    """The conda packages that differ on the platforms of both locks, by name."""
    return _changes({p: (by_name(olds[p].conda), by_name(news[p].conda)) for p in both}, _conda_change)


def by_name(packages: Iterable[_Pinned]) -> dict[str, _Pinned]:
    return {each.name: each for each in packages}


def _changes(
    pinned: Mapping[Platform, tuple[Mapping[str, _Pinned], Mapping[str, _Pinned]]],
    change_of: Callable[[_Pinned, _Pinned, Platform], Change | None],
) -> tuple[Change, ...]:
    """The changes of each platform, by name.

    pinned: the packages of the old and of the new lock. change_of: the change of a package that both have.
    """

    def changes() -> Iterator[tuple[Platform, Change]]:
        for platform, (olds, news) in pinned.items():
            for name in olds.keys() | news.keys():
                old, new = olds.get(name), news.get(name)
                if old and new:
                    change = change_of(old, new, platform)
                elif old:
                    change = Change(name, old.version, None, Move.REMOVED)
                elif new:
                    change = Change(name, None, new.version, Move.ADDED)
                if change:
                    yield platform, change

    return tuple(sorted(grouped(changes()), key=lambda change: (change.name, [p.value for p in change.platforms])))


def attributes(old: object, new: object, *names: str) -> tuple[Detail, ...]:
    """What differs between two values of one class, of what they have under these names."""
    found = []
    for name in names:
        before, after = getattr(old, name) or None, getattr(new, name) or None
        if before != after:
            found.append(Detail(name.replace("filename", "file"), before, after))
    return tuple(found)


def _direction(old: str, new: str) -> Move:
    try:
        return Move.UP if Version(new) > Version(old) else Move.DOWN
    except InvalidVersion:
        return Move.MOVED


def is_replaced_wheel(old: Package, new: Package, before: Target, after: Target) -> bool:
    """Whether a package has another file than its version and its target explain.

    Another Python, glibc or macOS takes another wheel of the same release, from the same place.
    """
    was, now = old.file, new.file
    if old.version != new.version or not attributes(was, now, "index", "filename", "url", "sha256"):
        return False
    is_same_target = before.python.series == after.python.series and not attributes(before, after, "glibc", "macos")
    is_same_place = was.index == now.index and origin_of(was.url or "") == origin_of(now.url or "")
    return is_same_target or not is_same_place or was.filename == now.filename


def _conda_change(old: CondaPackage, new: CondaPackage, _: Platform) -> Change | None:
    requirements = []
    for name in ("depends", "constrains"):
        before, after = getattr(old, name), getattr(new, name)
        if sorted(before) != sorted(after):
            requirements.append(_without_shared(name, before, after))
    changed = ["channel"]
    if old.version != new.version:
        move = _conda_direction(old.version, new.version)
        requirements = []
        # Another version always has another build: it matters only if it changes between CUDA and CPU.
        if variant_of_build(old.build) != variant_of_build(new.build):
            changed = ["build", "channel"]
    elif old.build != new.build:
        move, changed, requirements = Move.BUILD, ["build", "channel"], []
    elif requirements:
        move = Move.DEPENDS
    else:
        return None
    return Change(new.name, old.version, new.version, move, details=(*attributes(old, new, *changed), *requirements))


def _conda_direction(old: str, new: str) -> Move:
    # Imported here: only locks with conda packages need it.
    from rattler import Version as CondaVersion
    from rattler.exceptions import InvalidVersionError

    try:
        before, after = CondaVersion(old), CondaVersion(new)
    except InvalidVersionError:
        return Move.MOVED
    if before == after:
        return Move.MOVED
    return Move.UP if before < after else Move.DOWN


def _without_shared(name: str, old: Sequence[str], new: Sequence[str]) -> Detail:
    removed = ", ".join(sorted(set(old) - set(new)))
    added = ", ".join(sorted(set(new) - set(old)))
    return Detail(name, removed or None, added or None)


def without_retagged(changes: Sequence[Change]) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """The changes that are reported one by one, and those of wheels that only have other tags, grouped by these.

    Each of the others has the tags as `old` and `new`: `cp311-cp311` or `manylinux_2_28_x86_64` if only that part
    differs, else the whole tag. Its details are the packages, with their versions.
    """
    rest: list[Change] = []
    retagged: dict[tuple[str, str, str, str], tuple[Platform, ...]] = {}
    for change in changes:
        tags = _tags(change)
        if tags is None:
            rest.append(change)
        else:
            # Its files have other names on each platform.
            key = (*tags, change.name, change.new or "")
            retagged[key] = (*retagged.get(key, ()), *change.platforms)
    groups: dict[tuple[str, str, tuple[Platform, ...]], list[Detail]] = {}
    for (old, new, name, version), platforms in retagged.items():
        groups.setdefault((old, new, platforms), []).append(Detail(name, version, version))
    of_tags = []
    for (old, new, platforms), details in groups.items():
        of_tags.append(Change("", old, new, platforms=platforms, details=tuple(details)))
    return tuple(rest), tuple(of_tags)


def _tags(change: Change) -> tuple[str, str] | None:
    """What differs between the tags of two wheels; None if more than the tags differs, or nothing."""
    files = {detail.name: (detail.old or "", detail.new or "") for detail in change.details}
    if change.move is not Move.FILE or files.keys() != {"file", "sha256"}:
        # A file of another index, or another file of the same name.
        return None
    old_name, new_name = files["file"]
    if not (old_name.endswith(".whl") and new_name.endswith(".whl")):
        return None
    old_stem, *old = old_name.removesuffix(".whl").rsplit("-", 3)
    new_stem, *new = new_name.removesuffix(".whl").rsplit("-", 3)
    if old_stem != new_stem or len(old) != 3 or len(new) != 3:
        return None
    if old[2] == new[2]:
        return "-".join(old[:2]), "-".join(new[:2])
    if old[:2] == new[:2]:
        return old[2], new[2]
    return "-".join(old), "-".join(new)
