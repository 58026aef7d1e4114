"""Lines of the spec that nothing satisfies: no such package or release, none by the date, no wheel for the target."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from envspec.errors import EnvspecError
from envspec.facts.torch import split_label
from envspec.models import Target
from envspec.names import normalised
from envspec.resolve.pypi.extensions import published_elsewhere
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.routing import NotListed, PackageIndexError, Rules
from envspec.resolve.pypi.index.selection import releases_of, upload_time
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.types import PypiRequest
from envspec.resolve.pypi.wheel_coverage import loading_pythons, needs_newer_glibc, no_wheel_text
from envspec.resolve.types import RefusedLine
from envspec.spec.dates import utc_text

#: Of a name that no index has.
RENAME: Final = "correct the name, or name its index in [[pip.index]]"

_Releases = Mapping[Version, Sequence[ListedFile]]


async def refused_lines(request: PypiRequest, view: View) -> list[RefusedLine]:
    """The spec's lines of which a target sees no release at all.

    Raises:
        PackageIndexError: a mirror of the default index has none of the names: its address is wrong.
    """
    names: set[str] = set()
    reading: list[Awaitable[RefusedLine | None]] = []
    for text in request.requirements:
        if line := parsed(text):
            names.add(normalised(line.name))
            reading.append(_refused_line(text, line, request.target, view))
    found = await asyncio.gather(*reading)
    _check_mirror(names, view)
    return list(filter(None, found))


def _check_mirror(names: Set[str], view: View) -> None:
    """Raise PackageIndexError if the mirror of the default index has none of several names."""
    rules = view.rules
    from_mirror = {name for name in names - rules.direct.keys() - rules.provided.keys() if rules.is_of_default(name)}
    if view.mirror and len(from_mirror) > 1 and from_mirror <= view.missing:
        raise PackageIndexError(
            f"index {view.mirror} has none of the packages that the spec names: {', '.join(sorted(from_mirror))}",
            hint=view.mirror_hint,
        )


async def _refused_line(text: str, line: Requirement, target: Target, view: View) -> RefusedLine | None:
    name = normalised(line.name)
    try:
        visible = (await view.selection(name)).releases
        if any(line.specifier.contains(version, prereleases=True) for version in visible):
            return None
        listed = releases_of(await view.listed(name))
    except NotListed:
        if not view.rules.is_of_default(name):
            return None
        where = f" (index {view.mirror})" if view.mirror else ""
        hint = published_elsewhere([(name, "")], view.rules.extensions) or RENAME
        return RefusedLine(name, f"no such package: {line.name}{where}", hint)
    except EnvspecError:
        # Not the cause: it would have stopped the resolver.
        return None
    if not listed:
        # A page without any file says nothing about the line: it may be a login.
        return None
    return RefusedLine(name, *_problem(line, listed, visible, target, view.rules), text)


def _problem(line: Requirement, listed: _Releases, visible: _Releases, target: Target, rules: Rules) -> tuple[str, str]:
    """The problem and the hint for a line that allows none of the visible releases. listed: all of the index."""
    name, allowed = normalised(line.name), _allowed_releases(line, listed)
    cutoff, is_dated = rules.cutoff_of(name), rules.index_of(name).dated
    if not allowed:
        return _problem_of_unlisted(line, listed, rules)
    times: dict[Version, datetime] = {}
    for version, files in allowed.items():
        if time := _first_upload(files) if is_dated else cutoff:
            times[version] = time
    if not times:
        text = f"{name} {_newest(allowed)} has no upload time yet, which `as_of` needs"
        return text, "lock again once the index gives it, or require another release"
    first = min(times.values())
    if first > cutoff:
        # The next second: uploads have fractions.
        enough = (first + timedelta(seconds=1)).replace(microsecond=0)
        return (
            f"no release of {name}{line.specifier} was uploaded by {utc_text(cutoff)}",
            f"set [env] package_as_of = {{ {name} = {utc_text(enough)} }}, or move as_of (--upgrade, if the spec has "
            "no date)",
        )
    newest = _newest(version for version, time in times.items() if time <= cutoff)
    filenames = [file.filename for file in allowed[newest]]
    hint = _with_a_wheel(name, newest, filenames, visible, target)
    return f"{name} {newest} {no_wheel_text(filenames, target)}", hint


def _problem_of_unlisted(line: Requirement, listed: _Releases, rules: Rules) -> tuple[str, str]:
    """The problem and the hint for versions that the index does not have: another version, or another index."""
    name, (public, label) = normalised(line.name), split_label(line.specifier)
    bare = Requirement(f"{name}{public}")
    if label is None or not _allowed_releases(bare, listed):
        return f"there is no {name}{line.specifier}: the newest is {_newest(listed)}", "correct the version"
    problem = (
        f"index {rules.index_of(name).name} has {bare}, and no build of it with the label +{label}: such builds are on "
        "the project's own index or page"
    )
    version = str(_newest(_allowed_releases(bare, listed)))
    elsewhere = published_elsewhere([(name, version)], rules.extensions) or "name that index in [[pip.index]]"
    return problem, f"write {bare}, or {elsewhere}"


def _with_a_wheel(name: str, refused: Version, filenames: Sequence[str], visible: _Releases, target: Target) -> str:
    """The ways to a release that has a wheel: another one, another Python, another system.

    filenames: of the release that has none for the target.
    """
    ways = []
    loadable: list[Version] = []
    newer: list[Version] = []
    for version, files in visible.items():
        if any(file.is_wheel for file in files):
            loadable.append(version)
            if version > refused and not version.is_prerelease:
                newer.append(version)
    if newer:
        ways.append(f"allow {name} {min(newer)}, the first release with one for Python {target.python.series}")
    elif loadable:
        ways.append(f"allow {name} {_newest(loadable)}, the last release with one for Python {target.python.series}")
    if pythons := loading_pythons(filenames, target):
        ways.append(f'set [env] python = "{pythons[-1]}"')
    elif needs_newer_glibc(filenames, target):
        ways.append("set [cuda] os to a newer system")
    return ", or ".join(ways) or f"leave {name} out on {target.platform.value} with a marker"


def _newest(versions: Iterable[Version]) -> Version:
    """The newest final release; without one, the newest."""
    return max(versions, key=lambda version: (not version.is_prerelease, version))


def _first_upload(files: Iterable[ListedFile]) -> datetime | None:
    """When the first of the files was uploaded; None if it is unknown."""
    return min((upload_time(file.uploaded) for file in files if file.uploaded), default=None)


def _allowed_releases(line: Requirement, releases: _Releases) -> _Releases:
    return {each: files for each, files in releases.items() if line.specifier.contains(each, prereleases=True)}
