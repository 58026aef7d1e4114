"""Requirements added to a spec and removed from it, as the text that is then locked: `envspec add`, `remove`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from envspec.conformance.text import some_of
from envspec.errors import StaleLock, UsageError
from envspec.models import SPEC, CondaPackage, Lock, Package
from envspec.names import NAME, normalised
from envspec.operations.lock_state import conda_in, packages_in
from envspec.spec import Spec, edit, parse_spec
from envspec.spec.document import DEPENDENCIES_FROM
from envspec.spec.edit import Edit, Listed, RequirementList, lists_of
from envspec.spec.errors import BadValue, nearest, quoted
from envspec.spec.load import read_text

#: The option of `add` and `remove` that names a list.
_OPTIONS = {
    RequirementList.CONSTRAINTS: " --constraint",
    RequirementList.CONDA: " --conda",
    RequirementList.DEPENDENCIES: "",
}


class EditedSpec(NamedTuple):
    """A spec with other requirements.

    text: the new one of the spec's file.
    edits: each with its list, in the order of the packages; none whose line is there already.
    """

    text: str
    edits: Sequence[tuple[Edit, Listed]]


def add(path: Path, packages: Sequence[str], kind: RequirementList, now: datetime) -> EditedSpec:
    """A spec with these requirements. Writes nothing.

    Raises:
        UsageError: one of them is no requirement, or the spec's layout can't be edited. SpecError: the spec was or
            would be invalid.
    """
    text = read_text(path)
    parse_spec(text, str(path), now, path.parent)
    edits: list[tuple[Edit, Listed]] = []
    for package in packages:
        try:
            name = kind.package(package)
            lists = lists_of(text, path, kind)
            there = [each for each in lists if name in map(kind.package, each.items(text))]
            listed = (there or lists)[0]
            text, edited = edit.add(text, listed, package)
        except BadValue as error:
            problem = error.found
            if package.strip() not in problem:
                problem = f"{quoted(package)}: {problem}"
            raise UsageError(problem, hint=error.hint_in(path.parent)) from None
        if any(each.name == name for each, _ in edits):
            raise UsageError(f"{name} is named twice", hint="name it once, with all that is required of it")
        edits.append((edited, listed))
    parse_spec(text, str(path), now, path.parent)
    return EditedSpec(text, [(made, listed) for made, listed in edits if made.old != made.new])


def remove(path: Path, names: Sequence[str], kind: RequirementList, lock: Lock | None, now: datetime) -> EditedSpec:
    """A spec without the requirements of these packages. Writes nothing. lock: of the spec, if there is one.

    Raises:
        UsageError: one of them is not in the list. SpecError: the spec was or would be invalid.
    """
    text = read_text(path)
    spec = parse_spec(text, str(path), now, path.parent)
    edits: list[tuple[Edit, Listed]] = []
    for name in names:
        if not NAME.fits(name):
            raise UsageError(f"{quoted(name)} is not the name of a package", hint="name packages without versions")
        before = len(edits)
        for listed in lists_of(text, path, kind):
            text, gone = edit.remove(text, listed, normalised(name))
            for each in gone:
                edits.append((each, listed))
        if len(edits) == before:
            raise _not_listed(normalised(name), lists_of(text, path, kind)[0], path, text, spec, lock)
    parse_spec(text, str(path), now, path.parent)
    return EditedSpec(text, edits)


def _not_listed(name: str, of: Listed, path: Path, text: str, spec: Spec, lock: Lock | None) -> UsageError:
    """Why a package can't be removed, and where it is instead."""
    problem = f"{name} is not in {of}"
    for kind in RequirementList:
        for other in lists_of(text, path, kind):
            if name in map(kind.package, other.items(text)):
                return UsageError(f"{problem}, but in {other}", hint=f"run `envspec remove{_OPTIONS[kind]} {name}`")
    if of.kind is RequirementList.DEPENDENCIES and any(each.name == name for each in spec.pip.dependencies):
        return UsageError(
            f"{problem}: it is a line of what {DEPENDENCIES_FROM} names",
            hint="remove it there: it may be needed without envspec, too",
        )
    by = _dependents(name, lock) if lock else []
    if by:
        verb = "requires" if len(by) == 1 else "require"
        return UsageError(
            f"{problem}: it is locked because {some_of(by, 5)} {verb} it",
            hint="remove what requires it",
        )
    near = nearest(name, map(of.kind.package, of.items(text)))
    if near:
        return UsageError(problem, hint=f"did you mean {near}?")
    return UsageError(problem, hint="look at the list in the spec")


def _dependents(name: str, lock: Lock) -> list[str]:
    """The names of the packages that require a package, sorted."""
    found: set[str] = set()
    packages: list[CondaPackage | Package] = [*conda_in(lock.resolutions), *packages_in(lock.resolutions)]
    for package in packages:
        if normalised(package.name) == name:
            for dependent in package.required_by:
                found.add(dependent.name)
    return sorted(found - {SPEC})


def lock_of(directory: Path) -> Lock | None:
    """The lock in a folder; None if there is none that can be read."""
    from envspec.lockfile.folder import read_lock

    with suppress(StaleLock, UsageError):
        return read_lock(directory)
    return None
