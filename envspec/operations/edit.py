"""Requirements added to a spec and removed from it, as the text that is then locked: `envspec add`, `remove`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from envspec.errors import StaleLock, UsageError
from envspec.models import SPEC, Lock
from envspec.names import NAME, normalised
from envspec.spec import Spec, edit, parse_spec
from envspec.spec.document import root_of
from envspec.spec.edit import Edit, RequirementList
from envspec.spec.errors import BadValue, nearest, quoted
from envspec.spec.load import read_text

#: The option of `add` and `remove` that names a list.
_OPTIONS = {
    RequirementList.CONSTRAINTS: " --constraint",
    RequirementList.CONDA: " --conda",
    RequirementList.DEPENDENCIES: "",
}


class EditedSpec(NamedTuple):
    """text: the spec's new one. edits: in the order of the packages; none whose line is there already."""

    text: str
    edits: Sequence[Edit]


def add(path: Path, packages: Sequence[str], to: RequirementList, now: datetime) -> EditedSpec:
    """A spec with these requirements. Writes nothing.

    Raises:
        UsageError: one of them is no requirement, or the spec's layout can't be edited. SpecError: the spec was or
            would be invalid.
    """
    text = read_text(path)
    parse_spec(text, str(path), now, path.parent)
    edits: list[Edit] = []
    for package in packages:
        try:
            text, edited = edit.add(text, to, package, root_of(path))
        except BadValue as error:
            problem = error.found if package.strip() in error.found else f"{quoted(package)}: {error.found}"
            raise UsageError(problem, hint=error.hint_in(path.parent)) from None
        if any(each.name == edited.name for each in edits):
            raise UsageError(f"{edited.name} is named twice", hint="name it once, with all that is required of it")
        edits.append(edited)
    parse_spec(text, str(path), now, path.parent)
    return EditedSpec(text, [each for each in edits if each.old != each.new])


def remove(path: Path, names: Sequence[str], of: RequirementList, lock: Lock | None, now: datetime) -> EditedSpec:
    """A spec without the requirements of these packages. Writes nothing. lock: of the spec, if there is one.

    Raises:
        UsageError: one of them is not in the list. SpecError: the spec was or would be invalid.
    """
    text = read_text(path)
    spec = parse_spec(text, str(path), now, path.parent)
    edits: list[Edit] = []
    for name in names:
        if not NAME.fits(name):
            raise UsageError(f"{quoted(name)} is not the name of a package", hint="name packages without versions")
        text, gone = edit.remove(text, of, normalised(name), root_of(path))
        if not gone:
            raise _not_listed(normalised(name), of, (text, root_of(path)), spec, lock)
        edits += gone
    parse_spec(text, str(path), now, path.parent)
    return EditedSpec(text, edits)


def _not_listed(
    name: str, of: RequirementList, text: tuple[str, tuple[str, ...]], spec: Spec, lock: Lock | None
) -> UsageError:
    """Why a package can't be removed, and where it is instead. text: the file's, and the table that is the spec."""
    problem = f"{name} is not in {of}"
    for other in RequirementList:
        if any(other.package(each) == name for each in other.of(*text)):
            return UsageError(f"{problem}, but in {other}", hint=f"run `envspec remove{_OPTIONS[other]} {name}`")
    if of is RequirementList.DEPENDENCIES and any(each.name == name for each in spec.pip.dependencies):
        return UsageError(f"{problem}: `dependencies-from` takes it from pyproject.toml", hint="remove it there")
    by = sorted(set(_dependents(name, lock)) - {SPEC}) if lock else []
    if by:
        shown = ", ".join(by[:5]) + (f" and {len(by) - 5} more" if len(by) > 5 else "")
        return UsageError(
            f"{problem}: it is locked because {shown} require{'s' * (len(by) == 1)} it",
            hint="remove what requires it",
        )
    near = nearest(name, map(of.package, of.of(*text)))
    return UsageError(problem, hint=f"did you mean {near}?" if near else "look at the list in the spec")


def _dependents(name: str, lock: Lock) -> Iterator[str]:
    for part in lock.resolutions:
        found = [(each.name, each.required_by) for each in part.packages]
        found += [(each.name, each.required_by) for each in part.conda]
        yield from (by.name for each, required_by in found if normalised(each) == name for by in required_by)


def lock_of(directory: Path) -> Lock | None:
    """The lock in a folder; None if there is none that can be read."""
    from envspec.lockfile.folder import read_lock

    with suppress(StaleLock, UsageError):
        return read_lock(directory)
    return None
