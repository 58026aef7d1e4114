"""Packages of the same version with wheels for other tags.

Another Python series or glibc changes the wheel of every compiled package: reported one by one they hide the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envspec.lock.diff import FileChange, Move, PackageChange
from envspec.models import Platform


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
