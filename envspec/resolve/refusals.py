"""Why there is no solution, where the engine can't know: its index does not show what the target can't load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Final

from envspec.errors import EnvspecError, NoSolution
from envspec.model import Target
from envspec.resolve.engine import Request, Unsolvable
from envspec.resolve.index.select import SDIST_SUFFIXES, version_of
from envspec.resolve.index.view import View, normalised
from envspec.resolve.provider import Provider
from envspec.resolve.requirements import allows, parsed


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


#: `numpy>=1.24,<2.2`, `torch[opt]==2.9.1`, `torch{platform_machine != 'aarch64'}==2.5.1`, as engines tell requirements.
_BOUND: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?(?:\{[^}]*\})?((?:(?:===|==|~=|!=|<=|>=|<|>)[^\s,;()]+,?)+)"
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
    version = selection.unloadable
    files = [file for file in await view.names(name) if str(version_of(file)) == version]
    if all(file.endswith(SDIST_SUFFIXES) for file in files):
        return (
            f"{name} {version} has an sdist and no wheel",
            f'allow_sdist = ["{name}"] in [pip] lets it be built from source',
        )
    return f"{name} {version} {no_wheel_for(target)}", ""


def no_wheel_for(target: Target) -> str:
    level = f", glibc up to {target.glibc[0]}.{target.glibc[1]}" if target.glibc else ""
    return f"has no wheel for Python {target.python.series} on {target.platform.value}{level}"


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
