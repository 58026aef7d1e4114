"""`envspec verify`: a lock and a platform into what an environment is to hold, and the environment compared with it."""

from __future__ import annotations

from pathlib import Path

from envspec.errors import UsageError
from envspec.installed.compare import compare
from envspec.installed.place import NoEnvironment, place_of
from envspec.installed.values import Expected, ExpectedConda, ExpectedPackage, Result
from envspec.model import Lock, Platform, Resolution


def expected_of(resolution: Resolution) -> Expected:
    """What an environment made from one platform's part of a lock holds, and what it may hold beside that."""
    return Expected(
        packages=tuple(ExpectedPackage(each.name, each.version, each.contents) for each in resolution.packages),
        conda=tuple(ExpectedConda(each.name, each.version, each.build, each.sha256) for each in resolution.conda),
    )


def part_of(lock: Lock, platform: Platform) -> Resolution:
    """The lock's part for a platform.

    Raises:
        UsageError: it has none.
    """
    for resolution in lock.resolutions:
        if resolution.target.platform is platform:
            return resolution
    there = ", ".join(resolution.target.platform.value for resolution in lock.resolutions)
    raise UsageError(
        f"{lock.name} is not locked for {platform.value}, but for {there or 'no platform'}",
        hint="name one of them by --platform, where the environment is another machine's",
    )


def verify(lock: Lock, platform: Platform, prefix: Path) -> Result:
    """Compare the environment in a folder with a lock; no network, and nothing is changed.

    Raises:
        UsageError: the folder holds no environment, or the lock has no such platform.
    """
    try:
        place = place_of(prefix)
    except NoEnvironment as fault:
        raise UsageError(str(fault), hint="name the folder of a virtual or a conda environment by --prefix") from fault
    return compare(expected_of(part_of(lock, platform)), place)
