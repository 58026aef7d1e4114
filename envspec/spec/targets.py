"""Spec -> Targets: the exact Python of each platform, and what may be installed beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from packaging import tags

from envspec.errors import UsageError
from envspec.facts import Facts
from envspec.facts.tables import PythonRow, numeric
from envspec.models import MACHINES, Decision, Platform, Python, Target, marker_values
from envspec.reasons import Reason, reason
from envspec.spec.errors import RefusedValues

if TYPE_CHECKING:
    # Installing and verifying need only what file names say, and not pydantic.
    from envspec.spec import Spec

#: Oldest macOS that an osx-arm64 environment runs on. Every Mac with Apple silicon can run it, and from it on wheels
#: may use Accelerate's new BLAS: numpy and scipy publish theirs as macosx_14_0_arm64.
MACOS: Final = (14, 0)

_SPEC: Final = "the spec"

# Older names of three manylinux levels. Source: PEP 600, "Legacy manylinux tags".
_LEGACY: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# The oldest glibc that wheels were ever built for. Source: PEP 513 (x86_64), PEP 599 (aarch64).
_OLDEST: Final = {Platform.LINUX_64: 5, Platform.LINUX_AARCH64: 17}


class UnknownPython(RefusedValues):
    """A Python that no source named by the spec has."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__((("env", "python"), message, hint))


class GivenPython(Struct, frozen=True):
    """A Python that is there before anything is installed.

    version: exact; empty if it is unknown. glibc: None if it is unknown. is_base: whether it is a base image's. place:
    as messages name it.
    """

    version: str
    glibc: tuple[int, int] | None
    is_base: bool
    place: str


#: glibc and macOS of a platform, None where it has none: see `Target`.
Bounds = tuple[tuple[int, int] | None, tuple[int, int] | None]


def targets_of(
    spec: Spec,
    facts: Facts,
    as_of: datetime | None = None,
    conda_pythons: Mapping[Platform, str] | None = None,
    given: Mapping[Platform, GivenPython] | None = None,
) -> tuple[tuple[Target, ...], tuple[Decision, ...]]:
    """One target for each platform of the spec, in its order, and why they are what they are.

    as_of: bounds the age of a standalone Python where the spec has no date of its own: the time of the resolution.
    conda_pythons: the exact Python of the conda packages on each platform; empty or None without such packages. given:
    the Python of platforms on which one is there already; it is the target's.

    Python's source, the first that applies:
      1. `conda`: the spec has [conda], or the lock of another tool has conda packages;
      2. `base`: `[image] python` says what the base holds (Linux only, as images are);
      3. `system`: only if `python_source = "system"`; the series must be the system's own;
      4. `spec`: an exact patch in the spec, and no `python_source`;
      5. `standalone`: the exact patch, or the newest patch of the series built no later than `as_of`.
    A series without any known standalone build takes its newest patch; its source is `spec` as well.
    A platform without any standalone build of the series (macOS, Windows) takes the patch of another platform's builds;
    its source is `spec`: whoever installs the lock brings that Python.

    Raises:
        UnknownPython: the source or the solved conda packages have no such Python, or no such patch was released.
        UsageError: the system's glibc is not known.
    """
    time = spec.env.as_of if isinstance(spec.env.as_of, datetime) else as_of
    targets, decisions = [], []
    for platform in spec.env.platforms:
        if spec.conda is not None or conda_pythons:
            python, decision = _conda(spec, platform, conda_pythons or {})
        elif given and platform in given:
            python, decision = _given(spec, facts, platform, given[platform])
        else:
            python, decision = _python(spec, facts, platform, time)
        (glibc, macos), bound = bounds_of(spec, facts, platform)
        if given and platform.is_linux and (found := given[platform]).glibc and not spec.image.glibc:
            glibc = found.glibc
            why = (reason("glibc-of-place"),)
            bound = (Decision("glibc", ".".join(map(str, glibc)), why, found.place, platform),)
        targets.append(Target(platform, python, glibc, macos))
        decisions += [decision, *bound]
    return tuple(targets), tuple(decisions)


def bounds_of(spec: Spec, facts: Facts, platform: Platform) -> tuple[Bounds, tuple[Decision, ...]]:
    """(glibc, macOS) of a platform, which bound what it can load whatever its Python, and why they are what they are.

    glibc: the base's, None off Linux. macOS: the oldest to run on, None elsewhere.

    Raises:
        UsageError: the system's glibc is not known.
    """
    if platform.is_linux:
        glibc, decision = _glibc(spec, facts, platform)
        return (glibc, None), (decision,)
    if platform is not Platform.OSX_ARM64:
        return (None, None), ()
    why = (reason("macos-oldest"),)
    return (None, MACOS), (Decision("macos", ".".join(map(str, MACOS)), why, "envspec's default", platform),)


def has_cuda(spec: Spec, platform: Platform) -> bool:
    """Whether packages are CUDA builds: on Linux as [cuda] says, on Windows if it names a version, never on macOS."""
    cuda = spec.cuda_on(platform)
    return cuda is not None and (platform.is_linux or (platform is Platform.WIN_64 and cuda.version is not None))


def _glibc(spec: Spec, facts: Facts, platform: Platform) -> tuple[tuple[int, int], Decision]:
    if spec.image.glibc:
        major, minor = spec.image.glibc
        why = (reason("glibc-of-base"),)
        return spec.image.glibc, Decision("glibc", f"{major}.{minor}", why, f"{_SPEC}: image.glibc", platform)
    os = spec.os_on(platform)
    row = facts.system(os)
    if row is None:
        raise UsageError(
            f"the glibc of {os} is not known", hint="choose another `cuda.os`, or a base of your own with `image.glibc`"
        )
    major, minor = numeric(row.glibc)[:2]
    of_system = reason("glibc-of-system" if spec.names_os(platform) else "glibc-of-default-system", os=os)
    return (major, minor), Decision("glibc", row.glibc, (of_system,), row.source, platform)


def _conda(spec: Spec, platform: Platform, pythons: Mapping[Platform, str]) -> tuple[Python, Decision]:
    version = pythons.get(platform)
    if version is None:
        raise UnknownPython(
            f"the solved conda packages have no Python for {platform.value}",
            hint=f"`env.python` is {spec.env.python}: check that a channel in `conda.channels` has it",
        )
    source = "conda" if spec.conda is not None else "pip.from"
    return _chosen(Python(version, "conda"), [reason("python-of-conda")], f"{_SPEC}: {source}", platform)


def _python(spec: Spec, facts: Facts, platform: Platform, time: datetime | None) -> tuple[Python, Decision]:
    from envspec.spec import PythonSource

    env, of_base = spec.env, spec.image.python
    if of_base and platform.is_linux:
        return _chosen(Python(of_base, "base"), [reason("python-of-base")], f"{_SPEC}: image.python", platform)
    if env.python_source is PythonSource.SYSTEM and platform.is_linux:
        return _system(spec, facts, platform)
    newest = facts.newest_python(env.python_series)
    if env.exact_python and not of_base and newest and numeric(newest) < numeric(env.exact_python):
        raise UnknownPython(
            f"there is no Python {env.exact_python}: the newest known {env.python_series} is {newest}",
            hint=f'write `python = "{newest}"` or `python = "{env.python_series}"`; if {env.exact_python} was released '
            "since, add a [[facts.python]] row with its URL and SHA-256",
        )
    exact = env.exact_python or of_base
    if exact and env.python_source is not PythonSource.STANDALONE:
        key = "env.python" if env.exact_python else "image.python"
        return _chosen(Python(exact, "spec"), [reason("python-patch-in-spec")], f"{_SPEC}: {key}", platform)
    return _standalone(spec, facts, platform, time)


def _given(spec: Spec, facts: Facts, platform: Platform, found: GivenPython) -> tuple[Python, Decision]:
    source = "base" if found.is_base else "spec"
    why = reason("python-of-place", place=found.place)
    version = found.version or spec.env.exact_python or facts.newest_python(spec.env.python_series) or ""
    if not version:
        raise UnknownPython(
            f"the patch of Python {spec.env.python} is unknown", hint='write it: python = "3.12.11", in [env]'
        )
    if not found.version:
        why = reason("python-not-stated", place=found.place, python=spec.env.python)
    return _chosen(Python(version, source), [why], found.place, platform)


def _chosen(python: Python, why: Sequence[Reason], source: str, platform: Platform) -> tuple[Python, Decision]:
    return python, Decision("python", f"{python.version} ({python.source})", tuple(why), source, platform)


def _system(spec: Spec, facts: Facts, platform: Platform) -> tuple[Python, Decision]:
    os, requested = spec.os_on(platform), spec.env.python
    if spec.image.base and not spec.names_os(platform):
        raise UnknownPython(
            "which system the custom base is, and so which Python it installs, is not known",
            hint="add its `os` to [image], or remove `python_source`",
        )
    row = facts.system(os)
    if row is None or not row.python:
        raise UnknownPython(
            f"which Python {os} installs is not known",
            hint="remove `python_source`, or use another `cuda.os`",
        )
    if requested not in (row.python, row.python_patch):
        raise UnknownPython(
            f"{os} installs Python {row.python_patch or row.python}, but `env.python` is {requested}",
            hint=f'write `python = "{row.python}"`, or remove `python_source`',
        )
    if not row.python_patch:
        raise UnknownPython(
            f"which patch of Python {row.python} {os} installs is not known",
            hint="remove `python_source`, or use another `cuda.os`",
        )
    return _chosen(Python(row.python_patch, "system"), [reason("python-of-system", os=os)], row.source, platform)


def _standalone(spec: Spec, facts: Facts, platform: Platform, time: datetime | None) -> tuple[Python, Decision]:
    from envspec.spec import PythonSource

    own = _builds(spec, facts, platform)
    if own:
        row, why = _pick(spec, own, time)
        return _chosen(Python(row.version, "standalone", row.url, row.sha256), [why], row.source, platform)
    # Without an image, whoever installs the lock brings a Python; which patch is all that the resolution has to know.
    elsewhere = {row.version: row for other in reversed(Platform) for row in _builds(spec, facts, other)}
    needed = platform.is_linux and spec.env.python_source is PythonSource.STANDALONE
    series = facts.python_series.get(spec.env.python)
    if series and not elsewhere and not needed:
        why = reason("python-unbuilt-series", series=series.series)
        return _chosen(Python(series.newest, "spec"), [why], series.source, platform)
    if needed or not elsewhere:
        raise _unknown(spec, facts, platform)
    row, why = _pick(spec, sorted(elsewhere.values(), key=lambda row: numeric(row.version), reverse=True), time)
    unbuilt = reason("python-unbuilt", platform=platform.value)
    of_other = reason("python-of-platform", (why,), platform=row.platform)
    return _chosen(Python(row.version, "spec"), [unbuilt, of_other], row.source, platform)


def _builds(spec: Spec, facts: Facts, platform: Platform) -> list[PythonRow]:
    """The standalone builds on a platform that the spec may mean, newest first."""
    rows = facts.standalone_pythons(spec.env.python_series, platform)
    return [row for row in rows if spec.env.exact_python in (None, row.version)]


def _pick(spec: Spec, rows: Sequence[PythonRow], time: datetime | None) -> tuple[PythonRow, Reason]:
    """The first of `rows` (newest first) that was built by `time`, else the oldest; and why."""
    if spec.env.exact_python:
        return rows[0], reason("python-build-of-patch")
    if time is None:
        return rows[0], reason("python-newest-build")
    day = f"{time:%Y-%m-%d}"
    for row in rows:
        if _built(row) <= time:
            return row, reason("python-newest-build-by", day=day)
    oldest = rows[-1]
    return oldest, reason("python-oldest-build", day=day, built=f"{_built(oldest):%Y-%m-%d}")


def _built(row: PythonRow) -> datetime:
    # `strptime` takes 4 ms to import.
    year, month, day = row.build[:4], row.build[4:6], row.build[6:]
    return datetime(int(year), int(month), int(day), tzinfo=timezone.utc)


def _unknown(spec: Spec, facts: Facts, platform: Platform) -> UnknownPython:
    series = spec.env.python_series
    patches = [row.version for row in reversed(facts.standalone_pythons(series, platform))]
    known = dict.fromkeys(
        ".".join(row.version.split(".")[:2]) for row in facts.pythons if row.platform == platform.value
    )
    known_builds = f"known series: {', '.join(known) or 'none'}"
    if patches:
        known_builds = f"known of {series}: {', '.join(patches)}"
    if series in facts.python_series:
        known_builds += "; without `python_source`, the lock has no image"
    return UnknownPython(
        f"no standalone build of Python {spec.env.python} is known for {platform.value}",
        hint=f"{known_builds}; or add a [[facts.python]] row with its URL and SHA-256",
    )


def marker_environment(target: Target) -> dict[str, str]:
    """What PEP 508 markers see on the target."""
    return marker_values(target.platform, target.python.version)


def wheel_tags(target: Target) -> list[tags.Tag]:
    """The tags of wheels that the target can load, best first; last `linux_*`, which promises nothing of glibc."""
    major, minor = (int(part) for part in target.python.series.split("."))
    interpreter = f"cp{major}{minor}"
    abi = f"{interpreter}m" if (major, minor) < (3, 8) else interpreter
    platforms = list(_platform_tags(target))
    return [
        *tags.cpython_tags((major, minor), [abi], platforms),
        *tags.compatible_tags((major, minor), interpreter, platforms),
    ]


def _platform_tags(target: Target) -> Iterator[str]:
    if target.glibc is not None:
        yield from _manylinux(target.platform, target.glibc)
    elif target.macos is not None:
        yield from tags.mac_platforms(target.macos, MACHINES[target.platform]["platform_machine"])
    else:
        yield "win_amd64"


def _manylinux(platform: Platform, glibc: tuple[int, int]) -> Iterator[str]:
    machine = MACHINES[platform]["platform_machine"]
    for minor in range(glibc[1], _OLDEST[platform] - 1, -1):
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{machine}"
    yield f"linux_{machine}"


def glibc_of(filename: str) -> tuple[int, int] | None:
    """The oldest glibc that a wheel of this name supports; None if it needs none or is not a wheel."""
    if not filename.endswith(".whl"):
        return None
    levels = []
    for tag in filename.removesuffix(".whl").rpartition("-")[2].split("."):
        if found := re.match(r"manylinux_(\d+)_(\d+)_", tag):
            levels.append((int(found[1]), int(found[2])))
        elif found := re.match(r"manylinux(1|2010|2014)_", tag):
            levels.append((2, next(minor for minor, name in _LEGACY.items() if name == f"manylinux{found[1]}")))
    return min(levels, default=None)
