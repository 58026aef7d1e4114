"""Packages whose version stayed while their wheel is one for other tags.

When Python's series or the base's glibc moves, every compiled package is among them: told one by one they bury what
matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envspec.lock.diff import FileChange, Move, PackageChange
from envspec.models import Platform


@dataclass(frozen=True, slots=True)
class Retagged:
    """old, new: `cp311-cp311` or `manylinux_2_28_x86_64` where the rest of the tag stayed, else the whole tag.

    packages: `name version` of each whose wheel went from the one to the other on these platforms.
    """

    old: str
    new: str
    platforms: tuple[Platform, ...]
    packages: tuple[str, ...]


def without_retagged(
    changes: Sequence[PackageChange],
) -> tuple[tuple[PackageChange, ...], tuple[Retagged, ...]]:
    """The changes that want a line of their own, and the others by what became of their tags.

    A file of another index, or another file under the same name, is never among the others.
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
    """(old tag, new tag) -> platforms; empty where anything but the tags of a wheel differs on any platform."""
    found: dict[tuple[str, str], list[Platform]] = {}
    for file in change.files if change.move is Move.FILE else ():
        tags = _tags(file)
        if tags is None:
            return {}
        found.setdefault(tags, []).append(file.platform)
    return found


def _tags(file: FileChange) -> tuple[str, str] | None:
    """What differs between two wheels of one release and build; None where more than the tag differs, or nothing."""
    old_stem, *old = file.old_filename.rsplit("-", 3)
    new_stem, *new = file.new_filename.rsplit("-", 3)
    are_wheels = file.old_filename.endswith(".whl") and file.new_filename.endswith(".whl")
    if not are_wheels or file.old_index != file.new_index or old_stem != new_stem or old == new:
        return None
    if len(old) != 3 or len(new) != 3:
        return None
    if old[2] == new[2]:
        return "-".join(old[:2]), "-".join(new[:2])
    if old[:2] == new[:2]:
        return old[2].removesuffix(".whl"), new[2].removesuffix(".whl")
    return "-".join(old).removesuffix(".whl"), "-".join(new).removesuffix(".whl")
