"""poetry.lock of Poetry 2, which has groups and markers of each package, and constraints as Poetry writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.adopt.markers import in_brackets, without_extras
from envspec.adopt.rows import ForeignLock, LockedFile, Row, Selection, index_name
from envspec.adopt.selected import (
    Malformed,
    check_names,
    chosen,
    chosen_groups,
    environments,
    git_source,
    left_out,
    name_of,
    project_beside,
    read_document,
    readable,
    tables_of,
    usable,
)
from envspec.credentials import without_credentials
from envspec.documents import list_of, table_of
from envspec.errors import UsageError
from envspec.models import DIRECT_URL, GIT, LOCAL, Platform
from envspec.names import NAME, VERSION, normalised
from envspec.structs import replace

#: The group that is always selected: what [tool.poetry.dependencies] or [project] requires.
_MAIN: Final = "main"
_TERM: Final = re.compile(r"(\^|~(?!=)|~=|[<>!=]=?=?)?\s*v?([0-9*][^\s,|]*)")

Table: TypeAlias = Mapping[str, Any]


class _Edge(Struct, frozen=True):
    """A requirement. version: a constraint. source: the URL, the repository, or the name in pyproject.toml of the index
    that it comes from; empty: any.
    """

    name: str
    version: str
    source: str = ""
    marker: str = ""
    extras: tuple[str, ...] = ()
    is_optional: bool = False


class _Package(Struct, frozen=True):
    """An entry of the lock. reference: as `_Edge.source`."""

    row: Row
    table: Table
    reference: str


def read(path: Path, selection: Selection) -> ForeignLock:
    """A poetry.lock. Groups that are not optional are the default ones.

    Raises:
        UsageError: it can't be read, lacks what is selected, has a name twice, or a source that is not supported.
    """
    document, project = read_document(path), project_beside(path)
    version = str(table_of(document, "metadata").get("lock-version"))
    if not re.fullmatch(r"2\.[1-9]\d*", version):
        # Before, packages have no groups: which of them a group has would follow from a resolution.
        raise UsageError(f"{path} has the format {version}; 2.1 is the oldest", hint="run `poetry lock` with Poetry 2")
    with readable(path):
        return _Lock(path, document, project).read(selection)


class _Lock:
    def __init__(self, path: Path, document: Table, project: Table) -> None:
        self.path = path
        self.project = project
        self.tool = table_of(project, "tool", "poetry")
        self.requires_python = _python(str(table_of(document, "metadata").get("python-versions", "")))
        self.packages = [_package(each, path) for each in tables_of(document, "package")]
        self.extras: dict[str, frozenset[str]] = {}
        for extra in table_of(document, "extras"):
            self.extras[normalised(extra)] = frozenset(map(_base_name, list_of(document, "extras", extra)))
        # Normalised name of a group -> whether it is optional.
        self.groups = {normalised(name): False for name in table_of(project, "dependency-groups")}
        if table_of(self.tool, "dev-dependencies"):
            self.groups["dev"] = False
        for name, group in table_of(self.tool, "group").items():
            self.groups[normalised(name)] = table_of(group).get("optional") is True
        for package in self.packages:
            for name in list_of(package.table, "groups"):
                self.groups.setdefault(normalised(str(name)), False)
        self.groups.pop(_MAIN, None)
        self.environments = list(environments(self.requires_python, list(Platform)))
        self.held: dict[tuple[str, int], bool] = {}

    def read(self, selection: Selection) -> ForeignLock:
        extras = chosen("extra", selection.extras, self.extras, self.path)
        default = [name for name, is_optional in self.groups.items() if not is_optional]
        groups = chosen_groups(selection, self.groups, default, self.path)
        rows = self.rows(extras, groups)
        check_names(self.path, rows, self.requires_python, self._choose)

        def names(extras: frozenset[str], groups: frozenset[str]) -> set[str]:
            return {row.name for row in self.rows(extras, groups)}

        return ForeignLock(
            self.path,
            name_of(self.project),
            self.requires_python,
            tuple(sorted(rows, key=lambda row: (row.name, row.version))),
            left_out(names, (self.extras, extras), (self.groups, groups)),
        )

    def _choose(self, name: str) -> str:
        extras = [f"--extra {extra}" for extra, names in self.extras.items() if name in names]
        if not extras:
            return "run `poetry lock` with Poetry 2"
        return f"select one of the extras that have it: {', '.join(sorted(extras))}"

    def rows(self, extras: frozenset[str], groups: frozenset[str]) -> list[Row]:
        found = []
        for package in self.packages:
            marker = _marker(package.table, extras, groups)
            if marker is not None:
                found.append((package, replace(package.row, marker=marker)))
        return self._without_other_indexes(found, extras)

    def _holds(self, marker: str, at: int) -> bool:
        """Whether a marker without extras does in an environment. at: its place."""
        if not marker:
            return True
        if (marker, at) not in self.held:
            self.held[marker, at] = Marker(marker).evaluate(self.environments[at])
        return self.held[marker, at]

    def _edges(self, extras: frozenset[str], groups: frozenset[str]) -> Iterator[_Edge]:
        """What the project itself requires, without conditions on extras."""
        of_extras = frozenset[str]().union(*(self.extras[extra] for extra in extras))
        for name, value in table_of(self.tool, "dependencies").items():
            for edge in _edges_of(name, value):
                marker = without_extras(edge.marker, extras)
                if marker is not None and (not edge.is_optional or edge.name in of_extras):
                    yield replace(edge, marker=marker)
        for extra, lines in table_of(self.project, "project", "optional-dependencies").items():
            if normalised(extra) in extras:
                yield from map(_edge_of_line, map(str, lines if isinstance(lines, list) else []))
        tables = [("dev", table_of(self.tool, "dev-dependencies"))]
        for group, table in table_of(self.tool, "group").items():
            tables.append((normalised(group), table_of(table, "dependencies")))
        for group, table in tables:
            if group in groups:
                for name, value in table.items():
                    yield from _edges_of(name, value)

    def _without_other_indexes(self, found: list[tuple[_Package, Row]], extras: frozenset[str]) -> list[Row]:
        """Rows without those that the project's own requirements exclude: the lock has what each extra needs, but not
        always which row is whose.
        """
        counts = Counter(row.name for _, row in found)
        direct = [edge for edge in self._edges(extras, frozenset()) if counts[edge.name] > 1]
        kept = {row for _, row in found if counts[row.name] == 1}
        for at in range(len(self.environments)):
            held: dict[str, list[tuple[_Package, Row]]] = {}
            for package, row in found:
                if counts[row.name] > 1 and self._holds(row.marker, at):
                    held.setdefault(row.name, []).append((package, row))
            for name, several in held.items():
                edges = [edge for edge in direct if edge.name == name and self._holds(edge.marker, at)]
                kept.update(_allowed(several, edges))
        return [row for _, row in found if row in kept]


def _allowed(several: list[tuple[_Package, Row]], edges: list[_Edge]) -> list[Row]:
    """The rows of one name that all edges allow; all rows, if none is."""
    fitting = []
    for package, row in several:
        if all(_fits(package, edge) for edge in edges):
            fitting.append(row)
    return fitting or [row for _, row in several]


def _fits(package: _Package, edge: _Edge) -> bool:
    if edge.source and package.reference.lower() != edge.source.lower():
        return False
    ranges = [SpecifierSet(specifier_of(each)) for each in edge.version.split("||")]
    return any(each.contains(package.row.version, prereleases=True) for each in ranges)


def _edges_of(name: str, value: Any) -> Iterator[_Edge]:
    """A line of [tool.poetry.dependencies] or [package.dependencies]."""
    for each in value if isinstance(value, list) else [value]:
        table: Table = each if isinstance(each, Mapping) else {"version": each}
        markers = [str(table.get("markers", ""))]
        if python := _python(str(table.get("python", ""))):
            markers += [f'python_full_version {one.operator} "{one.version}"' for one in SpecifierSet(python)]
        if platform := table.get("platform"):
            markers.append(f'sys_platform == "{platform}"')
        yield _Edge(
            normalised(name),
            str(table.get("version", "*")),
            without_credentials(str(table.get("source") or table.get("url") or table.get("git") or "")),
            " and ".join(in_brackets(marker) for marker in markers if marker),
            tuple(normalised(str(extra)) for extra in list_of(table, "extras")),
            table.get("optional") is True,
        )


def _edge_of_line(line: str) -> _Edge:
    required = Requirement(line)
    return _Edge(normalised(required.name), str(required.specifier) or "*", marker=str(required.marker or ""))


def _base_name(line: object) -> str:
    """The normalised name of `name[extra] (>=1) ; marker`."""
    return normalised(re.split(r"[^\w.-]", str(line).strip(), maxsplit=1)[0])


def _package(table: Table, path: Path) -> _Package:
    name, version, source = normalised(str(table.get("name"))), str(table.get("version")), table_of(table, "source")
    if not (NAME.fits(name) and VERSION.fits(version)):
        raise Malformed(f"{name} {version} is no name and version of a package")
    kind, url = str(source.get("type", "")), without_credentials(str(source.get("url", "")))
    if kind in ("file", "hg"):
        raise UsageError(
            f"{path}: {name} is from {url}, a {kind} source, which is not supported",
            hint="lock it from an index, a URL, a git repository or a folder",
        )
    row = Row(name, version)
    if kind == "git":
        commit = str(source.get("resolved_reference", ""))
        row = Row(name, version, GIT, source=git_source(path, name, url, commit, str(source.get("subdirectory", ""))))
    elif kind == "directory":
        row = Row(name, version, LOCAL, source=url)
    else:
        listed = tables_of(table, "files")
        row = replace(row, files=usable(_file(each, url if kind == "url" else None) for each in listed))
        if kind == "url":
            row = replace(row, index=DIRECT_URL)
        elif kind == "legacy":
            row = replace(row, index=index_name(url), index_url=url)
    reference = str(source.get("reference", "")) if kind == "legacy" else url
    return _Package(row, table, reference or "pypi")


def _file(each: Any, url: str | None) -> LockedFile:
    algorithm, _, digest = str(each.get("hash", "")).partition(":")
    return LockedFile(str(each.get("file", "")), url, digest if algorithm == "sha256" else "")


def _marker(table: Table, extras: frozenset[str], groups: frozenset[str]) -> str | None:
    """Where a package with groups is installed; None: it is not selected."""
    markers, found = table.get("markers", ""), []
    for group in map(str, list_of(table, "groups")):
        if normalised(group) in {_MAIN, *groups}:
            text = markers.get(group, "") if isinstance(markers, Mapping) else markers
            found.append(without_extras(str(text), extras))
    rests = list(dict.fromkeys(each for each in found if each is not None))
    if not rests:
        return None
    return "" if "" in rests else " or ".join(rests)


def _python(constraint: str) -> str:
    """A constraint on Python as specifiers; empty for one with several ranges, which specifiers can't state."""
    return "" if "|" in constraint else specifier_of(constraint)


def specifier_of(constraint: str) -> str:
    """A constraint of Poetry's (`^1.2`, `~1.2`, `1.2`, `>=1,<2`) as PEP 440; empty for `*`.

    Raises:
        InvalidSpecifier: it has no such form, or several ranges.
    """
    text = constraint.strip()
    if "|" in text or _TERM.sub("", text).strip(" ,"):
        raise InvalidSpecifier(f"{text!r} is not one range of versions")
    found: list[str] = []
    for operator, version in _TERM.findall(text):
        if version != "*":
            found += _bounds(operator, version)
    SpecifierSet(",".join(found))
    return ",".join(found)


def _bounds(operator: str, version: str) -> list[str]:
    if operator in ("^", "~"):
        return [f">={version}", f"<{_after(operator, version)}"]
    if operator in ("", "="):
        return [f"=={version}"]
    return [f"{operator}{version}"]


def _after(operator: str, version: str) -> str:
    """The first version that a caret or a tilde does not allow."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = list(map(int, release[0].split("."))) if release else [0]
    if operator == "~":
        numbers = numbers[:2]
    else:
        zeros = list(takewhile(lambda number: number == 0, numbers[:-1]))
        numbers = numbers[: len(zeros) + 1]
    numbers[-1] += 1
    return ".".join(map(str, numbers))
