"""Requirements added to a spec's text and removed from it, preferred versions removed; all else stays as it is."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomlkit
from tomlkit.exceptions import TOMLKitError

from envspec import documents
from envspec.errors import UsageError
from envspec.names import normalised
from envspec.spec.conda import name_of, read_match_spec
from envspec.spec.document import DEPENDENCIES_FROM, root_of
from envspec.spec.errors import BadValue
from envspec.spec.positions import set_value
from envspec.spec.requirements import read_constraint, read_preference, read_requirement


class RequirementList(Enum):
    """A list of a spec: its table and key."""

    DEPENDENCIES = ("pip", "dependencies")
    CONSTRAINTS = ("pip", "constraints")
    CONDA = ("conda", "dependencies")

    def package(self, text: str) -> str:
        """The normalised name of what an item requires. Raises BadValue: it is no such item."""
        if self is RequirementList.CONDA:
            return normalised(name_of(read_match_spec(text)))
        if self is RequirementList.CONSTRAINTS:
            return read_constraint(text).name
        return read_requirement(text).name


class Listed(NamedTuple):
    """A list of requirements in a file. path: its tables and its key."""

    kind: RequirementList
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{'.'.join(self.path[:-1])}] {self.path[-1]}"

    def items(self, text: str) -> tuple[str, ...]:
        """Its items in a file's text, which is TOML."""
        return tuple(documents.list_of(documents.parse_toml(text), *self.path))


def lists_of(text: str, path: Path, kind: RequirementList) -> list[Listed]:
    """The lists of a kind in a spec's file, first the one that new requirements are added to.

    In a pyproject.toml whose spec has the project's dependencies, these: they are declared once, for everybody.
    """
    root = root_of(path)
    own = Listed(kind, (*root, *kind.value))
    sources = documents.list_of(documents.parse_toml(text), *root, DEPENDENCIES_FROM)
    if root and kind is RequirementList.DEPENDENCIES and "project" in sources:
        return [Listed(kind, ("project", "dependencies")), own]
    return [own]


class Edit(NamedTuple):
    """One line of a list. old, new: empty if there was none, or is none any more."""

    name: str
    old: str
    new: str


def add(text: str, to: Listed, requirement: str) -> tuple[str, Edit]:
    """A spec's text with a requirement, in place of the one of the same package if there is one.

    A new one is sorted in if the list is sorted by names; else it is the last one. text: of a valid spec's file.

    Raises:
        BadValue: it is no requirement, or the package is required more than once. UsageError: the text can't be edited.
    """
    requirement = requirement.strip()
    name = to.kind.package(requirement)
    items = to.items(text)
    names = [to.kind.package(each) for each in items]
    if names.count(name) > 1:
        lines = ", ".join(f'"{item}"' for item, each in zip(items, names, strict=True) if each == name)
        raise BadValue(f"{name} is in {to} {names.count(name)} times: {lines}", "change these lines in the spec")
    if name in names:
        at = names.index(name)
        new = [*items[:at], requirement, *items[at + 1 :]]
        edited = _edited(text, to, new, lambda array: array.__setitem__(at, requirement))
        return edited, Edit(name, items[at], requirement)
    at = len(names)
    if len(names) > 1 and names == sorted(names):
        at = bisect(names, name)
    new = [*items[:at], requirement, *items[at:]]
    return _edited(text, to, new, lambda array: array.insert(at, requirement)), Edit(name, "", requirement)


def remove(text: str, of: Listed, name: str) -> tuple[str, list[Edit]]:
    """A spec's text without the requirements of a package, and these; none if the list has none. name: normalised.

    Raises:
        UsageError: the text can't be edited.
    """
    items = of.items(text)
    gone = [at for at, each in enumerate(items) if of.kind.package(each) == name]
    if not gone:
        return text, []

    def delete(array: Any) -> None:
        for at in reversed(gone):
            del array[at]

    kept = [each for at, each in enumerate(items) if at not in gone]
    return _edited(text, of, kept, delete), [Edit(name, items[at], "") for at in gone]


def _edited(text: str, which: Listed, items: Sequence[str], change: Callable[[Any], object]) -> str:
    """The text whose list has these items, and whose other values are the same."""
    *tables, key = which.path
    table = expected = documents.parse_toml(text)
    for each in tables:
        table = table.setdefault(each, {})
    is_new = key not in table
    table[key] = list(items)
    try:
        if is_new:
            written = ", ".join(tomlkit.string(each).as_string() for each in items)
            edited = set_value(text, which.path, f"[{written}]")
        else:
            document: Any = tomlkit.parse(text)
            change(documents.table_of(document, *tables)[key])
            edited = tomlkit.dumps(document)
        if documents.parse_toml(edited) == expected:
            return edited
    except (ValueError, LookupError, TOMLKitError):
        pass
    raise UsageError(f"{which}: its lines can't be edited in this spec's layout", hint="edit the spec by hand")


#: Table of preferred versions -> the normalised name of one.
_READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "pip": lambda text: read_preference(text).name,
    "conda": lambda text: normalised(name_of(text)),
}


def without_preferences(text: str, names: Collection[str] | None = None, root: Sequence[str] = ()) -> str:
    """The text of a valid spec without the versions that it prefers, or without those of some normalised names.

    root: the table of the document that is the spec. Comments and layout of everything else stay as they are.
    """
    document = tomlkit.parse(text)
    spec: Any = document
    is_changed = False
    for key in root:
        spec = spec[key]
    for table in (spec, *spec.get("variants", {}).values()):
        for section, read in _READERS.items():
            listed = table.get(section, {}).get("prefer")
            leaving = [at for at, each in enumerate(listed or ()) if names is None or read(str(each)) in names]
            is_changed |= bool(leaving)
            if leaving and len(leaving) == len(listed):
                del table[section]["prefer"]
                continue
            for at in reversed(leaving):
                del listed[at]
    return tomlkit.dumps(document) if is_changed else text
