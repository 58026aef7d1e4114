"""Changes of a spec that were tried: what to loosen, releases with wheels, constraints for newer releases."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from packaging.version import Version

from envspec.base_image.cuda import read_pins
from envspec.context import Context, Step
from envspec.facts import Facts
from envspec.models import Resolution
from envspec.operations.lock_state import is_to_build, packages_in, pypi_names_of
from envspec.resolve.pypi.errors import UnbuiltSdist
from envspec.resolve.pypi.index.selection import Sdists
from envspec.resolve.pypi.no_solution import bounds_in, words_of
from envspec.resolve.pypi.types import Bound, TargetRequest
from envspec.spec import Requirement, Spec
from envspec.spec.errors import quoted
from envspec.spec.requirements import read_constraint, read_requirement
from envspec.spec.sections import Override
from envspec.structs import replace

#: How many requirements are loosened to find a way out of a conflict.
_TRIES: Final = 4
_PIN: Final = re.compile(r"==[\d.]+")


class Tried(Protocol):
    """What the spec with another [pip] resolves to; empty without a solution, or if it takes too long."""

    def __call__(
        self, update: Mapping[str, object], sdists: Sdists = Sdists.WITHOUT_WHEEL
    ) -> tuple[Resolution, ...]: ...


def ways_to_solve(message: str, spec: Spec, tried: Tried, context: Context) -> str:
    """Changes of a spec without a solution that give one, as a hint; empty if none is found. message: of the error."""
    ways = [find_overrides(message, spec, tried)]
    if found := list(find_loosened(message, spec, tried, context)):
        ways.append(f"loosen one of these, and the rest has a solution: {'; '.join(found)}")
    return "\n  or ".join(filter(None, ways))


def find_loosened(message: str, spec: Spec, tried: Tried, context: Context) -> Iterator[str]:
    """The spec's requirements without whose bounds there is a solution, with the version that is chosen then.

    message: of the error, which names them.
    """
    named = words_of(message)
    lines: dict[str, list[str]] = {}
    for each in (*spec.pip.dependencies, *spec.pip.constraints):
        if each.specifier and each.name in named:
            lines.setdefault(each.name, []).append(quoted(str(each)))
    for name in list(lines)[:_TRIES]:
        context.reporter.progress(Step("looking for requirements to loosen", of=name))
        update = {
            "dependencies": tuple(_unbounded(each, name) for each in spec.pip.dependencies),
            "constraints": tuple(each for each in spec.pip.constraints if each.name != name),
        }
        versions = dict.fromkeys(each.version for each in packages_in(tried(update)) if each.name == name)
        if not versions:
            continue
        chosen = f"{name} {' and '.join(versions)} is chosen"
        *others, last = dict.fromkeys(lines[name])
        if others:
            yield f"the lines {', '.join(others)} and {last} together (without them, {chosen})"
        else:
            yield f"{last} (without it, {chosen})"


def find_overrides(message: str, spec: Spec, tried: Tried) -> str:
    """The line of a spec by which its own pins replace those of torch, which are older; empty if there are none, or if
    that gives no solution.

    message: of the error. Libraries of another major version do not replace each other.
    """
    if "torch" not in words_of(message):
        return ""
    bounds = bounds_in(message)
    added: list[Override] = []
    for each in spec.pip.dependencies:
        is_bounded = each.name.startswith("nvidia-") and each.name in bounds
        if is_bounded and _is_newer(str(each.specifier), bounds[each.name]):
            row = {"requirement": f"{each.name}{each.specifier}", "reason": "tried"}
            added.append(Override.model_validate(row))
    if not added or not tried({"overrides": (*spec.pip.overrides, *added)}):
        return ""
    items = [f'{{ requirement = {quoted(str(each.requirement))}, reason = "..." }}' for each in added]
    verb = "extend" if spec.pip.overrides else "add to"
    return f"to replace what torch requires, {verb} [pip]: overrides = [{', '.join(items)}]"


def _is_newer(pin: str, bounds: Iterable[str]) -> bool:
    """Whether a pin is newer than one of the other pins, of the same major version. pin, bounds: specifiers."""
    if not _PIN.fullmatch(pin):
        return False
    own = Version(pin.removeprefix("=="))
    for bound in filter(_PIN.fullmatch, bounds):
        other = Version(bound.removeprefix("=="))
        if other < own and other.major == own.major:
            return True
    return False


def with_wheels(sdists: Sequence[UnbuiltSdist], spec: Spec, tried: Tried, built: Collection[str]) -> str:
    """The lines of a spec that select releases with wheels instead of sdists; empty if they do not solve it.

    built: names of sdists that were built.
    """
    pip, bounds, allowed = spec.pip, dict[str, str](), set(spec.pip.build.packages)
    pinned = {each.name for each in pip.dependencies if str(each.specifier).startswith("==")}
    for each in sdists:
        # The nearest older one goes before the nearest newer one; those with labels are for another torch.
        nearest = next((version for version in each.wheels if "+" not in version), "")
        if nearest and each.name not in pinned:
            operator = "<=" if Version(nearest) < Version(each.version) else ">="
            bounds[each.name] = f"{each.name}{operator}{nearest}"
        else:
            allowed.add(each.name)
    if not bounds or not _usable(_constrained(bounds.values(), spec, tried), {*allowed, *built}):
        return ""
    lines = [_constraints_line(bounds.values(), spec)]
    if allowed:
        lines.append(f"build.packages = [{', '.join(map(quoted, sorted(allowed)))}]")
    return "\n    ".join(["select other releases, which have wheels, in [pip]:", *lines])


def newer_releases(found: Sequence[Resolution], spec: Spec, tried: Tried, built: Collection[str]) -> str:
    """The constraints with which torch, and what requires it, go back no years, and the versions that they give; empty
    if there are none. Other packages are not worth the time.

    Newer releases of these packages are required. If that gives sdists that cannot be used, releases with wheels are
    looked for, and what the spec names is bounded to them. built: as in `with_wheels`.
    """
    floors: dict[str, Version] = {}
    beside_torch = _beside_torch(found)
    for part in found:
        for each in part.held_back:
            if each.since and each.name in beside_torch:
                since = Version(each.since)
                floors[each.name] = min(floors.get(each.name, since), since)
    if not floors:
        return ""
    allowed = {*spec.pip.build.packages, *built}
    bounds = [f"{name}>={since}" for name, since in sorted(floors.items())]
    parts = _constrained(bounds, spec, tried)
    if parts and not _usable(parts, allowed):
        parts = _constrained(bounds, spec, tried, Sdists.NONE)
        if parts:
            bounds += _ceilings(found, parts, spec)
            parts = _constrained(bounds, spec, tried)
    if not _usable(parts, allowed) or not _held_back(parts) <= _held_back(found) - floors.keys():
        return ""
    names = [*floors, *sorted(older_names(found, parts, spec))]
    before, after = _versions(found, names), _versions(parts, names)
    texts = [f"{name} {after[name]} instead of {before[name]}" for name in names if name in after]
    return f"for {', '.join(texts)}, add to [pip]: {_constraints_line(bounds, spec)}"


def _held_back(parts: Sequence[Resolution]) -> set[str]:
    names: set[str] = set()
    for part in parts:
        for each in part.held_back:
            names.add(each.name)
    return names


def _beside_torch(found: Sequence[Resolution]) -> set[str]:
    """torch, and the packages that require it."""
    names = {"torch"}
    for package in packages_in(found):
        if package.name == "torch":
            for dependent in package.required_by:
                names.add(dependent.name)
    return names


def with_cuda_majors(request: TargetRequest, found: Resolution, facts: Facts) -> TargetRequest:
    """The request with bounds on packages whose major version is CUDA's, if a solution has another CUDA than theirs."""
    pins = read_pins(found, facts)
    cuda = pins.torch.cuda if pins.torch else None
    if cuda is None and pins.cudas:
        cuda = pins.cudas[0].cuda
    if cuda is None:
        return request
    names = {row.package for row in facts.cuda_majors}
    bounds: list[Bound] = []
    for each in found.packages:
        if each.name in names and Version(each.version).major != cuda.major:
            bounds.append(Bound(f"{each.name}=={cuda.major}.*"))
    if not bounds:
        return request
    return replace(request, request=request.request.with_bounds(bounds))


def _constrained(
    bounds: Collection[str], spec: Spec, tried: Tried, sdists: Sdists = Sdists.WITHOUT_WHEEL
) -> tuple[Resolution, ...]:
    return tried({"constraints": tuple(map(read_constraint, _with_bounds(bounds, spec)))}, sdists)


def _with_bounds(bounds: Collection[str], spec: Spec) -> list[str]:
    return sorted({*map(str, spec.pip.constraints), *bounds})


def _constraints_line(bounds: Collection[str], spec: Spec) -> str:
    return f"constraints = [{', '.join(map(quoted, _with_bounds(bounds, spec)))}]"


def _usable(parts: Sequence[Resolution], allowed: Collection[str]) -> bool:
    """Whether there is a solution, and all of its sdists may be used."""
    opened = {each.name for each in packages_in(parts) if is_to_build(each)}
    return bool(parts) and opened <= set(allowed)


def _versions(parts: Sequence[Resolution], names: Collection[str]) -> dict[str, str]:
    """The oldest version of each name."""
    found: dict[str, str] = {}
    for each in packages_in(parts):
        if each.name in names:
            found[each.name] = min(found.get(each.name, each.version), each.version, key=Version)
    return found


def older_names(found: Sequence[Resolution], other: Sequence[Resolution], spec: Spec) -> set[str]:
    """What the spec names and the other solution has in an older version."""
    names = pypi_names_of(spec)
    before, after = _versions(found, names), _versions(other, names)
    older: set[str] = set()
    for name, version in after.items():
        if name in before and Version(version) < Version(before[name]):
            older.add(name)
    return older


def _ceilings(found: Sequence[Resolution], other: Sequence[Resolution], spec: Spec) -> list[str]:
    versions = _versions(other, older_names(found, other, spec))
    return [f"{name}<={Version(version).public}" for name, version in sorted(versions.items())]


def _unbounded(requirement: Requirement, name: str) -> Requirement:
    """The requirement of a package, for any version; another's as it is."""
    if requirement.name != name or not requirement.specifier:
        return requirement
    line = name
    if requirement.extras:
        line += f"[{','.join(requirement.extras)}]"
    if requirement.marker:
        line += f"; {requirement.marker}"
    return read_requirement(line)
