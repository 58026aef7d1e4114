"""pylock.toml, and pylock.NAME.toml (PEP 751)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.pylock import Package, PackageArchive, PackageSdist, PackageWheel, Pylock, PylockValidationError

from envspec.adopt.markers import without_extras
from envspec.adopt.rows import ForeignLock, LockedFile, Row, Selection, index_name
from envspec.adopt.selected import (
    check_names,
    chosen,
    chosen_groups,
    environments,
    git_source,
    index_of,
    left_out,
    name_of,
    normalised_names,
    project_beside,
    read_document,
    readable,
    usable,
    without_project,
)
from envspec.credentials import without_credentials
from envspec.documents import list_of, table_of
from envspec.errors import UsageError
from envspec.models import DEFAULT_INDEX, DIRECT_URL, GIT, LOCAL, Platform, marker_values
from envspec.names import normalised


def read(path: Path, selection: Selection) -> ForeignLock:
    """A pylock.toml. Its `default-groups` are the project's own dependencies, and always selected.

    Raises:
        UsageError: it can't be read, lacks what is selected, has a name twice, or a source that is not supported.
    """
    with readable(path):
        return _read(path, selection)


def _read(path: Path, selection: Selection) -> ForeignLock:
    document = read_document(path)
    packages = [each for each in list_of(document, "packages") if not _is_excluded(each)]
    try:
        lock = Pylock.from_dict({**document, "packages": packages} if packages else document)
    except PylockValidationError as error:
        raise UsageError(
            f"{path} is not a pylock.toml of version 1: {error}", hint="export it again with the tool that wrote it"
        ) from None
    own = frozenset(normalised_names(lock.default_groups or ()))
    all_extras = normalised_names(lock.extras or ())
    all_groups = set(normalised_names(lock.dependency_groups or ())) - own
    extras = chosen("extra", selection.extras, all_extras, path)
    groups = chosen_groups(selection, all_groups, (), path)
    rows = []
    for package in lock.packages:
        marker = _marker(package, extras, groups | own, path)
        if marker is not None:
            rows.append(_row(package, marker, path))
    project = project_beside(path)
    rows = without_project(rows, project)
    requires_python = str(lock.requires_python or "")
    check_names(path, rows, requires_python, lambda _: _choose(all_extras, all_groups))

    def names(extras: frozenset[str], groups: frozenset[str]) -> set[str]:
        found = set()
        for package in lock.packages:
            if _marker(package, extras, groups | own, path) is not None:
                found.add(str(package.name))
        return found

    return ForeignLock(
        path,
        name_of(project),
        requires_python,
        tuple(sorted(rows, key=lambda row: row.name)),
        left_out(names, (all_extras, extras), (all_groups, groups)),
    )


def _is_excluded(table: Any) -> bool:
    """Whether a package has neither files nor a source, nor an environment: uv writes these for what overrides with
    `sys_platform == 'never'` exclude, and packaging refuses them.
    """
    if not {"wheels", "sdist", "archive", "vcs", "directory"}.isdisjoint(table_of(table)):
        return False
    try:
        marker = Marker(str(table_of(table).get("marker", "")))
        return not any(map(marker.evaluate, environments("", list(Platform))))
    except (KeyError, ValueError):
        return False


def _choose(extras: Collection[str], groups: Collection[str]) -> str:
    if not extras and not groups:
        return "export it again with the tool that wrote it"
    words = [f"--extra {name}" for name in extras] + [f"--group {name}" for name in sorted(groups)]
    return f"select other extras or groups: {', '.join(words)}"


def _marker(package: Package, extras: frozenset[str], groups: frozenset[str], path: Path) -> str | None:
    """What a package's marker says of the environment; None if it is not selected."""
    if package.marker is None:
        return ""
    found = without_extras(str(package.marker), extras, groups)
    if found:
        try:
            # Extras and groups are not known in this context.
            Marker(found).evaluate(marker_values(Platform.LINUX_64, "3.12.0"), context="requirement")
        except (KeyError, ValueError) as error:
            raise UsageError(f"{path}: the marker of {package.name} can't be evaluated: {error}") from None
    return found


def _row(package: Package, marker: str, path: Path) -> Row:
    name, version = str(package.name), str(package.version or "")
    if vcs := package.vcs:
        if vcs.type != "git" or not vcs.url:
            raise _unsupported(package, f"from {vcs.type} at {vcs.url or vcs.path}", path)
        source = git_source(path, name, vcs.url, vcs.commit_id, vcs.subdirectory or "")
        return Row(name, version, GIT, marker=marker, source=source)
    if package.directory:
        folder = Path(package.directory.path, package.directory.subdirectory or "")
        return Row(name, version, LOCAL, marker=marker, source=folder.as_posix())
    if package.archive:
        if package.archive.subdirectory:
            raise _unsupported(package, "in a folder of an archive", path)
        return Row(name, version, DIRECT_URL, files=(_file(package.archive, package, path),), marker=marker)
    listed: list[PackageWheel | PackageSdist] = [*(package.wheels or ())]
    if package.sdist:
        listed.append(package.sdist)
    files = usable(_file(each, package, path) for each in listed)
    url = without_credentials(package.index or index_of(files))
    index = index_name(url) if url else DEFAULT_INDEX
    return Row(name, version, index, "" if index == DEFAULT_INDEX else url, files, marker)


def _file(each: PackageWheel | PackageSdist | PackageArchive, package: Package, path: Path) -> LockedFile:
    if not each.url:
        raise _unsupported(package, f"a file of this machine, {each.path}", path)
    filename = unquote(urlsplit(each.url).path.rpartition("/")[2])
    # uv normalises the names of files: indexes have that in the URL.
    if not isinstance(each, PackageArchive) and normalised(filename) != normalised(each.filename):
        filename = each.filename
    url = without_credentials(each.url.partition("#")[0])
    uploaded = each.upload_time
    if uploaded and uploaded.tzinfo is None:
        # PEP 751: it is UTC.
        uploaded = uploaded.replace(tzinfo=timezone.utc)
    return LockedFile(filename, url, each.hashes.get("sha256", ""), each.size, uploaded)


def _unsupported(package: Package, what: str, path: Path) -> UsageError:
    return UsageError(
        f"{path}: {package.name} is {what}, which is not supported",
        hint="lock it from an index, a URL, a git repository or a folder",
    )
