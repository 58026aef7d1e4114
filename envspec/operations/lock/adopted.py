"""The packages of another tool's lock for one target: the files are chosen here, all else is as that lock has it."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

from envspec.adopt import read_lock
from envspec.adopt.rows import CondaRows, ForeignLock, LockedFile, Row, newest_file
from envspec.adopt.selected import version_in
from envspec.errors import NoSolution
from envspec.facts import Facts
from envspec.facts.tables import conda_names
from envspec.io.store import Store
from envspec.io.tasks import run_interruptible
from envspec.models import (
    DEFAULT_INDEX,
    GIT,
    LOCAL,
    PACKAGES,
    UNKNOWN_VERSION,
    CondaPackage,
    Decision,
    Package,
    Platform,
    Python,
    Resolution,
    Target,
    Unbuilt,
    WheelFile,
)
from envspec.names import SDIST
from envspec.operations.lock_state import CondaResult
from envspec.reasons import reason
from envspec.resolve.pypi.index.selection import TagRanks
from envspec.spec import PythonSource, Spec
from envspec.spec.errors import RefusedValues
from envspec.spec.sections import BasePackages
from envspec.spec.targets import marker_environment, wheel_tags
from envspec.structs import replace

#: Of the default base image.
_NEWEST_GLIBC: Final = (2, 39)
#: Problems in a message, and tags in one of them.
_MOST: Final = 8


class UnusableLock(NoSolution, code="unusable-lock"):
    """Another tool's lock has packages that can't be installed as they are locked."""


def read_adopted(spec: Spec, spec_path: Path) -> ForeignLock:
    """The lock that the spec's `pip.from` names; its folders are relative to that of the spec.

    Raises:
        RefusedValues: there is no such file.
        UsageError: as `adopt.read_lock`.
    """
    source = spec.pip.source or ""
    try:
        found = read_lock(spec_path.parent / source, spec.pip.selection)
    except OSError as error:
        why = f"{source} can't be read: {error.strerror}"
        raise RefusedValues((("pip", "from"), why, "name a file next to the spec")) from None
    rows = []
    for row in found.rows:
        if row.index == LOCAL:
            folder = posixpath.join(posixpath.dirname(source), row.source)
            row = replace(row, source=posixpath.normpath(folder))  # noqa: PLW2901
        rows.append(row)
    return replace(found, rows=tuple(rows))


def time_of(found: ForeignLock, facts: Facts) -> datetime:
    """The date of a lock's packages: when the newest of their files was uploaded. Without times in it, that of the
    newest Python that the facts have: it is the same on every machine, and builds get today's tools.
    """
    if newest := newest_file(found):
        return newest
    day = datetime.strptime(max(row.build for row in facts.pythons), "%Y%m%d")  # noqa: DTZ007 (a day of UTC)
    return day.replace(tzinfo=timezone.utc)


def decision_of(spec: Spec) -> Decision:
    """That the packages are those of another tool's lock."""
    return Decision(PACKAGES, spec.pip.source or "", (reason("packages-of-lock"),), "the spec: pip.from")


def adopted_packages(found: ForeignLock, target: Target, spec: Spec) -> Resolution:
    """A lock's packages for a target.

    Raises:
        UnusableLock: all packages without a file for the target, without a hash, or locked twice for it.
        RefusedValues: the target's Python is not one of the lock's.
    """
    _check_python(found, target)
    environment = marker_environment(target)
    ranks = TagRanks(tuple(wheel_tags(target)))
    packages: dict[str, Package] = {}
    problems = list(_of_newer_glibc(found.conda.get(target.platform, CondaRows()), target))
    for row in found.rows:
        if not _holds(row.marker, environment):
            continue
        if other := packages.get(row.name):
            problems.append(f"{row.name} twice: {other.version} and {row.version}")
            continue
        try:
            packages[row.name] = _package(row, ranks, spec)
        except _Unusable as error:
            problems.append(str(error))
    if problems:
        where = f"{target.platform.value} with Python {target.python.series}"
        if target.glibc:
            where += f" and glibc {'.'.join(map(str, target.glibc))}"
        raise _unusable(found, where, problems)
    return Resolution(target, tuple(packages[name] for name in sorted(packages)))


def _unusable(found: ForeignLock, where: str, problems: Sequence[str]) -> UnusableLock:
    shown = [f"\n  {text}" for text in problems[:_MOST]]
    if len(problems) > _MOST:
        shown.append(f"\n  and {len(problems) - _MOST} more")
    return UnusableLock(
        f"{found.path} can't be installed on {where} as it is locked:{''.join(shown)}",
        hint="select other extras or groups, another Python or platform, or change the lock with the tool that wrote "
        "it",
    )


def adopted_conda(found: ForeignLock, spec: Spec) -> CondaResult:
    """A lock's conda packages for the platforms of a spec, without the Python packages that they contain; nothing for a
    lock that has none.

    Raises:
        UnusableLock: a platform has no packages, or some that can't be installed.
        RefusedValues: the spec has a Python that is not the one of these packages.
    """
    if not found.conda:
        return CondaResult()
    packages: dict[Platform, tuple[CondaPackage, ...]] = {}
    for platform in spec.env.platforms:
        rows = found.conda.get(platform, CondaRows())
        problems = list(rows.problems)
        if all(each.name != "python" for each in rows.packages):
            problems.append("it has no conda package `python` for this platform")
        if problems:
            raise _unusable(found, platform.value, problems)
        packages[platform] = _with_dependents(rows.packages)
    result = CondaResult(packages, found.channels)
    _check_conda_python(found, spec, result.pythons)
    return result


def _of_newer_glibc(rows: CondaRows, target: Target) -> Iterator[str]:
    for package in rows.packages:
        for text in package.depends:
            needed = re.match(r"__glibc >=(\d+)\.(\d+)", text)
            if needed and target.glibc and target.glibc < (int(needed[1]), int(needed[2])):
                yield f"{package.name} {package.version} requires {text}"


def _with_dependents(packages: Sequence[CondaPackage]) -> tuple[CondaPackage, ...]:
    """The packages with what requires them; the lock does not have which of them the project requires itself."""
    # Only locks with conda packages need it.
    from envspec.resolve.conda.records import with_askers

    required = with_askers(packages, ())
    return with_askers(packages, [each.name for each in required if not each.required_by])


def _check_conda_python(found: ForeignLock, spec: Spec, pythons: Mapping[Platform, str]) -> None:
    for platform, version in pythons.items():
        series = ".".join(version.split(".")[:2])
        if spec.env.python not in (version, series):
            raise RefusedValues(
                (
                    ("env", "python"),
                    f"{spec.env.python} is not the Python of {found.path.name}: {version} for {platform.value}",
                    f'write "{series}", or lock another Python with the tool that wrote it',
                )
            )
    is_of_base = spec.image.python is not None or spec.image.packages is BasePackages.KEEP
    if is_of_base or spec.env.python_source not in (PythonSource.AUTO, PythonSource.CONDA):
        problem = f"{found.path.name} has a Python of conda, and the spec names another one"
        hint = "remove `env.python_source` and `image.python`: two Pythons in one environment shadow each other"
        raise RefusedValues((("pip", "from"), problem, hint))


def with_python_packages(conda: CondaResult, store: Store) -> CondaResult:
    """Conda packages with the Python packages that they contain, as far as the facts have their names."""
    from envspec.resolve.conda.pypi_names import PypiNames, with_provided

    names = PypiNames({}, conda_names(), store)
    packages = {}
    for platform, rows in conda.packages.items():
        packages[platform], _ = run_interruptible(with_provided(rows, names, None))
    return replace(conda, packages=packages)


def with_adopted_conda(locked: Resolution, conda: CondaResult) -> Resolution:
    """A locked resolution with the conda packages of another tool's lock; the Python packages in them stay."""
    provided = {each.name: each.provides for each in locked.conda}
    packages = conda.packages.get(locked.target.platform, ())
    return replace(locked, conda=tuple(replace(each, provides=provided.get(each.name, ())) for each in packages))


def without_wheel(found: ForeignLock, series: str) -> int:
    """How many packages have wheels, and none that a Python of this series loads on linux-64."""
    target = Target(Platform.LINUX_64, Python(f"{series}.0", "spec"), glibc=_NEWEST_GLIBC)
    ranks, environment = TagRanks(tuple(wheel_tags(target))), marker_environment(target)
    count = 0
    for row in found.rows:
        wheels = [file.filename for file in row.files if file.filename.endswith(".whl")]
        if wheels and all(ranks.rank(name) is None for name in wheels) and _holds(row.marker, environment):
            count += 1
    return count


def with_adopted(locked: Resolution, target: Target, spec: Spec, spec_path: Path) -> Resolution:
    """A locked resolution with the packages that another tool's lock has now; what builds and wheels have shown of the
    same files stays.

    Raises:
        As `read_adopted` and `adopted_packages`.
    """
    before = {each.name: each for each in locked.packages}
    found = read_adopted(spec, spec_path)
    rows = tuple(_with_known_file(row, before.get(row.name)) for row in found.rows)
    packages = []
    for each in adopted_packages(replace(found, rows=rows), target, spec).packages:
        old = before.get(each.name)
        packages.append(each if old is None else _with_known_wheel(each, old))
    return replace(locked, packages=tuple(packages))


def _with_known_wheel(package: Package, locked: Package) -> Package:
    """A package with what is known of its wheel, if it was locked from the same source."""
    is_project = package.file.index in (GIT, LOCAL)
    built, file = locked.built, package.file
    address = (locked.file.url or "").partition("#sha256=")[0]
    if is_project and built and (locked.file.index, address) == (file.index, file.url):
        url = locked.file.url
        file = replace(file, filename=built.filename, sha256=built.sha256, size_bytes=built.size_bytes, url=url)
        package = replace(package, version=version_in(built.filename), file=file)
    if locked.file != file:
        return package
    package = replace(package, record_sha256=locked.record_sha256, wrong_record=locked.wrong_record)
    is_source = is_project or not file.filename.endswith(".whl")
    return replace(package, built=built, unbuilt=None) if built and is_source else package


def _with_known_file(row: Row, locked: Package | None) -> Row:
    """A row that has hashes alone, with the file that was locked, if that is one of them."""
    if row.files or locked is None or locked.file.sha256 not in row.hashes:
        return row
    file = locked.file
    known = LockedFile(file.filename, file.url, file.sha256, file.size_bytes, locked.uploaded)
    return replace(row, index=file.index, files=(known,))


class _Unusable(ValueError):
    """A row from which nothing can be installed; names the package and why."""


def _check_python(found: ForeignLock, target: Target) -> None:
    allowed = SpecifierSet(found.requires_python)
    if not allowed.contains(target.python.version, prereleases=True):
        raise RefusedValues(
            (
                ("env", "python"),
                f"Python {target.python.version} is not one of {found.path.name}, which requires {allowed}",
                "choose one that it allows",
            )
        )


def _holds(marker: str, environment: Mapping[str, str]) -> bool:
    return not marker or Marker(marker).evaluate({**environment, "extra": ""})


def _package(row: Row, ranks: TagRanks, spec: Spec) -> Package:
    if row.index in (GIT, LOCAL):
        return _source(row)
    file = _file(row, ranks, spec)
    if not file.sha256:
        raise _Unusable(f"{row.name} {row.version}: it has no hash of {file.filename}")
    url = None if row.index == DEFAULT_INDEX else file.url
    unbuilt = None
    if not file.filename.endswith(".whl") and not spec.pip.build.may_compile(row.name):
        unbuilt = Unbuilt.LOCKED
    return Package(
        row.name,
        row.version,
        WheelFile(row.index, file.filename, file.sha256, file.size_bytes, url),
        row.required_by,
        uploaded=file.uploaded,
        unbuilt=unbuilt,
    )


def _file(row: Row, ranks: TagRanks, spec: Spec) -> LockedFile:
    """The best wheel, else the sdist."""
    wheels: list[tuple[int, LockedFile]] = []
    sdists: list[LockedFile] = []
    for file in row.files:
        rank = ranks.rank(file.filename)
        if rank is not None:
            wheels.append((rank, file))
        elif SDIST.fits(file.filename):
            sdists.append(file)
    if wheels:
        return min(wheels, key=lambda each: each[0])[1]
    if sdists and spec.pip.build.may_build(row.name):
        return sdists[0]
    if sdists:
        raise _Unusable(f"{row.name} {row.version}: only an sdist, and [pip.build] does not allow its build")
    if not row.files:
        raise _Unusable(f"{row.name} {row.version}: the lock has no file of it")
    raise _Unusable(f"{row.name} {row.version}: no wheel for that, only {_tags(row.files)}")


def _tags(files: Sequence[LockedFile]) -> str:
    """The tags of the wheels that there are."""
    tails: dict[str, None] = {}
    for file in files:
        tails["-".join(file.filename.removesuffix(".whl").split("-")[-3:])] = None
    shown = list(tails)[:_MOST]
    more = ["..."] if len(tails) > _MOST else []
    return ", ".join([*shown, *more])


def _source(row: Row) -> Package:
    """A commit or a folder, not built yet: its file is named by what it is, until there is a wheel."""
    digest = hashlib.sha256(row.source.encode()).hexdigest()
    version = row.version or UNKNOWN_VERSION
    file = WheelFile(row.index, f"{row.name}-{version}.tar.gz", digest, None, row.source)
    return Package(row.name, version, file, row.required_by, unbuilt=Unbuilt.LOCKED)
