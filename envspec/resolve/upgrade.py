"""`--upgrade-package`: what stays, what must be newer, and what has moved. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.errors import UsageError
from envspec.models import CondaPackage, Lock, Package, Platform, Resolution

if TYPE_CHECKING:
    from envspec.resolve.pypi.request import Composed


def known_names(names: Sequence[str], old: Lock, asked: Collection[str]) -> None:
    """Refuse a name that neither the lock nor the spec has.

    Raises:
        UsageError: names it, and the one that was perhaps meant.
    """
    there = {package.name for resolution in old.resolutions for package in resolution.packages} | set(asked)
    there |= {name for rows in rows_of(old).values() for package in rows for name in _names_of(package)}
    for name in names:
        if name not in there:
            near = get_close_matches(name, sorted(there), n=1)
            raise UsageError(
                f"--upgrade-package {name}: neither the lock nor the spec has such a package",
                hint=f"did you mean {near[0]}?" if near else "`envspec explain` lists what the lock has",
            )


def keeping(composed: Composed, old: Lock, but: Collection[str] = (), newer: Collection[str] = ()) -> Composed:
    """The question with the old pins of its platform preferred.

    but: names that are free to move. newer: names of which anything but what the lock has is wanted, and nothing older.
    """
    question = composed.question
    packages = [p for p in _packages(old, question.request.target.platform) if p.name not in but]
    bounds = [_newer(p) for p in _packages(old, question.request.target.platform) if p.name in newer]
    request = replace(
        question.request,
        preferences=tuple(sorted((p.name, p.version) for p in packages)),
        constraints=tuple(sorted((*question.request.constraints, *bounds))),
    )
    return replace(composed, question=replace(question, request=request))


def condas(names: Sequence[str], old: Lock | None, asked: Collection[str]) -> tuple[str, ...]:
    """Those of the names that are, by conda's name or by PyPI's, conda packages of the lock, or asked of conda."""
    packages = [package for rows in rows_of(old).values() for package in rows] if old else []
    there = {name for package in packages for name in _names_of(package)} | set(asked)
    return tuple(name for name in names if name in there)


def rows_of(lock: Lock) -> dict[Platform, tuple[CondaPackage, ...]]:
    return {resolution.target.platform: resolution.conda for resolution in lock.resolutions}


def free_rows(rows: Sequence[CondaPackage], names: Collection[str]) -> tuple[CondaPackage, ...]:
    """The rows to keep, where these normalised names are free to move."""
    return tuple(package for package in rows if not are_names_of(package, names))


def newer_rows(rows: Sequence[CondaPackage], name: str) -> tuple[str, ...]:
    """Match specs of anything newer than what a normalised name has now."""
    return tuple(f"{package.name} >{package.version}" for package in rows if are_names_of(package, (name,)))


def moved_rows(
    old: Mapping[Platform, Sequence[CondaPackage]], new: Mapping[Platform, Sequence[CondaPackage]]
) -> set[str]:
    """conda's names that have another row than before on some platform, or are new there."""
    before = {platform: {package.url for package in rows} for platform, rows in old.items()}
    return {
        package.name
        for platform, rows in new.items()
        for package in rows
        if package.url not in before.get(platform, ())
    }


def are_names_of(package: CondaPackage, names: Collection[str]) -> bool:
    """Whether one of the normalised names is the package's own, or that of a Python package in it."""
    return not _names_of(package).isdisjoint(names)


def _names_of(package: CondaPackage) -> set[str]:
    return {str(canonicalize_name(package.name)), *(provided.name for provided in package.provides)}


def moved(old: Lock, new: Sequence[Resolution]) -> set[str]:
    """The names that have another version than before on some platform, or are new there."""
    pins = ((r.target.platform, {_pin(package) for package in r.packages}) for r in new)
    return {name for platform, now in pins for name, _ in now - {_pin(p) for p in _packages(old, platform)}}


def _packages(lock: Lock, platform: Platform) -> tuple[Package, ...]:
    return next((r.packages for r in lock.resolutions if r.target.platform is platform), ())


def _pin(package: Package) -> tuple[str, str]:
    return package.name, package.version


def _newer(package: Package) -> str:
    # `>` would leave out post-releases, and a local version may not stand behind it (PEP 440).
    version = Version(package.version).public
    return f"{package.name}>={version},!={version}"
