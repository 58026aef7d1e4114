"""pyproject.toml as conda-lock reads it: what a project requires are packages of conda, unless their source is PyPI.

Source: conda-lock 4.0.3, `src_parser/pyproject_toml.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508

from envspec.facts.tables import conda_names
from envspec.importers.conda_specs import add_channel, add_platform, add_requirement, with_channel
from envspec.importers.pip import LineVerdict, Use, add_index
from envspec.importers.poetry import requirement_of
from envspec.importers.project import Project, written_value
from envspec.importers.toml_lines import items_of, text_of
from envspec.importers.types import Outcome
from envspec.names import normalised
from envspec.spec.errors import KeyPath

_TOOL: Final = ("tool", "conda-lock")
#: The source of packages that are not conda's.
_PYPI: Final = "pypi"


class CondaProject(Project):
    """A project whose requirements are packages of conda, unless they have an address or PyPI as their source."""

    def requirement(
        self,
        text: object,
        path: KeyPath,
        *,
        extra: str = "",
        group: str = "",
        use: Use = Use.DEPENDENCIES,
        written: str = "",
    ) -> None:
        """Add a requirement, by its name on PyPI and PEP 440's versions."""
        shown = written or str(text)
        try:
            found = Pep508(str(text))
        except (InvalidRequirement, RecursionError):
            self.add(path, shown, LineVerdict(Outcome.NOT_UNDERSTOOD, "it is not a requirement"))
            return
        if found.url or found.name in self.indexes.get(_PYPI, ()):
            super().requirement(text, path, extra=extra, group=group, use=use, written=written)
            return
        marker = str(found.marker or "")
        here = tuple(each for each in self.platforms if self.holds_on(marker, each))
        if not here:
            self.note(path, shown, f"not for {', '.join(self.platforms)}")
            return
        specifiers = sorted(map(str, found.specifier), reverse=True)
        spec = f"{_conda_name(found.name)} {','.join(specifiers)}".strip()
        platforms = here if here != self.platforms else ()
        add_requirement(self.imported, self.file.at(*path), spec, platforms, shown)


def read_settings(project: Project) -> None:
    """Read [tool.conda-lock], apart from its dependencies."""
    imported, at = project.imported, project.file.at
    for key, value in project.file.table(*_TOOL).items():
        path: KeyPath = (*_TOOL, key)
        for number, text in enumerate(map(str, items_of(value))):
            if key == "channels":
                add_channel(imported, at(*path, number), text)
            elif key == "platforms":
                add_platform(imported, at(*path, number), text)
            elif key == "pip-repositories":
                project.add((*path, number), text, add_index(text, at(*path, number), imported))
        if key not in ("channels", "platforms", "pip-repositories", "dependencies"):
            verdict = LineVerdict(Outcome.NOT_UNDERSTOOD, "it is not a setting of conda-lock that is read")
            project.add(path, f"{key} = {written_value(value)}", verdict)


def read_dependencies(project: Project) -> None:
    """Read [tool.conda-lock.dependencies]."""
    for name, value in project.file.table(*_TOOL, "dependencies").items():
        _dependency(project, name, value, (*_TOOL, "dependencies", name))


def _dependency(project: Project, name: str, value: Any, path: KeyPath) -> None:
    """A line of [tool.conda-lock.dependencies], with conda's names and versions."""
    written = f"{name} = {written_value(value)}"
    table = value if isinstance(value, Mapping) else {"version": str(value)}
    if text_of(table, "source") == _PYPI:
        project.indexes.setdefault(_PYPI, []).append(name)
        project.requirement(requirement_of(name, table), path, written=written)
        return
    channel, version = text_of(table, "channel"), text_of(table, "version")
    spec = with_channel(channel, name)
    if version not in ("", "*"):
        spec += f" {version}"
    add_requirement(project.imported, project.file.at(*path), spec, text=written)


def _conda_name(name: str) -> str:
    """The name of a package on conda-forge: `pytorch` of torch; names that are conda's already stay."""
    known = conda_names().channels["conda-forge"]
    if name.lower() in known:
        return name.lower()
    found = [conda for conda, pypi in known.items() if pypi == (normalised(name),)]
    return min(found, key=len, default=name.lower())
