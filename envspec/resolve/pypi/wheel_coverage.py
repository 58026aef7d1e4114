"""Pythons and platforms that the wheels of a release are for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envspec.facts.tables import ranges_text
from envspec.models import Platform, Python, Target
from envspec.reasons import Reason, reason
from envspec.resolve.pypi.index.selection import TagRanks
from envspec.spec.targets import glibc_of, wheel_tags
from envspec.structs import replace

#: The Pythons other than a target's that wheels are compared with.
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(6, 20))
#: No wheel needs a newer one.
_ANY_GLIBC: Final = (2, 99)
_ANY_MACOS: Final = (99, 0)


def loading_pythons(filenames: Sequence[str], target: Target) -> list[str]:
    """The series of Python that load one of the wheels on a target's platform, oldest first."""
    found = []
    for series in _PYTHONS:
        ranks = TagRanks(tuple(wheel_tags(replace(target, python=Python(f"{series}.0", "spec")))))
        if any(ranks.rank(filename) is not None for filename in filenames):
            found.append(series)
    return found


def _pythons_text(series: Sequence[str]) -> str:
    """`Python 3.9 to 3.13`."""
    return f"Python {ranges_text(series, _PYTHONS)}"


def no_wheel_reason(target: Target) -> Reason:
    """`has no wheel for Python 3.14 on linux-64, glibc up to 2.39`."""
    python, platform = target.python.series, target.platform.value
    if target.glibc is None:
        return reason("no-wheel", python=python, platform=platform)
    return reason("no-wheel-glibc", python=python, platform=platform, glibc=".".join(map(str, target.glibc)))


def no_wheel_text(filenames: Sequence[str], target: Target) -> str:
    """`has no wheel for Python 3.14 on linux-64, glibc up to 2.39; it has wheels for Python 3.9 to 3.13`.

    filenames: of a release that the target cannot load. Named are other Pythons, else a newer glibc, else platforms.
    """
    return "; ".join(filter(None, (str(no_wheel_reason(target)), _wheels_instead(filenames, target))))


def needs_newer_glibc(filenames: Sequence[str], target: Target) -> bool:
    """Whether the target would load one of the wheels with a newer glibc."""
    if target.glibc is None:
        return False
    return target.python.series in loading_pythons(filenames, replace(target, glibc=_ANY_GLIBC))


def _wheels_instead(filenames: Sequence[str], target: Target) -> str:
    if pythons := loading_pythons(filenames, target):
        return f"it has wheels for {_pythons_text(pythons)}"
    if target.glibc is not None:
        newer = replace(target, glibc=_ANY_GLIBC)
        if pythons := loading_pythons(filenames, newer):
            levels = filter(None, map(glibc_of, filenames))
            least = min(level for level in levels if level > target.glibc)
            return f"its wheels there are for glibc {'.'.join(map(str, least))} and {_pythons_text(pythons)}"
    platforms = [each.value for each in Platform if loading_pythons(filenames, _on(each, target))]
    if not platforms:
        return ""
    return f"it has wheels for {', '.join(platforms)}"


def _on(platform: Platform, target: Target) -> Target:
    """The target on the newest system of another platform."""
    glibc = _ANY_GLIBC if platform.is_linux else None
    macos = _ANY_MACOS if platform is Platform.OSX_ARM64 else None
    return replace(target, platform=platform, glibc=glibc, macos=macos)
