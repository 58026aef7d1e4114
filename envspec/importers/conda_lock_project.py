"""pyproject.toml as conda-lock reads it: what a project requires are packages of conda, unless their source is PyPI.

Source: conda-lock 4.0.3, `src_parser/pyproject_toml.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508

from envspec.facts.tables import conda_names
from envspec.importers.conda_specs import add_channel, add_name, add_platform, add_requirement
from envspec.importers.pip import Verdict, add_index
from envspec.importers.poetry import requirement_of, specifier_of
from envspec.importers.project import Project, not_included, written_value
from envspec.importers.toml_lines import TomlFile, list_of, table_of, text_of
from envspec.importers.types import Import, Outcome
from envspec.names import normalised
from envspec.spec.errors import BadValue, KeyPath

_TOOL: Final = ("tool", "conda-lock")
_PYPI: Final = "pypi"


def read_conda_project(path: Path, imported: Import) -> None:
    """Read a project whose lock is a conda-lock.yml."""
    extras, groups = (frozenset(map(normalised, names)) for names in (imported.extras, imported.groups))
    project = Project(TomlFile(path, imported), imported, extras, groups)
    for keys in (("project",), ("tool", "poetry")):
        if name := text_of(project.file.table(*keys), "name"):
            add_name(imported, project.file.at(*keys, "name"), name)
    _settings(project)
    if python := text_of(project.file.table("project"), "requires-python"):
        project.python(python, ("project", "requires-python"), "requires-python")
    _metadata(project)
    for table in ("dependencies", "dev-dependencies"):
        for name, value in project.file.table("tool", "poetry", table).items():
            _of_poetry(project, name, value, ("tool", "poetry", table, name))
    for name, value in project.file.table(*_TOOL, "dependencies").items():
        _of_conda(project, name, value, (*_TOOL, "dependencies", name))


def _settings(project: Project) -> None:
    imported, at = project.imported, project.file.at
    for key, value in project.file.table(*_TOOL).items():
        path: KeyPath = (*_TOOL, key)
        listed = [(number, str(each)) for number, each in enumerate(value if isinstance(value, list) else ())]
        for number, text in listed:
            if key == "channels":
                add_channel(imported, at(*path, number), text, text)
            elif key == "platforms":
                add_platform(imported, at(*path, number), text)
            elif key == "pip-repositories":
                project.add((*path, number), text, add_index(text, at(*path, number), imported))
        if key not in ("channels", "platforms", "pip-repositories", "dependencies"):
            verdict = Verdict(Outcome.NOT_UNDERSTOOD, "it is not a setting of conda-lock that is read")
            project.add(path, f"{key} = {written_value(value)}", verdict)


def _metadata(project: Project) -> None:
    table = project.file.table("project")
    own: KeyPath = ("project", "dependencies")
    lists = [("", list_of(table, "dependencies"), own)]
    for extra, listed in table_of(table, "optional-dependencies").items():
        lists.append((extra, listed if isinstance(listed, list) else [], ("project", "optional-dependencies", extra)))
    for extra, listed, path in lists:
        for at, text in enumerate(listed):
            if extra and normalised(extra) not in project.extras:
                project.note((*path, at), text, not_included("extra", extra))
            else:
                _requirement(project, str(text), (*path, at))


def _requirement(project: Project, text: str, path: KeyPath) -> None:
    try:
        found = Pep508(text)
    except (InvalidRequirement, RecursionError):
        project.add(path, text, Verdict(Outcome.NOT_UNDERSTOOD, "it is not a requirement"))
        return
    if found.url:
        project.requirement(text, path)
        return
    _add(project, found.name, str(found.specifier), str(found.marker or ""), text, path)


def _of_poetry(project: Project, name: str, value: Any, path: KeyPath) -> None:
    """A line of Poetry's tables: of conda, unless it has `source = "pypi"` or no version."""
    written = f"{name} = {written_value(value)}"
    extras = project.file.table("tool", "poetry", "extras")
    of = [extra for extra, names in extras.items() if isinstance(names, list) and name in names]
    try:
        if name == "python":
            project.python(specifier_of(str(value)), path, f'python = "{value}"')
        elif table_of(value).get("optional") is True and project.extras.isdisjoint(map(normalised, of)):
            project.note(path, written, not_included("extra", of[0] if of else name))
        elif isinstance(value, Mapping) and (text_of(value, "source") == _PYPI or not text_of(value, "version")):
            project.requirement(requirement_of(name, _without_source(value)), path, written=written)
        else:
            version = text_of(value, "version") if isinstance(value, Mapping) else str(value)
            _add(project, name, specifier_of(version), text_of(value, "markers"), written, path)
    except BadValue as error:
        project.add(path, written, Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))


def _without_source(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != "source"}


def _of_conda(project: Project, name: str, value: Any, path: KeyPath) -> None:
    """A line of [tool.conda-lock.dependencies], with conda's names and versions."""
    written = f"{name} = {written_value(value)}"
    table = value if isinstance(value, Mapping) else {"version": str(value)}
    if text_of(table, "source") == _PYPI:
        project.requirement(requirement_of(name, _without_source(table)), path, written=written)
        return
    channel, version = text_of(table, "channel"), text_of(table, "version")
    spec = f"{channel}::{name}" if channel else name
    spec = spec if version in ("", "*") else f"{spec} {version}"
    add_requirement(project.imported, project.file.at(*path), spec, text=written)


def _add(project: Project, name: str, specifier: str, marker: str, written: str, path: KeyPath) -> None:
    """A package of conda, by its name on PyPI and PEP 440's versions."""
    here = tuple(each for each in project.platforms if project.holds_on(marker, each))
    if not here:
        project.note(path, written, f"not for {', '.join(project.platforms)}")
        return
    spec = " ".join(filter(None, (_conda_name(name), specifier)))
    platforms = here if here != project.platforms else ()
    add_requirement(project.imported, project.file.at(*path), spec, platforms, written)


def _conda_name(name: str) -> str:
    """The name of a package on conda-forge: `pytorch` of torch; names that are conda's already stay."""
    known = conda_names().channels["conda-forge"]
    found = [conda for conda, pypi in known.items() if pypi == (normalised(name),)]
    if name.lower() in known or not found:
        return name.lower()
    return min(found, key=len)
