"""`--upgrade-package`: what is kept, what has to be newer, and what has moved. Pure."""

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
    from envspec.resolve.pypi.resolve import TargetRequest


def check_names(names: Sequence[str], old: Lock, required: Collection[str]) -> None:
    """Refuse a name that is neither in the lock nor required by the spec, with the closest name that exists."""
    existing = {package.name for resolution in old.resolutions for package in resolution.packages} | set(required)
    existing |= {name for packages in conda_packages(old).values() for each in packages for name in _names_of(each)}
    for name in names:
        if name not in existing:
            near = get_close_matches(name, sorted(existing), n=1)
            raise UsageError(
                f"--upgrade-package {name}: no such package in the lock or the spec",
                hint=f"did you mean {near[0]}?" if near else "list the lock's packages with `envspec explain`",
            )


def with_old_pins(
    target: TargetRequest, old: Sequence[Resolution], free: Collection[str] = (), newer: Collection[str] = ()
) -> TargetRequest:
    """The request with the old pins of its platform as preferences.

    free: names without a preference. newer: names that must be newer than in the lock.
    """
    packages = _packages(old, target.request.target.platform)
    preferences = sorted((each.name, each.version) for each in packages if each.name not in free)
    # `>` excludes post-releases and takes no local version (PEP 440).
    old_versions = ((each.name, Version(each.version).public) for each in packages if each.name in newer)
    bounds = [f"{name}>={version},!={version}" for name, version in old_versions]
    constraints = tuple(sorted((*target.request.constraints, *bounds)))
    return replace(target, request=replace(target.request, preferences=tuple(preferences), constraints=constraints))


def names_in_conda(names: Sequence[str], old: Lock | None, required: Collection[str]) -> tuple[str, ...]:
    """The names that are conda packages of the lock, by conda's name or PyPI's, or required from conda."""
    packages = [package for each in conda_packages(old).values() for package in each] if old else []
    existing = {name for package in packages for name in _names_of(package)} | set(required)
    return tuple(name for name in names if name in existing)


def conda_packages(lock: Lock) -> dict[Platform, tuple[CondaPackage, ...]]:
    return {resolution.target.platform: resolution.conda for resolution in lock.resolutions}


def without_names(packages: Sequence[CondaPackage], names: Collection[str]) -> tuple[CondaPackage, ...]:
    return tuple(package for package in packages if not has_name(package, names))


def newer_specs(packages: Sequence[CondaPackage], name: str) -> tuple[str, ...]:
    """Match specs for anything newer than what a normalised name has now."""
    return tuple(f"{package.name} >{package.version}" for package in packages if has_name(package, (name,)))


def moved_conda(
    old: Mapping[Platform, Sequence[CondaPackage]], new: Mapping[Platform, Sequence[CondaPackage]]
) -> set[str]:
    """conda's names with another archive than before on some platform, or new there."""
    before = {platform: {package.url for package in packages} for platform, packages in old.items()}
    return {
        package.name
        for platform, packages in new.items()
        for package in packages
        if package.url not in before.get(platform, ())
    }


def moved_names(old: Lock, new: Lock) -> set[str]:
    """The names of both ecosystems with another version or archive than before on some platform, or new there."""
    before, after = conda_packages(old), conda_packages(new)
    changed = moved_conda(before, after)
    conda = (_names_of(each) for packages in after.values() for each in packages if each.name in changed)
    return moved_pypi(old.resolutions, new.resolutions).union(*conda)


def has_name(package: CondaPackage, names: Collection[str]) -> bool:
    """Whether one of the normalised names is the package's, or that of a Python package in it."""
    return not _names_of(package).isdisjoint(names)


def _names_of(package: CondaPackage) -> set[str]:
    return {str(canonicalize_name(package.name)), *(provided.name for provided in package.provides)}


def moved_pypi(old: Sequence[Resolution], new: Sequence[Resolution]) -> set[str]:
    """Names with another version than before on some platform, or new there."""
    found: set[str] = set()
    for resolution in new:
        before = {(package.name, package.version) for package in _packages(old, resolution.target.platform)}
        found |= {package.name for package in resolution.packages if (package.name, package.version) not in before}
    return found


def _packages(resolutions: Sequence[Resolution], platform: Platform) -> tuple[Package, ...]:
    return next((r.packages for r in resolutions if r.target.platform is platform), ())
