"""pixi.lock, formats 4 to 7: each environment of pixi is a group, and `default` is selected without one.

Source: pixi's documentation, "Lock file" (https://pixi.sh/latest/workspace/lockfile/); py-rattler reads the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from envspec.adopt.conda import PLATFORMS, channels_of, file_row, locked_package, marker_of, rows_of
from envspec.adopt.rows import ALL, CondaRows, ForeignLock, LeftOut, Row, Selection
from envspec.adopt.selected import chosen, git_source, name_of, project_beside, text_of_file
from envspec.errors import UsageError
from envspec.models import GIT, LOCAL, CondaPackage, Platform
from envspec.names import RELEASE_FILE, normalised

if TYPE_CHECKING:
    from rattler.lock import Environment, LockedPackage, PypiLockedPackage

_DEFAULT: Final = "default"
#: py-rattler's version of a folder whose build computes it.
_DYNAMIC: Final = "<dynamic>"


def read(path: Path, selection: Selection) -> ForeignLock:
    """A pixi.lock.

    Raises:
        UsageError: it can't be read; the environment does not exist, or has no packages.
    """
    environments = _environments(path)
    chosen("extra", selection.extras, (), path)
    name = _chosen_environment(selection, environments, path)
    rows: list[Row] = []
    conda: dict[Platform, CondaRows] = {}
    for platform, packages in _by_platform(environments[name], path):
        rows += _pypi_rows(packages, platform, path)
        conda[platform] = _conda_rows(packages, platform)
    if not conda:
        problem = f"{path}: the environment {name} has no packages for {', '.join(PLATFORMS)}"
        raise UsageError(problem, hint=f"run `pixi lock`, or name another one: {_words(environments)}")
    # The project itself is the last layer of an image; one that is not in the environment is not installed.
    others = [row for row in rows if (row.index, row.source) != (LOCAL, ".")]
    return ForeignLock(
        path,
        name_of(project_beside(path)) if len(others) < len(rows) else "",
        "",
        tuple(sorted(others, key=lambda row: row.name)),
        tuple(_other_environments(environments, name)),
        selection=selection,
        conda=conda,
        channels=channels_of(conda),
    )


def _environments(path: Path) -> dict[str, Environment]:
    """The lock's environments, by their normalised names."""
    text_of_file(path)
    # The library of all conda work is large.
    from rattler.lock import LockFile

    try:
        return {normalised(name): each for name, each in LockFile.from_path(path).environments()}
    # The errors of rattler have no class in common.
    except Exception as error:
        problem = f"{path} can't be read by py-rattler: {' '.join(str(error).split())[:200]}"
        raise UsageError(problem, hint="run `pixi lock`") from None


def _words(environments: Iterable[str]) -> str:
    return " or ".join(f"--group {each}" for each in sorted(environments))


def _chosen_environment(selection: Selection, environments: Mapping[str, Environment], path: Path) -> str:
    groups = selection.groups or (_DEFAULT,)
    if ALL in groups or len(groups) > 1 or selection.without_groups:
        problem = f"{path}: an environment of pixi is selected whole, and alone"
        raise UsageError(problem, hint=f"name one: {_words(environments)}")
    (name,) = chosen("group", groups, environments, path)
    return name


def _by_platform(environment: Environment, path: Path) -> Iterator[tuple[Platform, list[LockedPackage]]]:
    """The packages of envspec's platforms. A format 7 may have several sets of packages for one."""
    seen: set[Platform] = set()
    for locked, packages in environment.packages_by_platform().items():
        platform = PLATFORMS.get(str(locked.subdir))
        if platform is None:
            continue
        if platform in seen:
            problem = f"{path} has several platforms for {platform.value} in one environment, such as {locked.name}"
            raise UsageError(problem, hint="give each of them an environment of its own in pixi's manifest")
        seen.add(platform)
        yield platform, packages


def _conda_rows(packages: Iterable[LockedPackage], platform: Platform) -> CondaRows:
    from rattler.lock import CondaLockedBinaryPackage, CondaLockedSourcePackage

    found: list[CondaPackage] = []
    problems: list[str] = []
    for each in packages:
        if isinstance(each, CondaLockedSourcePackage):
            problems.append(f"{each.name}: pixi builds it of {each.location}, and envspec builds no conda packages")
        elif isinstance(each, CondaLockedBinaryPackage) and each.package_record:
            found.append(locked_package(json.loads(each.package_record.to_json()), each.location))
    return rows_of(platform, found, problems)


def _pypi_rows(packages: Iterable[LockedPackage], platform: Platform, path: Path) -> Iterator[Row]:
    from rattler.lock import PypiLockedPackage

    for each in packages:
        if isinstance(each, PypiLockedPackage):
            yield _row(each, platform, path)


def _row(package: PypiLockedPackage, platform: Platform, path: Path) -> Row:
    name, location, marker = normalised(package.name), package.location, marker_of(platform)
    version = package.version.removeprefix(_DYNAMIC)
    if location.startswith("git+"):
        where, _, commit = location.removeprefix("git+").partition("#")
        url, _, query = where.partition("?")
        source = git_source(path, name, url, commit, parse_qs(query).get("subdirectory", [""])[0])
        return Row(name, version, GIT, marker=marker, source=source)
    if location.startswith(("https://", "http://")):
        return file_row(name, version, location, _sha256(package), platform)
    if RELEASE_FILE.fits(Path(location).name):
        problem = f"{path}: {name} is the file {location}, which no other machine has"
        raise UsageError(problem, hint="put it on an index, or name it by its URL, and run `pixi lock`")
    return Row(name, version, LOCAL, marker=marker, source=Path(location).as_posix())


def _sha256(package: PypiLockedPackage) -> str:
    """Hexadecimal; empty if the lock has none."""
    # Of a package without any hash, py-rattler 0.28 has None where its own property expects an object.
    with suppress(AttributeError):
        if package.hashes and package.hashes.sha256:
            return package.hashes.sha256.hex()
    return ""


def _other_environments(environments: Mapping[str, Environment], name: str) -> Iterator[LeftOut]:
    names: dict[str, set[str]] = {}
    for key, environment in sorted(environments.items()):
        names[key] = set()
        for packages in environment.packages_by_platform().values():
            names[key].update(normalised(each.name) for each in packages)
    selected = names.pop(name)
    for other, packages_of_other in names.items():
        yield LeftOut("group", other, frozenset(packages_of_other - selected))
