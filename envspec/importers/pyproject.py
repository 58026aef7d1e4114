"""pyproject.toml: a project's requirements (PEP 621, PEP 735), and what uv, Poetry, PDM and setuptools add to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508

from envspec.adopt import is_foreign
from envspec.adopt.rows import Selection
from envspec.documents import list_of, table_of
from envspec.importers import ADOPTED, pixi
from envspec.importers.conda import include_conda_lock
from envspec.importers.conda_lock_project import CondaProject, read_dependencies, read_settings
from envspec.importers.pip import LineVerdict
from envspec.importers.poetry import read_pdm, read_poetry
from envspec.importers.project import MOST_MEMBERS, Project, not_included, workspace_of, written_value
from envspec.importers.python_locks import name_lock, read_pdm_lock
from envspec.importers.toml_lines import TomlFile, items_of, text_of
from envspec.importers.types import Import, Outcome, Source
from envspec.importers.uv import (
    BUILT,
    NO_EFFECT,
    check_conflicts,
    has_no_effect,
    read_environments,
    read_sources,
    read_uv,
)
from envspec.names import normalised
from envspec.spec.document import DEPENDENCIES_FROM, PYPROJECT
from envspec.spec.errors import KeyPath
from envspec.spec.pip_lines import project_name
from envspec.spec.pyproject import read_whole
from envspec.structs import replace

_PDM: Final = "pdm.lock"
#: Extras of the project that name each other.
_DEEPEST: Final = 50


def read_pyproject(path: Path, imported: Import, *, extras: Collection[str] = (), groups: Collection[str] = ()) -> None:
    """Read a project's requirements, and the lock beside it.

    extras, groups: which of the project's are taken beside its own requirements and those that the user names; Poetry's
    groups and PDM's, and the dev-dependencies of uv (`dev`) are groups too. Neither of them is taken by default.
    """
    extras, groups = (*extras, *imported.extras), (*groups, *imported.groups)
    taken = frozenset(map(normalised, extras)), frozenset(map(normalised, groups))
    project = Project(TomlFile(path, imported), imported, *taken, workspace=workspace_of(path, imported))
    own = [_own_extras(project, text) for text in list_of(project.file.data, "project", "dependencies")]
    project.extras = _with_named(project, project.extras.union(*own))
    locks = _locks_in(path.parent)
    if project.file.table("tool", "conda-lock") and not locks:
        read_conda_project(path, imported)
        include_conda_lock(path, imported)
        return
    check_conflicts(project)
    read_environments(project.workspace or project)
    if project.workspace is not None:
        locks += _locks_in(project.workspace.file.path.parent)
    if locks and locks[0].name in ADOPTED:
        _read_locked(project, locks[0], Selection(tuple(sorted(taken[0])), tuple(sorted(taken[1]))))
    else:
        for read in (_read_metadata, _read_groups, _read_members, read_uv, read_poetry, read_pdm, _read_others):
            read(project)
        if project.workspace is not None:
            read_uv(project.workspace)
            imported.done.add(project.workspace.file.path.resolve())
        for lock in locks[:1]:
            read_pdm_lock(lock, imported, extras=project.extras, groups=project.groups)
    imported.done.update(map(Path.resolve, locks))
    for lock in locks[1:]:
        name = imported.shown(lock)
        note = f"not read: the versions are those of {imported.shown(locks[0])}"
        imported.add(Source(name), name, Outcome.TRANSLATED, note)


def _locks_in(folder: Path) -> list[Path]:
    locks = [folder / name for name in (*ADOPTED, _PDM)]
    return [each for each in locks if each.is_file() and (is_foreign(each) or each.name == _PDM)]


def _read_locked(project: Project, lock: Path, selection: Selection) -> None:
    """Read a project whose lock the spec names: it has what all lines of the project require, and from where."""
    imported, file = project.imported, project.file
    _read_name(project)
    if project.workspace is not None and lock.parent != file.path.parent:
        selection = replace(selection, members=(project.name,))
    name_lock(lock, selection, imported)
    for key in BUILT:
        if names := list_of(file.data, "tool", "uv", key):
            imported.draft.build_packages += map(str, names)
            project.note(("tool", "uv", key), f"{key} = {written_value(names)}", "[pip.build] packages")
    has_it = f"{imported.shown(lock)} has it"
    for kind, name, path in _requirement_tables(file):
        taken = {"extra": project.extras, "group": project.groups, "": {name}}
        reason = has_it if normalised(name) in taken[kind] else not_included(kind, name)
        _note_lines(project, path, reason)
    for path in _DECISIVE:
        if path[-1] in file.table(*path[:-1]):
            project.note(path, f"[{'.'.join(path[:-1])}] {path[-1]}", has_it)
    for key in file.table("tool", "uv"):
        if key not in _WITH_ENTRIES:
            project.note(("tool", "uv", key), f"[tool.uv] {key}", NO_EFFECT.reason if has_no_effect(key) else has_it)


def _note_lines(project: Project, path: tuple[str, ...], reason: str) -> None:
    """Entries for a list of requirements, or for a table of them."""
    listed = table_of(project.file.data, *path[:-1]).get(path[-1])
    for key, value in table_of(listed).items():
        project.note((*path, key), f"{key} = {written_value(value)}", reason)
    for at, item in enumerate(items_of(listed)):
        project.note((*path, at), written_value(item), reason)


def _read_name(project: Project) -> None:
    draft = project.imported.draft
    if "build-system" in project.file.data:
        project.note(("build-system",), "[build-system]", "not part of the environment: builds of the project read it")
    for tables in (("project",), ("tool", "poetry")):
        if name := text_of(project.file.table(*tables), "name"):
            draft.name = draft.name or name
            project.note((*tables, "name"), f"name = {name}", "the environment's name")


#: Beside requirements, what decides which packages a lock has.
_DECISIVE: Final = (
    ("project", "requires-python"),
    *(("tool", "poetry", "source"), ("tool", "pdm", "source"), ("tool", "pdm", "resolution")),
)
#: Of [tool.uv], with entries of their own.
_WITH_ENTRIES: Final = frozenset({"dev-dependencies", "environments", *BUILT})


def _requirement_tables(file: TomlFile) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Lists and tables of requirements: `extra`, `group` or nothing, with its name, and where the table is."""
    yield "", "", ("project", "dependencies")
    for extra in file.table("project", "optional-dependencies"):
        yield "extra", extra, ("project", "optional-dependencies", extra)
    for group in file.table("dependency-groups"):
        yield "group", group, ("dependency-groups", group)
    yield "group", "dev", ("tool", "uv", "dev-dependencies")
    yield "", "", ("tool", "poetry", "dependencies")
    yield "group", "dev", ("tool", "poetry", "dev-dependencies")
    for extra in file.table("tool", "poetry", "extras"):
        yield "extra", extra, ("tool", "poetry", "extras", extra)
    for group in file.table("tool", "poetry", "group"):
        yield "group", group, ("tool", "poetry", "group", group, "dependencies")
    for group in file.table("tool", "pdm", "dev-dependencies"):
        yield "group", group, ("tool", "pdm", "dev-dependencies", group)


def read_conda_project(path: Path, imported: Import) -> None:
    """Read a project whose lock is a conda-lock.yml."""
    # conda-lock installs the category `dev` too.
    extras, groups = map(normalised, imported.extras), map(normalised, (*imported.groups, "dev"))
    project = CondaProject(TomlFile(path, imported), imported, frozenset(extras), frozenset(groups))
    for read in (read_settings, _read_metadata, read_poetry, read_dependencies):
        read(project)


def _read_members(project: Project) -> None:
    """What the sources of local projects add to their wheels, which state their requirements; and the members of a
    workspace without a project of its own, which uv installs all.
    """
    uv: KeyPath = ("tool", "uv", "workspace")
    if "project" not in project.file.data:
        for folder in project.members():
            name = project_name(folder)
            project.required_by_path(f"{name} @ ./{folder.relative_to(project.file.path.parent).as_posix()}", uv)
    members = dict[Path, Project]()
    waiting = project.locals
    while waiting and len(members) < MOST_MEMBERS:
        folder, extras = waiting.pop(0)
        if project.imported.leads_out(folder / PYPROJECT):
            continue
        is_new = folder.resolve() not in members
        if is_new:
            members[folder.resolve()] = _member(project, folder)
        member = members[folder.resolve()]
        more = _with_named(member, extras) - member.extras
        member.extras |= more
        if is_new:
            for at, text in enumerate(list_of(member.file.data, "project", "dependencies")):
                member.required_by_wheel(text, ("project", "dependencies", at))
        _read_more(member, more)
        waiting += member.locals
        member.locals.clear()
    project.required = list(members.values())
    for member in project.required:
        check_conflicts(member)
        read_sources(member)


def _member(project: Project, folder: Path) -> Project:
    """A local project that another one requires."""
    root = project.workspace or project
    is_member = folder.resolve() in [each.resolve() for each in root.members()]
    file = TomlFile(folder / PYPROJECT, project.imported)
    workspace = root if is_member else None
    return Project(file, project.imported, frozenset(), frozenset(), workspace, is_required=True)


def _read_more(member: Project, extras: frozenset[str]) -> None:
    """Read what extras of a local project require."""
    for extra, listed in member.file.table("project", "optional-dependencies").items():
        if normalised(extra) in extras:
            for at, text in enumerate(items_of(listed)):
                path = ("project", "optional-dependencies", extra, at)
                member.required_by_wheel(text, path, extra=normalised(extra))


def _read_metadata(project: Project) -> None:
    table = project.file.table("project")
    _read_name(project)
    if python := text_of(table, "requires-python"):
        project.python(python, ("project", "requires-python"), "requires-python")
    for at, text in enumerate(list_of(table, "dependencies")):
        if _own_extras(project, text):
            project.note(("project", "dependencies", at), text, "the lines of these extras")
        else:
            project.requirement(text, ("project", "dependencies", at))
    _read_extras(project)
    _read_dynamic(project)


def _read_extras(project: Project) -> None:
    optional = project.file.table("project", "optional-dependencies")
    for extra, listed in optional.items():
        for at, text in enumerate(items_of(listed)):
            path = ("project", "optional-dependencies", extra, at)
            if normalised(extra) not in project.extras:
                project.note(path, text, not_included("extra", extra))
            elif not _own_extras(project, text):
                project.requirement(text, path, extra=normalised(extra))
            else:
                project.note(path, text, "the lines of these extras")
    known = set(map(normalised, optional))
    for keys in (("tool", "poetry", "extras"), ("tool", "setuptools", "dynamic", "optional-dependencies")):
        known.update(map(normalised, project.file.table(*keys)))
    for extra in sorted(project.extras - known):
        project.add(("project",), f"extra {extra}", LineVerdict(Outcome.REFUSED, f"the project has no extra {extra}"))


def _with_named(project: Project, extras: frozenset[str]) -> frozenset[str]:
    """Extras, and those that they name: `all = ["project[gpu]"]`."""
    optional = {normalised(key): value for key, value in project.file.table("project", "optional-dependencies").items()}
    found = extras
    for _ in range(_DEEPEST):
        more = found
        for extra in found:
            for text in list_of(optional, extra):
                more |= _own_extras(project, text)
        if more == found:
            break
        found = more
    return found


def _own_extras(project: Project, text: object) -> frozenset[str]:
    """The extras of the project itself that a requirement names."""
    if not isinstance(text, str):
        return frozenset()
    try:
        requirement = Pep508(text)
    except (InvalidRequirement, RecursionError):
        return frozenset()
    if normalised(requirement.name) != project.name:
        return frozenset()
    return frozenset(map(normalised, requirement.extras))


def _read_dynamic(project: Project) -> None:
    """Requirements that the build computes: setuptools can read them from files."""
    read = project.file.table("tool", "setuptools", "dynamic")
    extras = table_of(read, "optional-dependencies")
    for at, key in enumerate(list_of(project.file.data, "project", "dynamic")):
        path: KeyPath = ("project", "dynamic", at)
        if (key == "dependencies" and key in read) or (key == "optional-dependencies" and extras):
            project.note(path, key, "read from the files that [tool.setuptools.dynamic] names")
        elif key in ("dependencies", "optional-dependencies", "requires-python"):
            reason = f'its build computes them: write "{project.name or "name"} @ ." in [pip] dependencies'
            project.add(path, key, LineVerdict(Outcome.REFUSED, reason))
    base: KeyPath = ("tool", "setuptools", "dynamic")
    _include_files(project, table_of(read, "dependencies"), (*base, "dependencies"))
    for extra, table in extras.items():
        path = (*base, "optional-dependencies", extra)
        if normalised(extra) in project.extras:
            _include_files(project, table, path)
        else:
            project.note(path, f"extra {extra}", not_included("extra", extra))


def _include_files(project: Project, table: Any, path: KeyPath) -> None:
    """Read the requirements files that a table of setuptools names: one, or a list."""
    named = table_of(table).get("file")
    names = items_of(named)
    if isinstance(named, str):
        names = [named]
    for name in names:
        project.imported.include(project.file.path.parent / str(name), project.file.at(*path), f"file = {name}")


def _read_groups(project: Project) -> None:
    groups = _known_groups(project)
    names = [f"group:{each}" for each in groups]
    found = read_whole({DEPENDENCIES_FROM: names}, project.file.path.with_name("spec.toml"))
    taken = {place.path for place in found.lines.values()}
    for place, problem in found.problems:
        if place.path in taken:
            continue
        path: KeyPath = ("dependency-groups",)
        if place.file:
            path, group = place.path, place.path[1]
        else:
            group = groups[int(place.path[-1])]
        project.add(path, f"group {group}", LineVerdict(Outcome.REFUSED, f"{problem}; {problem.hint}"))
    for group, listed in project.file.table("dependency-groups").items():
        for at, item in enumerate(items_of(listed)):
            path = ("dependency-groups", group, at)
            if path in taken:
                project.requirement(item, path, group=normalised(group))
            elif isinstance(item, Mapping) and normalised(group) in project.groups:
                project.note(path, written_value(item), "the lines of this group")
            else:
                project.note(path, written_value(item), not_included("group", group))


def _known_groups(project: Project) -> list[str]:
    """The groups to take from [dependency-groups]: the others are those of a tool."""
    file = project.file
    tools = set(map(normalised, file.table("tool", "poetry", "group")))
    tools.update(map(normalised, file.table("tool", "pdm", "dev-dependencies")))
    if list_of(file.data, "tool", "uv", "dev-dependencies") or file.table("tool", "poetry", "dev-dependencies"):
        tools.add("dev")
    tools.difference_update(map(normalised, file.table("dependency-groups")))
    return sorted(project.groups - tools)


def _read_others(project: Project) -> None:
    for name in project.file.table("tool", "hatch", "envs"):
        reason = "an environment of Hatch: not included; copy what is needed into [pip] dependencies"
        project.note(("tool", "hatch", "envs", name), f"[tool.hatch.envs.{name}]", reason)
    if project.file.table("tool", "pixi"):
        pixi.read_tables(project.file, project.imported, "tool", "pixi")
