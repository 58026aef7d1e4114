"""[tool.poetry] and [tool.pdm] of a pyproject.toml; Poetry's requirements as PEP 508: carets, tildes, tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.adopt import poetry
from envspec.adopt.markers import without_extras
from envspec.documents import list_of, table_of
from envspec.importers.conda_specs import with_markers
from envspec.importers.pip import LineVerdict, bracketed
from envspec.importers.project import Project, not_included, written_value
from envspec.importers.toml_lines import items_of, several_of, text_of, texts_of
from envspec.importers.types import Outcome
from envspec.names import normalised
from envspec.spec.errors import BadValue, KeyPath, quoted
from envspec.spec.pip_lines import name_in
from envspec.spec.pyproject import git_address
from envspec.spec.requirements import local_address

#: Of a requirement's table; `develop`, `optional` and `source` decide other things than its text.
_KEYS: Final = frozenset(
    {"version", "extras", "markers", "python", "platform", "git", "branch", "tag", "rev", "subdirectory", "path", "url"}
    | {"file", "develop", "optional", "source", "allow-prereleases"}
)


def read_poetry(project: Project) -> None:
    """Read [tool.poetry], after [project]."""
    tool = project.file.table("tool", "poetry")
    _read_items(project, ("tool", "poetry", "dependencies"), "")
    for group in table_of(tool, "group"):
        _read_items(project, ("tool", "poetry", "group", group, "dependencies"), group)
    _read_items(project, ("tool", "poetry", "dev-dependencies"), "dev")
    for extra, names in table_of(tool, "extras").items():
        reason = "included" if normalised(extra) in project.extras else not_included("extra", extra)
        project.note(("tool", "poetry", "extras", extra), f"{extra} = {written_value(names)}", reason)
    for at, source in enumerate(list_of(tool, "source")):
        _index(project, source, ("tool", "poetry", "source", at), by_name=True)


def _read_items(project: Project, path: tuple[str, ...], group: str) -> None:
    for name, value in project.file.table(*path).items():
        if name == "python":
            try:
                project.python(specifier_of(str(value)), (*path, name), f'python = "{value}"')
            except BadValue as error:
                verdict = LineVerdict(Outcome.REFUSED, f"{error}; {error.hint}")
                project.add((*path, name), f"python = {written_value(value)}", verdict)
        elif reason := _why_not_included(project, name, value, group):
            project.note((*path, name), f"{name} = {written_value(value)}", reason)
        else:
            _read_item(project, name, value, (*path, name))


def _why_not_included(project: Project, name: str, value: Any, group: str) -> str:
    """Why the requirements of a name are not taken from their table; empty if they are."""
    if group and normalised(group) not in project.groups:
        return not_included("group", group)
    if any(table_of(item).get("optional") is True for item in several_of(value)):
        extras = project.file.table("tool", "poetry", "extras")
        having = [extra for extra in extras if name in list_of(extras, extra)]
        if not having:
            return "optional, and of no extra: not included"
        if project.extras.isdisjoint(map(normalised, having)):
            return not_included("extra", having[0])
    if not group and _is_of_project(project, name):
        return "the requirement is in [project] dependencies"
    return ""


def _read_item(project: Project, name: str, value: Any, path: KeyPath) -> None:
    """A requirement, or several with markers of their own."""
    for at, item in enumerate(several_of(value)):
        place = (*path, at)
        written = f"{name} = {written_value(item)}"
        marker = without_extras(text_of(item, "markers"), project.extras)
        if marker is None:
            project.note(place, written, "its marker is for other extras: not included")
            continue
        requirement = item
        if isinstance(item, Mapping):
            requirement = {**item, "markers": marker}
        try:
            text = requirement_of(name, requirement)
        except BadValue as error:
            whole = f"{name} = {written_value(value)}"
            project.add(place, whole, LineVerdict(Outcome.REFUSED, f"{error}; {error.hint}"))
            continue
        if source := text_of(item, "source"):
            project.indexes.setdefault(source, []).append(name)
        project.requirement(text, place, written=written)


def _is_of_project(project: Project, name: str) -> bool:
    table = project.file.table("project")
    optional = table_of(table, "optional-dependencies")
    lines = list_of(table, "dependencies")[:]
    for extra in optional:
        lines += list_of(optional, extra)
    return normalised(name) in map(name_in, map(str, lines))


def read_pdm(project: Project) -> None:
    """Read [tool.pdm], after [project]."""
    tool = project.file.table("tool", "pdm")
    for group, listed in table_of(tool, "dev-dependencies").items():
        for at, text in enumerate(items_of(listed)):
            path = ("tool", "pdm", "dev-dependencies", group, at)
            if normalised(group) in project.groups:
                project.requirement(text, path, group=normalised(group))
            else:
                project.note(path, text, not_included("group", group))
    for name, version in table_of(tool, "resolution", "overrides").items():
        operator = "=="
        if re.match(r"[=<>!~]", str(version)):
            operator = ""
        elif "://" in str(version):
            operator = " @ "
        where = ("tool", "pdm", "resolution", "overrides", name)
        project.override(f"{name}{operator}{version}", where, "resolution.overrides of PDM")
    for at, source in enumerate(list_of(tool, "source")):
        _index(project, source, ("tool", "pdm", "source", at), by_name=False)


def _index(project: Project, source: Any, path: KeyPath, *, by_name: bool) -> None:
    """An index of Poetry or PDM. by_name: requirements name it."""
    name, url = text_of(source, "name"), text_of(source, "url")
    packages = texts_of(source, "include_packages")
    if by_name:
        packages = project.indexes.get(name, []) + packages
    priority = text_of(source, "priority")
    verdict = LineVerdict(Outcome.TRANSLATED, "it is the default index")
    if url:
        verdict = project.index(
            source,
            path,
            packages,
            is_explicit=priority == "explicit",
            is_links=text_of(source, "type") == "find_links",
            is_default=priority in ("primary", "default") and not by_name,
        )
    project.add(path, f"[[{'.'.join(map(str, path[:3]))}]] {name} {url}", verdict)


def requirement_of(name: str, value: Any) -> str:
    """A line of [tool.poetry.dependencies] as PEP 508.

    Raises:
        BadValue: it has no such form.
    """
    if isinstance(value, str):
        return f"{name}{specifier_of(value)}"
    if not isinstance(value, Mapping):
        raise BadValue(f"{name} is neither a version nor a table", f'write {name} = "^1.0"')
    if unknown := sorted(set(map(str, value)) - _KEYS):
        raise BadValue(f"{name} has {quoted(unknown[0])}, which is not a key of Poetry's", "remove it")
    if value.get("allow-prereleases") is True:
        raise BadValue(f"{name} allows pre-releases", f'name one: "{name}>=1.0rc1"')
    text = name + bracketed(texts_of(value, "extras"))
    path = text_of(value, "path") or text_of(value, "file")
    if text_of(value, "git"):
        text += f" @ {git_address(value)}"
    elif path:
        text += f" @ {local_address(path)}"
    elif text_of(value, "url"):
        text += f" @ {text_of(value, 'url')}"
    else:
        text += specifier_of(text_of(value, "version") or "*")
    markers = [text_of(value, "markers")]
    if python := text_of(value, "python"):
        markers += [
            f'python_full_version {each.operator} "{each.version}"' for each in SpecifierSet(specifier_of(python))
        ]
    if platform := text_of(value, "platform"):
        markers.append(f'sys_platform == "{platform}"')
    return with_markers(text, *markers)


def specifier_of(constraint: str) -> str:
    """A constraint of Poetry's (`^1.2`, `~1.2`, `1.2`, `>=1,<2`) as PEP 440; empty for `*`.

    Raises:
        BadValue: it has no such form.
    """
    text = constraint.strip()
    if "|" in text:
        raise BadValue(f"{quoted(text)} allows one range or another", "write one of them")
    try:
        return poetry.specifier_of(text)
    except InvalidSpecifier:
        raise BadValue(f"{quoted(text)} is not a constraint of Poetry's", 'write "^1.2" or ">=1.2,<2"') from None
