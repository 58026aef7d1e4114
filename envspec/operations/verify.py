"""`envspec verify`: what an environment must contain, and the environment compared with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from envspec.errors import UsageError
from envspec.models import Lock, Platform, Resolution
from envspec.verifier.compare import compare
from envspec.verifier.scan import NoEnvironment, PythonEnvironment, find_environment
from envspec.verifier.types import Drift, DriftFinding, Expected, ExpectedConda, ExpectedPackage, VerifyResult

#: The package that a finding about Python itself is of.
PYTHON: Final = "python"


def expected_of(resolution: Resolution) -> Expected:
    """What an environment of one platform's part of a lock contains, and what it may contain besides."""
    return Expected(
        packages=tuple(ExpectedPackage(each.name, each.version, each.record_sha256) for each in resolution.packages),
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
    locked = ", ".join(resolution.target.platform.value for resolution in lock.resolutions)
    raise UsageError(
        f"{lock.name} is not locked for {platform.value}, but for {locked or 'no platform'}",
        hint="name one of them by --platform if the environment is another machine's",
    )


def verify(lock: Lock, platform: Platform, prefix: Path) -> VerifyResult:
    """Compare the environment in a folder with a lock; uses no network, changes nothing.

    Raises:
        UsageError: the folder holds no environment, or the lock has no such platform.
    """
    try:
        place = find_environment(prefix)
    except NoEnvironment as error:
        raise UsageError(str(error), hint="name the folder of a virtual or a conda environment by --prefix") from error
    part = part_of(lock, platform)
    found = compare(expected_of(part), place)
    return replace(found, findings=(*_python(part.target.python.series, place), *found.findings))


def _python(series: str, place: PythonEnvironment) -> Iterator[DriftFinding]:
    """Another Python than the lock's, by the names of its site-packages folders; on Windows they have no version."""
    names = [site.parent.name for site in place.sites]
    # A free-threaded one's folder is python3.14t.
    series_found = [name.removeprefix("python").removesuffix("t") for name in names if name.startswith("python")]
    if series_found and series not in series_found:
        yield DriftFinding(PYTHON, Drift.VERSION, expected=series, found=", ".join(series_found))
