"""Why a resolver found no solution: what it cannot see in its index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from packaging.version import Version

from envspec.errors import EnvspecError
from envspec.models import Target
from envspec.names import normalised
from envspec.reasons import words
from envspec.resolve.pypi.extensions import no_fitting_wheel
from envspec.resolve.pypi.index.routing import OWN_VERSION, Rules
from envspec.resolve.pypi.index.selection import of_version, version_of
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import allows
from envspec.resolve.pypi.refused_lines import RENAME, refused_lines
from envspec.resolve.pypi.resolver import PassedOver, Unsolvable
from envspec.resolve.pypi.types import BoundKind, PypiRequest
from envspec.resolve.pypi.wheel_coverage import no_wheel_text
from envspec.resolve.types import (
    LOOSEN,
    CondaProvided,
    ProvidedPackage,
    RefusedLines,
)
from envspec.spec.dates import utc_text


async def no_solution_error(error: Unsolvable, request: PypiRequest, view: View) -> EnvspecError:
    """The error to raise for a resolver's "no solution": causes that the view knows come before the resolver's text."""
    target = request.target
    named = words_of(error.message)
    for name in sorted(named & view.shown):
        if (unfit := await no_fitting_wheel(name, request, view)) is not None:
            return unfit
    if refused := await refused_lines(request, view):
        return RefusedLines(refused)
    excluded = list(excluded_versions(error.message, view.rules.provided))
    bounds = bounds_in(error.message)
    absences: list[tuple[str, str]] = []
    for name in sorted((named & view.shown) - view.rules.provided.keys()):
        absences.append(await _absence(name, bounds.get(name, ()), target, view))
    reasons: list[str] = []
    hints: list[str] = []
    for cause, hint in (*excluded, *absences):
        if cause:
            reasons.append(cause)
        if hint:
            hints.append(hint)
    explanations = list(_explanations(error.message, named, request, view.rules))
    last, details = error.message.strip(), ""
    if len(last) > _SHORT_PROOF:
        last, details = _conclusion(last), last
    if explanations:
        last = last.rstrip(".")
    text = ". ".join([*reasons, last, *explanations])
    subject = f"no solution for Python {target.python.version} on {target.platform.value}"
    unsolvable = Unsolvable(f"{subject}: {text}", hint="; ".join(hints or [LOOSEN]), details=details)
    unsolvable.is_hint_general = not hints
    unsolvable.passed_over = _passed_over(target, view)
    return unsolvable


def _explanations(message: str, named: Set[str], request: PypiRequest, rules: Rules) -> Iterator[str]:
    """Why there are requirements in a resolver's message that neither the spec nor an index has.

    named: the packages in the message.
    """
    for name, corrections in rules.corrections.items():
        if name not in named:
            continue
        for correction in corrections:
            if any(line.partition(OWN_VERSION)[0] in message for line in correction.requires):
                yield correction.reason
    for bound in request.of_kind(BoundKind.CONSTRAINT):
        if bound.why and bound.line in message:
            yield f"{bound.line}: {words(bound.why)}"


def _passed_over(target: Target, view: View) -> tuple[PassedOver, ...]:
    """What a view showed by what it states; newest first."""
    found: dict[PassedOver, Version] = {}
    for name, filenames in view.stated.items():
        for filename in filenames:
            if (version := version_of(filename)) is not None:
                found[PassedOver(target, name, filename)] = version
    return tuple(sorted(found, key=lambda each: (found[each], each.name, each.filename), reverse=True))


def words_of(text: str) -> set[str]:
    """What may be names of packages in a text, normalised."""
    return set(map(normalised, re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)))


def _conclusion(proof: str) -> str:
    """The last sentences of a resolver's proof, as many as are short: what conflicts in the end."""
    kept: list[str] = []
    for sentence in reversed(re.split(r"(?<=[.:])\s+(?=And |Because )", proof)):
        if sum(map(len, kept)) + len(sentence) > _QUOTED:
            break
        kept.insert(0, sentence)
    return re.sub(r"^And (\w)", lambda found: found[1].upper(), " ".join(kept)) or "the requirements conflict"


#: Characters of a resolver's text that stand before the hint; of its end, if it is longer.
_SHORT_PROOF: Final = 1200
_QUOTED: Final = 600


#: `numpy>=1.24,<2.2`, `torch[opt]==2.9.1`, `torch{platform_machine != 'aarch64'}==2.5.1`, as resolvers write them.
_BOUND: Final = re.compile(
    # Not inside a word, where the search would start again at every letter: names in METADATA may be long.
    r"(?<![A-Za-z0-9._-])([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?(?:\{[^}]*\})?((?:(?:===|==|~=|!=|<=|>=|<|>)[^\s,;()]+,?)+)"
)


def bounds_in(message: str) -> dict[str, list[str]]:
    """The specifiers in a resolver's message, by normalised name."""
    bounds: dict[str, list[str]] = {}
    for name, bound in _BOUND.findall(message):
        bounds.setdefault(normalised(name), []).append(bound.rstrip(",.'"))
    return bounds


def excluded_versions(message: str, provided: Mapping[str, ProvidedPackage]) -> Iterator[tuple[str, str]]:
    """Each package from no index whose version a resolver's message excludes somewhere, with a hint."""
    bounds = bounds_in(message)
    for name in sorted(bounds.keys() & provided.keys()):
        provider = provided[name]
        if any(not allows(bound, provider.version) for bound in bounds[name]):
            hint = f"require a release of what requires another {name} that allows {provider.version}"
            if isinstance(provider, CondaProvided):
                bound_it = f"bound {provider.package} in [conda] dependencies"
                hint = f"{bound_it}, or put what requires another {name} there as well"
            yield provider.description, hint


async def _absence(name: str, bounds: Sequence[str], target: Target, view: View) -> tuple[str, str]:
    """Why the view does not show a project's newest release, and what to do if it is not what every conflict has; empty
    if it does, or if no bound allows that one.
    """
    selection = await view.selection(name)
    newest = selection.unloadable
    if newest is not None:
        if bounds and not any(allows(bound, newest) for bound in bounds):
            return "", ""
        filenames = [file.filename for file in of_version(await view.listed(name), Version(newest))]
        return f"{name} {newest} {no_wheel_text(filenames, target)}", ""
    if selection.files:
        return "", ""
    if not await view.listed(name):
        return f"index {view.rules.index_of(name).name} has no release of {name} that can be installed", RENAME
    return f"no release of {name} was uploaded by {utc_text(view.rules.cutoff_of(name))}", ""
