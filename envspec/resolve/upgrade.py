"""`--upgrade-package`: what is kept, what has to be newer, and what has moved. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from packaging.version import Version

from envspec.errors import UsageError
from envspec.models import CondaPackage, Lock, Package, Platform, Resolution, Target
from envspec.names import normalised
from envspec.resolve.pypi.types import Bound, BoundKind, TargetRequest
from envspec.structs import replace


def names_in(lock: Lock) -> set[str]:
    """The names of both ecosystems' packages."""
    return names_of(lock.resolutions) | _conda_names(lock)


def _conda_names(lock: Lock) -> set[str]:
    """conda's names of its packages, and PyPI's of those in them."""
    names: set[str] = set()
    for packages in conda_packages(lock).values():
        names = names.union(*map(_names_of, packages))
    return names


def check_names(names: Sequence[str], existing: Collection[str]) -> None:
    """Refuse a name that does not exist, with the closest one that does."""
    for name in names:
        if name not in existing:
            near = get_close_matches(name, sorted(existing), n=1)
            raise UsageError(
                f"--upgrade-package {name}: no such package in the lock or the spec",
                hint=f"did you mean {near[0]}?" if near else "list the lock's packages with `envspec explain`",
            )


def with_old_pins(
    target: TargetRequest,
    old: Sequence[Resolution],
    free: Collection[str] = (),
    newer: Collection[str] = (),
    without: Sequence[Resolution] = (),
) -> TargetRequest:
    """The request with the old pins of its platform as preferences.

    free: names without a preference.
    newer: names that must be newer than in the lock.
    without: what is chosen without preferences; empty if nothing is known of that.
    """
    platform = target.request.target.platform
    packages = _packages(old, platform)
    if not packages:
        return target
    chosen = _by_name(_packages(without, platform))
    bounds: list[Bound] = []
    for each in packages:
        if each.name not in free:
            kind = BoundKind.PINNED
            if chosen:
                is_same = each.name in chosen and chosen[each.name].version == each.version
                kind = BoundKind.SAME if is_same else BoundKind.KEPT
            bounds.append(Bound(f"{each.name}=={each.version}", kind))
        if each.name in newer:
            # `>` excludes post-releases and takes no local version (PEP 440).
            version = Version(each.version).public
            bounds.append(Bound(f"{each.name}>={version},!={version}"))
    return replace(target, request=target.request.with_bounds(bounds))


def without_packages(resolutions: Sequence[Resolution], names: Collection[str]) -> tuple[Resolution, ...]:
    left: list[Resolution] = []
    for resolution in resolutions:
        packages = tuple(package for package in resolution.packages if package.name not in names)
        left.append(replace(resolution, packages=packages))
    return tuple(left)


def pins_of(targets: Sequence[Target], *layers: Sequence[Resolution]) -> tuple[Resolution, ...]:
    """For each target the packages of all layers, of its platform, else of another one; later layers go before."""
    found = []
    for target in targets:
        packages: dict[str, Package] = {}
        for layer in layers:
            alike = [each for each in layer if each.target.platform is target.platform and each.packages]
            for each in alike or layer:
                packages |= _by_name(each.packages)
        found.append(Resolution(target, tuple(packages.values())))
    return tuple(found)


def _by_name(packages: Sequence[Package]) -> dict[str, Package]:
    return {package.name: package for package in packages}


def names_of(resolutions: Sequence[Resolution]) -> set[str]:
    names: set[str] = set()
    for each in resolutions:
        names.update(package.name for package in each.packages)
    return names


def differing(new: Sequence[Resolution], pins: Sequence[Resolution]) -> set[str]:
    """Names with another version than is pinned for the same platform."""
    found: set[str] = set()
    for resolution in new:
        pinned = _by_name(_packages(pins, resolution.target.platform))
        for each in resolution.packages:
            if each.name in pinned and pinned[each.name].version != each.version:
                found.add(each.name)
    return found


def names_in_conda(names: Sequence[str], old: Lock | None, required: Collection[str]) -> tuple[str, ...]:
    """The names that are conda packages of the lock, by conda's name or PyPI's, or required from conda."""
    existing = set(required)
    if old:
        existing |= _conda_names(old)
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
    moved: set[str] = set()
    for platform, packages in new.items():
        before = {package.url for package in old.get(platform, ())}
        for package in packages:
            if package.url not in before:
                moved.add(package.name)
    return moved


def moved_names(old: Lock, new: Lock) -> set[str]:
    """The names of both ecosystems with another version or archive than before on some platform, or new there."""
    before, after = conda_packages(old), conda_packages(new)
    changed = moved_conda(before, after)
    moved = moved_pypi(old.resolutions, new.resolutions)
    for packages in after.values():
        for package in packages:
            if package.name in changed:
                moved |= _names_of(package)
    return moved


def has_name(package: CondaPackage, names: Collection[str]) -> bool:
    """Whether one of the normalised names is the package's, or that of a Python package in it."""
    return not _names_of(package).isdisjoint(names)


def _names_of(package: CondaPackage) -> set[str]:
    return {normalised(package.name), *(provided.name for provided in package.provides)}


def moved_pypi(old: Sequence[Resolution], new: Sequence[Resolution]) -> set[str]:
    """Names with another version than before on some platform, or new there."""
    found: set[str] = set()
    for resolution in new:
        before = _by_name(_packages(old, resolution.target.platform))
        for package in resolution.packages:
            if package.name not in before or before[package.name].version != package.version:
                found.add(package.name)
    return found


def _packages(resolutions: Sequence[Resolution], platform: Platform) -> tuple[Package, ...]:
    return next((r.packages for r in resolutions if r.target.platform is platform), ())
