"""uv.lock: `uv export` decides what is selected, the lock itself has the files.

Source: uv's documentation, "Locking and syncing" and `uv export` (uv 0.13).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from packaging.markers import Marker
from packaging.requirements import Requirement

from envspec.adopt.rows import ALL, ForeignLock, LeftOut, LockedFile, Row, Selection, index_name
from envspec.adopt.selected import PYPROJECT, read_document
from envspec.credentials import without_credentials
from envspec.documents import list_of, table_of
from envspec.errors import UsageError
from envspec.models import DIRECT_URL, GIT, LOCAL, SPEC, Dependent
from envspec.names import normalised

_EXPORT: Final = (
    *("export", "--frozen", "--offline", "--no-config", "--format", "requirements.txt", "--no-hashes"),
    *("--no-header", "--no-annotate"),
)
#: Kinds of sources that are folders; a virtual one is not installed.
_FOLDERS: Final = ("editable", "directory", "virtual")
_SECONDS: Final = 60

Table = Mapping[str, Any]


def read(path: Path, selection: Selection) -> ForeignLock:
    """Read a uv.lock.

    Raises:
        UsageError: it is not one; there is no pyproject.toml beside it; an extra or a group does not exist, or
            conflicts with another one.
    """
    if not (path.parent / PYPROJECT).is_file():
        raise UsageError(
            f"{path}: there is no {PYPROJECT} beside it, and uv reads a lock together with that",
            hint=f"copy the project's {PYPROJECT} files too, or export there: `uv export --format pylock.toml`",
        )
    lock = read_document(path)
    packages = [_Package(each) for each in list_of(lock, "package") if isinstance(each, Mapping)]
    project = _project(packages, selection, path)
    _check_names(project, selection, path)
    lines = _exported(path, selection, project)
    sources = [edge["source"] for _, edge in _edges(packages, project, selection) if "source" in edge]
    rows = sorted(_rows(path, lines, packages, sources), key=lambda row: row.name)
    return ForeignLock(
        path,
        project.name,
        str(lock.get("requires-python", "")),
        tuple(_with_dependents(rows, packages, project, selection)),
        tuple(_left_out(packages, project, selection, {row.name for row in rows})),
        selection=selection,
    )


def folders_of(text: str) -> list[str]:
    """The folders of a uv.lock's members and local packages, as the lock writes them; text: of the lock."""
    return sorted(set(re.findall(rf'(?:{"|".join(_FOLDERS)}) = "([^"]+)"', text)))


class _Package:
    """An entry of uv.lock."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name = normalised(str(table.get("name", "")))
        self.version = str(table.get("version", ""))
        self.source = table_of(table, "source")
        self.extras = {
            normalised(name): list_of(table, "optional-dependencies", name)
            for name in _keys(table, "optional-dependencies")
        }
        self.groups = {
            normalised(name): list_of(table, "dev-dependencies", name) for name in _keys(table, "dev-dependencies")
        }

    @property
    def folder(self) -> str | None:
        """Of a member or a local package, from the folder of the lock."""
        for kind in _FOLDERS:
            if kind in self.source:
                return str(self.source[kind])
        return None

    def edges(self, extras: Collection[str] = (), groups: Collection[str] = ()) -> Iterator[Table]:
        """What it requires itself, with extras and groups."""
        yield from list_of(self.table, "dependencies")
        for own, names in ((self.extras, extras), (self.groups, groups)):
            for name in names:
                yield from own.get(name, ())


def _keys(table: Table, key: str) -> list[str]:
    return list(table_of(table, key))


def _project(packages: Sequence[_Package], selection: Selection, path: Path) -> _Package:
    """The project that is meant: the first named member, else that beside the lock, else an empty one."""
    members = {each.name: each for each in packages if each.folder is not None}
    if selection.members and ALL not in selection.members:
        name = selection.members[0]
        if name not in members:
            raise UsageError(f"{path}: there is no package {name} in the workspace", hint=f"it has {_joined(members)}")
        return members[name]
    return next((each for each in members.values() if each.folder == "."), _Package({}))


def _check_names(project: _Package, selection: Selection, path: Path) -> None:
    """Refuse extras that the project does not have; groups may be of the workspace, and uv refuses those."""
    if selection.members:
        return
    # An extra without dependencies is in no table but this one.
    stated = {normalised(str(each)) for each in list_of(project.table, "metadata", "provides-extras")}
    for name in selection.extras:
        if name != ALL and name not in {*stated, *project.extras}:
            raise UsageError(f"{path}: {project.name} has no extra {name}", hint=_choices(project))


def _choices(project: _Package) -> str:
    return f"its extras: {_joined(project.extras) or 'none'}; its groups: {_joined(project.groups) or 'none'}"


def _joined(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _words(selection: Selection) -> Iterator[str]:
    """uv's words for a selection."""
    if not selection.default_groups:
        yield "--no-default-groups"
    if not selection.members:
        # The project itself is the last layer of an image.
        yield "--no-emit-project"
    for option, names in (("extra", selection.extras), ("group", selection.groups), ("package", selection.members)):
        if ALL in names:
            yield f"--all-{option}s"
        else:
            for name in names:
                yield from (f"--{option}", name)
    for name in selection.without_groups:
        # uv has a group `dev` without a table of groups, but refuses `--no-group dev` then.
        yield from ("--no-dev",) if name == "dev" else ("--no-group", name)


def _exported(path: Path, selection: Selection, project: _Package) -> list[str]:
    """The lines of `uv export`, without a network, an interpreter or settings of this machine."""
    import uv

    environ = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    command = [uv.find_uv_bin(), *_EXPORT, *_words(selection)]
    try:
        done = subprocess.run(  # noqa: S603 (uv itself; names of extras and groups are checked)
            command, cwd=path.parent, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        shown = " ".join(("uv", *command[1:]))
        raise UsageError(f"{path}: uv did not read it within {_SECONDS} s", hint=f"run `{shown}` there") from None
    if done.returncode != 0:
        problem = done.stderr.strip().removeprefix("error: ")
        if problem.startswith("Failed to parse"):
            raise UsageError(f"{path}: uv can't read it: {problem}", hint="run `uv lock`")
        raise UsageError(f"{path}: uv exports nothing: {problem}", hint=_choices(project))
    return done.stdout.splitlines()


def _rows(path: Path, lines: Sequence[str], packages: Sequence[_Package], sources: Sequence[Table]) -> Iterator[Row]:
    by_name: dict[str, list[_Package]] = {}
    by_folder: dict[str, _Package] = {}
    for each in packages:
        by_name.setdefault(each.name, []).append(each)
        if each.folder is not None:
            by_folder[os.path.normpath(each.folder)] = each
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        address, _, marker = text.removeprefix("-e ").partition(" ; ")
        if text.startswith(("-e ", ".", "/")):
            package = by_folder.get(os.path.normpath(address))
            if package is None:
                raise UsageError(f"{path}: it has no package in the folder {address}", hint="run `uv lock`")
            if "virtual" not in package.source and package.folder != ".":
                yield Row(package.name, package.version, LOCAL, marker=marker.strip(), source=package.folder or "")
            continue
        requirement = Requirement(text)
        named = by_name.get(normalised(requirement.name), [])
        for package, condition in _entries(requirement, named, sources, path):
            yield _row(package, condition, path)


def _entries(
    requirement: Requirement, named: Sequence[_Package], sources: Sequence[Table], path: Path
) -> list[tuple[_Package, str]]:
    """The entries that a line means, each with its marker: one version may come from several indexes.

    sources: that are required by name; of conflicting extras, only what is selected requires one.
    """
    marker = str(requirement.marker or "")
    # Of `==2.9.1`, 2.9.1+cu128 is one, too: here it is another entry.
    versions = {each.version for each in requirement.specifier}
    found = []
    for each in named:
        is_of_index = "registry" in each.source
        if is_of_index is not (requirement.url is None):
            continue
        if not is_of_index or each.version in versions:
            found.append(each)
    if len(found) > 1:
        found = [each for each in found if each.source in sources] or found
    if not found:
        raise UsageError(f"{path}: it has no entry for {requirement}", hint="run `uv lock`")
    if len(found) == 1:
        return [(found[0], marker)]
    return [(each, _both(marker, list_of(each.table, "resolution-markers"))) for each in found]


def _both(marker: str, others: Sequence[str]) -> str:
    """A marker that holds where one does, and one of the others; without others, where it does."""
    either = " or ".join(f"({each})" for each in others)
    if not (marker and either):
        return marker or either
    return str(Marker(f"({marker}) and ({either})"))


def _row(package: _Package, marker: str, path: Path) -> Row:
    source = package.source
    row = Row(package.name, package.version, marker=marker)
    if "git" in source:
        return Row(package.name, package.version, GIT, marker=marker, source=_git(str(source["git"])))
    if package.folder is not None:
        return Row(package.name, package.version, LOCAL, marker=marker, source=package.folder)
    if "path" in source:
        raise UsageError(
            f"{path}: {package.name} is the file {source['path']}, which no other machine has",
            hint="put it on an index, or name it by its URL, and run `uv lock`",
        )
    entries = [*list_of(package.table, "wheels"), *filter(None, [package.table.get("sdist")])]
    if "url" in source:
        files = tuple(_file(each, str(source["url"])) for each in entries)
        return Row(row.name, row.version, DIRECT_URL, files=files, marker=marker)
    registry = without_credentials(str(source.get("registry", "")))
    if not registry.startswith(("https://", "http://")):
        raise UsageError(
            f"{path}: {package.name} comes from the folder {registry or '?'}, which no other machine has",
            hint="put it on an index, and run `uv lock`",
        )
    files = tuple(_file(each, "") for each in entries)
    return Row(row.name, row.version, index_name(registry), registry, files, marker)


def _file(entry: Table, address: str) -> LockedFile:
    """address: of an entry without a URL of its own."""
    url = without_credentials(str(entry.get("url", address)))
    uploaded = entry.get("upload-time")
    if isinstance(uploaded, str):
        # Python 3.10 reads neither Z nor five digits of a second.
        uploaded = datetime.fromisoformat(re.sub(r"(?:\.\d+)?Z$", "+00:00", uploaded))
    # Of another kind, such as MD5, there is none that counts.
    kind, _, digest = str(entry.get("hash", "")).partition(":")
    size = entry.get("size")
    return LockedFile(
        str(entry.get("filename") or unquote(urlsplit(url).path).rpartition("/")[2]),
        url,
        digest if kind == "sha256" else "",
        size if isinstance(size, int) else None,
        uploaded if isinstance(uploaded, datetime) else None,
    )


def _git(address: str) -> str:
    """`https://host/project.git?subdirectory=x&rev=main#<commit>` as pip writes it."""
    where, _, commit = address.partition("#")
    url, _, query = where.partition("?")
    folder = parse_qs(query).get("subdirectory", [""])[0]
    return f"git+{without_credentials(url)}@{commit}" + (f"#subdirectory={folder}" if folder else "")


def _edges(packages: Sequence[_Package], project: _Package, selection: Selection) -> Iterator[tuple[_Package, Table]]:
    """What each package requires; of the project, as it is selected."""
    for package in packages:
        extras: Collection[str] = package.extras
        groups: Collection[str] = ()
        if package is project:
            extras = project.extras if ALL in selection.extras else selection.extras
            groups = project.groups if ALL in selection.groups or selection.default_groups else selection.groups
        for edge in package.edges(extras, groups):
            yield package, edge


def _with_dependents(
    rows: Sequence[Row], packages: Sequence[_Package], project: _Package, selection: Selection
) -> Iterator[Row]:
    """The rows with what requires them, by names: the lock has no versions of requirements."""
    from envspec.structs import replace

    selected = {row.name for row in rows}
    dependents: dict[str, set[Dependent]] = {}
    for package, edge in _edges(packages, project, selection):
        if package is project or package.name in selected:
            name = normalised(str(edge.get("name", "")))
            of = SPEC if package is project else package.name
            dependents.setdefault(name, set()).add(Dependent(of, name))
    for row in rows:
        yield replace(row, required_by=tuple(sorted(dependents.get(row.name, {Dependent(SPEC, row.name)}))))


def _left_out(
    packages: Sequence[_Package], project: _Package, selection: Selection, selected: Collection[str]
) -> Iterator[LeftOut]:
    """The project's extras and groups that are not selected, with the packages that only they add."""
    by_name: dict[str, list[_Package]] = {}
    for each in packages:
        by_name.setdefault(each.name, []).append(each)
    for kind, own, chosen in (
        ("extra", project.extras, selection.extras),
        ("group", project.groups, selection.groups),
    ):
        if ALL in chosen:
            continue
        for name in sorted(set(own) - set(chosen)):
            added = _reached(own[name], by_name) - set(selected)
            if added:
                yield LeftOut(kind, name, frozenset(added))


def _reached(edges: Sequence[Table], by_name: Mapping[str, Sequence[_Package]]) -> set[str]:
    """The names that edges lead to, directly or not, on any platform."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = list(edges)
    while waiting:
        edge = waiting.pop()
        name = normalised(str(edge.get("name", "")))
        found.add(name)
        for extra in ("", *list_of(edge, "extra")):
            if (name, extra) not in seen:
                seen.add((name, extra))
                for package in by_name.get(name, ()):
                    waiting += package.edges([normalised(extra)] if extra else ())
    return found
