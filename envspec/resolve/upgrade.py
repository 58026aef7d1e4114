"""`--upgrade-package`: what stays, what must be newer, and what has moved. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches

from packaging.version import Version

from envspec.errors import UsageError
from envspec.model import Lock, Package, Platform, Resolution
from envspec.resolve.compose import Composed


def known_names(names: Sequence[str], old: Lock, asked: Collection[str]) -> None:
    """Refuse a name that neither the lock nor the spec has.

    Raises:
        UsageError: names it, and the one that was perhaps meant.
    """
    there = {package.name for resolution in old.resolutions for package in resolution.packages} | set(asked)
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
