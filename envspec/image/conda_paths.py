"""Where the files of conda's packages will lie, read from their archives before any of them is written."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

from envspec.effects.archives import above, why_refused
from envspec.link.packages import BadPackage
from envspec.model import CondaPackage


async def check_paths(packages: Sequence[CondaPackage], archives: Mapping[str, Path]) -> None:
    """Refuse packages of which a file would be written outside the prefix, or through a link of another one.

    A layer that holds a file behind a link of another layer would put a folder into the link's place.

    Raises:
        BadPackage: names the package and the path.
    """
    owners: dict[str, CondaPackage] = {}
    links: dict[str, CondaPackage] = {}
    for package in packages:
        for path, kind in await _paths(package, archives[package.sha256]):
            if why := why_not_below(path):
                raise BadPackage(f"{package.filename}: {path!r} is in it, which {why}")
            owners[path] = package
            if kind == "softlink":
                links[path] = package
    for path, package in owners.items():
        if behind := next((folder for folder in above(path) if folder in links), None):
            of = links[behind].name
            raise BadPackage(f"{package.filename}: {path} of it is behind the link {behind} of {of}")


def why_not_below(path: str) -> str | None:
    """Why a path of a package must not be written below its prefix; None if it may."""
    return why_refused(path) or (None if posixpath.normpath(path) == path else "is not a path in its plain form")


async def _paths(package: CondaPackage, archive: Path) -> list[tuple[str, str]]:
    from rattler.package_streaming import PackageArchive

    try:
        data = await (await PackageArchive.from_path(archive)).read_file("info/paths.json")
        # Archives from before 2017 have none; what they hold is looked at once it is linked.
        return [(str(row["_path"]), str(row["path_type"])) for row in json.loads(data)["paths"]] if data else []
    except (OSError, ValueError, LookupError, TypeError) as fault:
        raise BadPackage(f"{package.filename}: it can't be read ({' '.join(str(fault).split())})") from fault
