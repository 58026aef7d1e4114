"""Why there is no solution, where the engine can't know: its index does not show what the target can't load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from envspec.errors import EnvspecError, NoSolution
from envspec.models import DIRECT_URL, SPEC, Resolution, Target
from envspec.resolve.pypi.index.view import View, normalised
from envspec.resolve.pypi.metadata import allows, parsed
from envspec.resolve.pypi.resolver import Request, Unsolvable
from envspec.resolve.types import Provider


async def refusal(error: Unsolvable, request: Request, view: View) -> EnvspecError:
    """The error to raise for an engine's "no solution": what is known here comes before the engine's words."""
    target = request.target
    asked = {normalised(requirement.name) for text in request.requirements if (requirement := parsed(text))}
    unknown = sorted(view.missing & asked)
    if unknown:
        return NoSolution(
            f"no such package: {', '.join(unknown)} (asked by the spec's pip.dependencies)",
            hint="correct the name, or name its index in [[pip.index]]",
        )
    told = {normalised(word) for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", error.message)}
    found = [*excluded(error.message, view.rules.provided)]
    found += [await _absence(name, target, view) for name in sorted((told & view.shown) - view.rules.provided.keys())]
    reasons = [reason for reason, _ in found if reason]
    hints = [hint for _, hint in found if hint] or ["loosen one of the requirements named above, or move as_of"]
    place = f"no solution for Python {target.python.version} on {target.platform.value}"
    return Unsolvable(f"{place}: {'. '.join([*reasons, error.message])}", hint="; ".join(hints))


class NeedsSdist(NoSolution):
    """Packages that would have to be built from sdists, and may not be. names: theirs. allowed: those that may be."""

    def __init__(self, message: str, names: Iterable[str], allowed: Iterable[str]) -> None:
        listed = ", ".join(f'"{name}"' for name in sorted({*names, *allowed}))
        super().__init__(
            message,
            hint="bound them to releases with wheels, or allow their builds, which run their code, in [pip]:\n"
            f"    allow_sdist = [{listed}]",
        )


def needed_by_builds(names: Sequence[str], request: Request) -> NeedsSdist:
    """The error for builds that ask for packages which would have to be built themselves."""
    return NeedsSdist(
        f"the builds of {', '.join(sorted(request.sdists))} for {request.target.platform.value} require "
        f"{', '.join(names)}: no wheel, only an sdist",
        names,
        request.sdists,
    )


def refuse_sdists(answered: Sequence[tuple[Request, Resolution]]) -> None:
    """Refuse resolutions with packages that would have to be built, and may not be: all of them at once.

    Raises:
        NeedsSdist
    """
    found: dict[tuple[str, str], tuple[set[str], list[str]]] = {}
    for request, resolution in answered:
        for package in resolution.packages:
            # What the spec names by URL, or as a source, it means to have built.
            named = package.built is not None or package.file.index == DIRECT_URL
            if package.file.filename.endswith(".whl") or package.name in request.sdists or named:
                continue
            askers, platforms = found.setdefault((package.name, package.version), (set(), []))
            askers |= {"the spec" if asker.name == SPEC else asker.name for asker in package.required_by}
            platforms.append(resolution.target.platform.value)
    if not found:
        return
    several = len(answered) > 1
    lines = [
        f"{name} {version} (required by {', '.join(sorted(askers))}{'; ' + ', '.join(platforms) if several else ''})"
        for (name, version), (askers, platforms) in sorted(found.items())
    ]
    target = answered[0][0].target
    where = "" if several else f" on {target.platform.value}"
    count = f"{len(lines)} packages have" if len(lines) > 1 else "1 package has"
    raise NeedsSdist(
        "\n  ".join([f"{count} no wheel for Python {target.python.series}{where}, only an sdist:", *lines]),
        [name for name, _ in found],
        {name for request, _ in answered for name in request.sdists},
    )


#: `numpy>=1.24,<2.2`, `torch[opt]==2.9.1`, `torch{platform_machine != 'aarch64'}==2.5.1`, as engines tell requirements.
_BOUND: Final = re.compile(
    # Not inside of a word, where it would be looked for again at every letter: names in METADATA may be long.
    r"(?<![A-Za-z0-9._-])([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?(?:\{[^}]*\})?((?:(?:===|==|~=|!=|<=|>=|<|>)[^\s,;()]+,?)+)"
)


def excluded(told: str, provided: Mapping[str, Provider]) -> Iterator[tuple[str, str]]:
    """Each package of conda's whose version an engine's words exclude somewhere, and what helps."""
    bounds: dict[str, list[str]] = {}
    for name, bound in _BOUND.findall(told):
        bounds.setdefault(normalised(name), []).append(bound.rstrip(",.'"))
    for name in sorted(bounds.keys() & provided.keys()):
        provider = provided[name]
        if any(not allows(bound, provider.version) for bound in bounds[name]):
            bound_it = f"bound {provider.package} in [conda] dependencies"
            yield provider.whence, f"{bound_it}, or put what asks for another {name} there as well"


async def _absence(name: str, target: Target, view: View) -> tuple[str, str]:
    """Why the view does not show a project's newest release, and what helps; empty where it does."""
    selection = await view.selection(name)
    if selection.unloadable is None:
        if selection.files or not await view.names(name):
            return "", ""
        return f"nothing of {name} was uploaded by {_text(view.rules.cut_of(name))}", ""
    return f"{name} {selection.unloadable} {no_wheel_for(target)}", ""


def no_wheel_for(target: Target) -> str:
    level = f", glibc up to {target.glibc[0]}.{target.glibc[1]}" if target.glibc else ""
    return f"has no wheel for Python {target.python.series} on {target.platform.value}{level}"


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
