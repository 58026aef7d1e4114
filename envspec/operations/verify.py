"""`envspec verify`: a lock and a platform into what an environment is to hold, and the environment compared with it."""

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
    """What an environment made from one platform's part of a lock holds, and what it may hold beside that."""
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
    there = ", ".join(resolution.target.platform.value for resolution in lock.resolutions)
    raise UsageError(
        f"{lock.name} is not locked for {platform.value}, but for {there or 'no platform'}",
        hint="name one of them by --platform, where the environment is another machine's",
    )


def verify(lock: Lock, platform: Platform, prefix: Path) -> VerifyResult:
    """Compare the environment in a folder with a lock; no network, and nothing is changed.

    Raises:
        UsageError: the folder holds no environment, or the lock has no such platform.
    """
    try:
        place = find_environment(prefix)
    except NoEnvironment as fault:
        raise UsageError(str(fault), hint="name the folder of a virtual or a conda environment by --prefix") from fault
    part = part_of(lock, platform)
    found = compare(expected_of(part), place)
    return replace(found, findings=(*_python(part.target.python.series, place), *found.findings))


def _python(series: str, place: PythonEnvironment) -> Iterator[DriftFinding]:
    """Another Python than the lock's, by the folders that it keeps packages in; Windows's doesn't tell."""
    names = [site.parent.name for site in place.sites]
    # A free-threaded one's folder is python3.14t.
    there = [name.removeprefix("python").removesuffix("t") for name in names if name.startswith("python")]
    if there and series not in there:
        yield DriftFinding(PYTHON, Drift.VERSION, expected=series, found=", ".join(there))
