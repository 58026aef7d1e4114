"""[tool.poetry] and [tool.pdm] of a pyproject.toml; Poetry's requirements as PEP 508: carets, tildes, tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.documents import list_of, table_of
from envspec.importers.conda_specs import with_markers
from envspec.importers.extra_markers import without_extras
from envspec.importers.pip import Verdict
from envspec.importers.project import Project, not_included, written_value
from envspec.importers.toml_lines import text_of
from envspec.importers.types import Outcome
from envspec.names import normalised
from envspec.spec.errors import BadValue, KeyPath, quoted
from envspec.spec.pyproject import git_address

_TERM: Final = re.compile(r"(\^|~(?!=)|~=|[<>!=]=?=?)?\s*v?([0-9*][^\s,|]*)")
#: Of a requirement's table; `develop`, `optional` and `source` decide other things than its text.
_KEYS: Final = frozenset(
    {"version", "extras", "markers", "python", "platform", "git", "branch", "tag", "rev", "subdirectory", "path", "url"}
    | {"file", "develop", "optional", "source", "allow-prereleases"}
)


def read_poetry(project: Project) -> None:
    """Read [tool.poetry], after [project]."""
    tool = project.file.table("tool", "poetry")
    if name := text_of(tool, "name"):
        project.imported.draft.name = project.imported.draft.name or name
        project.note(("tool", "poetry", "name"), f"name = {name}", "the environment's name")
    tables: list[tuple[KeyPath, str]] = [(("tool", "poetry", "dependencies"), "")]
    tables += [(("tool", "poetry", "group", group, "dependencies"), group) for group in table_of(tool, "group")]
    tables.append((("tool", "poetry", "dev-dependencies"), "dev"))
    for path, group in tables:
        for name, value in project.file.table(*map(str, path)).items():
            _item(project, name, value, (*path, name), group)
    for extra, names in table_of(tool, "extras").items():
        reason = "included" if normalised(extra) in project.extras else not_included("extra", extra)
        project.note(("tool", "poetry", "extras", extra), f"{extra} = {written_value(names)}", reason)
    for at, source in enumerate(list_of(tool, "source")):
        _index(project, source, ("tool", "poetry", "source", at), by_name=True)


def _item(project: Project, name: str, value: Any, path: KeyPath, group: str) -> None:
    if name == "python":
        try:
            project.python(specifier_of(str(value)), path, f'python = "{value}"')
        except BadValue as error:
            project.add(path, f"python = {written_value(value)}", Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))
        return
    written = f"{name} = {written_value(value)}"
    tool = project.file.table("tool", "poetry")
    items = value if isinstance(value, list) else [value]
    optional = any(table_of(item).get("optional") is True for item in items)
    of = [extra for extra, names in table_of(tool, "extras").items() if isinstance(names, list) and name in names]
    if group and normalised(group) not in project.groups:
        project.note(path, written, not_included("group", group))
    elif optional and not project.extras.intersection(map(normalised, of)):
        project.note(path, written, not_included("extra", of[0]) if of else "optional, and of no extra: not included")
    elif not group and _is_of_project(project, name):
        project.note(path, written, "the requirement is in [project] dependencies")
    else:
        for at, item in enumerate(items):
            place = (*path, at) if isinstance(value, list) else path
            marker = without_extras(text_of(item, "markers"), project.extras)
            if marker is None:
                project.note(place, f"{name} = {written_value(item)}", "its marker is for other extras: not included")
                continue
            try:
                text = requirement_of(name, {**item, "markers": marker} if isinstance(item, Mapping) else item)
            except BadValue as error:
                project.add(place, written, Verdict(Outcome.REFUSED, f"{error}; {error.hint}"))
                continue
            if source := text_of(item, "source"):
                project.indexes.setdefault(source, []).append(name)
            project.requirement(text, place, written=f"{name} = {written_value(item)}")


def _is_of_project(project: Project, name: str) -> bool:
    table = project.file.table("project")
    optional = table_of(table, "optional-dependencies")
    lines = [*list_of(table, "dependencies"), *(line for extra in optional for line in list_of(optional, extra))]
    return any(normalised(name) == normalised(re.split(r"[^\w.-]", str(line), maxsplit=1)[0]) for line in lines)


def read_pdm(project: Project) -> None:
    """Read [tool.pdm], after [project]."""
    tool = project.file.table("tool", "pdm")
    for group, listed in table_of(tool, "dev-dependencies").items():
        for at, text in enumerate(listed if isinstance(listed, list) else ()):
            path = ("tool", "pdm", "dev-dependencies", group, at)
            if normalised(group) in project.groups:
                project.requirement(text, path, group=normalised(group))
            else:
                project.note(path, text, not_included("group", group))
    for name, version in table_of(tool, "resolution", "overrides").items():
        operator = "" if re.match(r"[=<>!~]", str(version)) else " @ " if "://" in str(version) else "=="
        text = f"{name}{operator}{version}"
        project.override(text, ("tool", "pdm", "resolution", "overrides", name), "resolution.overrides of PDM")
    for at, source in enumerate(list_of(tool, "source")):
        _index(project, source, ("tool", "pdm", "source", at), by_name=False)


def _index(project: Project, source: Any, path: KeyPath, *, by_name: bool) -> None:
    """An index of Poetry or PDM. by_name: requirements name it."""
    name, url = text_of(source, "name"), text_of(source, "url")
    packages = [*project.indexes.get(name, [])] if by_name else []
    packages += [each for each in list_of(table_of(source), "include_packages") if isinstance(each, str)]
    priority = text_of(source, "priority")
    if not url:
        verdict = Verdict(Outcome.TRANSLATED, "it is the default index")
    else:
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
    extras = [each for each in list_of(value, "extras") if isinstance(each, str)]
    named = f"{name}[{','.join(extras)}]" if extras else name
    path = text_of(value, "path") or text_of(value, "file")
    if text_of(value, "git"):
        text = f"{named} @ {git_address(value)}"
    elif path:
        text = f"{named} @ {path if path.startswith(('.', '/')) else f'./{path}'}"
    elif text_of(value, "url"):
        text = f"{named} @ {text_of(value, 'url')}"
    else:
        text = f"{named}{specifier_of(text_of(value, 'version') or '*')}"
    markers = [text_of(value, "markers")]
    if python := text_of(value, "python"):
        markers += [f'python_full_version {each.operator} "{each.version}"' for each in _set(specifier_of(python))]
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
    if not _TERM.sub("", text).strip(" ,") == "":
        raise BadValue(f"{quoted(text)} is not a constraint of Poetry's", 'write "^1.2" or ">=1.2,<2"')
    parts = [part for operator, version in _TERM.findall(text) if (part := _part(operator, version))]
    return str(",".join(str(each) for part in parts for each in part.split(",") if _set(each)))


def _part(operator: str, version: str) -> str:
    if version == "*":
        return ""
    if operator in ("^", "~"):
        return f">={version},<{_after(operator, version)}"
    return f"{'==' if operator in ('', '=') else operator}{version}"


def _after(operator: str, version: str) -> str:
    """The first version that a caret or a tilde does not allow."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(each) for each in release[0].split(".")] if release else [0]
    if operator == "~":
        numbers = numbers[:2]
    else:
        first = next((at for at, number in enumerate(numbers) if number), len(numbers) - 1)
        numbers = numbers[: first + 1]
    return ".".join(map(str, [*numbers[:-1], numbers[-1] + 1]))


def _set(text: str) -> SpecifierSet:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise BadValue(f"{quoted(text)} is not a specifier", 'write ">=1.2,<2"') from None
