"""Why there is no solution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from envspec.errors import EnvspecError, NoSolution, UsageError
from envspec.models import Platform
from envspec.resolve.conda.candidates import Terms, asked_by, cuda_rows, key_of, machine_rows, moment_text, newest_first
from envspec.resolve.conda.channel_client import without_credentials
from envspec.resolve.conda.channels import Channels
from envspec.resolve.conda.cuda_builds import Build
from envspec.resolve.conda.records import by_name, name_of
from envspec.resolve.conda.solver import CondaUnsolvable
from envspec.resolve.types import CondaRequest

if TYPE_CHECKING:
    from rattler import RepoDataRecord


_LINE: Final = re.compile(r"^([│├└─ ]*)(.*?)[.:]?$")
_FIRST: Final = "Cannot solve the request because of: "
# Lines that are neither a requirement nor a package.
_OTHERS: Final = ("The following packages are incompatible", "the constraint ")
_ALONE: Final = "No candidates were found for "
# What stands behind a requirement or a package, and the verb from the package to the next requirement.
_BEHIND: Final = (
    (" would require", "needs"),
    (" would constrain", "allows only"),
    (", which can be installed with any of the following options", ""),
    (" can be installed with any of the following options", ""),
    (", which cannot be installed because there are no viable options", ""),
    (" cannot be installed because there are no viable options", ""),
    (", for which no candidates were found", ""),
    (", which conflicts with any installable versions previously reported", ""),
    (", which conflicts with the versions reported above", ""),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A package that was tried, and its requirement that led further. verb: `needs` or `allows only`."""

    package: str
    verb: str
    requirement: str


@dataclass(frozen=True, slots=True)
class Chain:
    """One way into the dead end. root: the requirement that the spec has. steps: from its package on; may be empty."""

    root: str
    steps: tuple[Step, ...] = ()

    @property
    def last(self) -> str:
        """The requirement that the way ends at."""
        return self.steps[-1].requirement if self.steps else self.root


def chains(told: str) -> list[Chain]:
    """Every way from a root of the tree to a leaf, in the order of the tree; none where the text is no such tree."""
    nodes = list(_nodes(told))
    found: dict[Chain, None] = {}
    path: list[tuple[int, str, str]] = []
    for place, (depth, text, verb) in enumerate(nodes):
        while path and path[-1][0] >= depth:
            path.pop()
        path.append((depth, text, verb))
        if place + 1 == len(nodes) or nodes[place + 1][0] <= depth:
            found[_chain(path)] = None
    return list(found)


def _chain(path: list[tuple[int, str, str]]) -> Chain:
    """A path alternates: requirement, package, requirement, ... A package at its end is one that did not fit."""
    texts = [(text, verb) for _, text, verb in path]
    steps = (
        Step(package, verb, requirement)
        for (package, verb), (requirement, _) in zip(texts[1::2], texts[2::2], strict=False)
    )
    return Chain(texts[0][0], tuple(steps))


def _nodes(told: str) -> Iterator[tuple[int, str, str]]:
    """Depth, text and verb of each line. The requirement on the first line is above all others."""
    for line in told.splitlines():
        found = _LINE.match(line.removeprefix(_FIRST))
        if not found or not found[2] or found[2].startswith(_OTHERS):
            continue
        text = found[2].removeprefix(_ALONE).partition(" is excluded because ")[0]
        verb = ""
        for behind, word in _BEHIND:
            if text.endswith(behind):
                text, verb = text.removesuffix(behind), word
                break
        yield -1 if line.startswith(_FIRST) else len(found[1]), text.removesuffix(" *"), verb


#: What a reason says, and what helps; the first that is found gives the hint.
_HINTS: Final = (
    ("no such package", "correct the name, or add the channel that has it"),
    ("which only a spec with [cuda] has", "add [cuda] to the spec, or ask for a build for the CPU"),
    ("[cuda] version =", "raise [cuda] version, or allow an older package"),
    ("[cuda] gives", "raise [cuda] version, or allow an older package"),
    ("when it was built", 'undated = "accept" in [conda] takes rows without a date'),
    ("after as_of", "move as_of, or loosen the requirement"),
    ("the machine has", "say what the environment's machine has in [conda.virtual_packages]"),
    ("the base has", "take a newer base: [cuda] os or [image] base"),
    ("no CUDA build", "take the platform out, or build on a package that has CUDA builds there"),
)
_LOOSEN: Final = "loosen one of the requirements named here, or move as_of"
_MOST_CHAINS: Final = 6


class CpuFallback(NoSolution):
    """A package that has CUDA builds would come as one for the CPU."""


def check_requirements(request: CondaRequest) -> None:
    """Refuse what is no match spec, before anything is fetched.

    Raises:
        UsageError: names the requirement, and what rattler says of it.
    """
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    for text in request.requirements:
        try:
            MatchSpec(text, strict=True)
        except InvalidMatchSpecError as fault:
            raise UsageError(
                f'{key_of(request, text)}: "{text}" is not a match spec: {fault}',
                hint="write it as `numpy`, `numpy 2.3.*`, `numpy >=2,<3` or `pytorch 2.8.* cuda*`",
            ) from None


async def refusal(error: CondaUnsolvable, request: CondaRequest, channels: Channels) -> EnvspecError:
    """The error to raise for an engine's "no solution": what is known here goes before the engine's words."""
    place = f"no solution for conda's packages on {request.platform.value}"
    terms = await _terms(request, channels, [chain.last for chain in chains(error.message)])
    unknown = [text for text in request.requirements if not terms.rows.get(name_of(text)) and text[:2] != "__"]
    if unknown:
        return NoSolution(
            f"{place}: no such package: {', '.join(asked_by(request, text) for text in unknown)}",
            hint=await _known_names(unknown, request, channels),
        )
    reasons = [reason for text in request.requirements if (reason := _reason(text, terms))]
    told = "; ".join(reasons) or _conflict(error.message, terms) or error.message.strip()
    return NoSolution(f"{place}: {told}", hint=_hint(told))


async def fallback_refusal(
    behind: Sequence[Build], error: CondaUnsolvable, request: CondaRequest, channels: Channels
) -> EnvspecError:
    """The error for packages that have CUDA builds of which none fits. request: as it was first asked."""
    terms = await _terms(request, channels, [*(b.name for b in behind), *(c.last for c in chains(error.message))])
    told = [_no_cuda(build, terms) or _conflict(error.message, terms) or error.message.strip() for build in behind[:1]]
    names = ", ".join(f"{build.name} {build.version} ({build.build})" for build in behind)
    message = f"on {request.platform.value} the spec's [cuda] would come to nothing: a build for the CPU of {names}"
    return CpuFallback(f"{message}; {told[0]}", hint=_hint(told[0]))


def elsewhere_refusal(behind: Sequence[Build], request: CondaRequest, rows: Iterable[RepoDataRecord]) -> EnvspecError:
    """The error for packages whose CUDA builds are for another platform only. rows: of that platform."""
    others = by_name(cuda_rows(rows))
    builds = (f"{b.name} {b.version} ({b.build}), no CUDA build; {_elsewhere(others[b.name][0])}" for b in behind)
    return CpuFallback(
        f"on {request.platform.value} the spec's [cuda] would come to nothing: {'. '.join(builds)}",
        hint=_hint("no CUDA build"),
    )


def priority_refusal(row: RepoDataRecord, request: CondaRequest, rows: Iterable[RepoDataRecord]) -> EnvspecError:
    """The error for a row of a channel behind another one that has its name. rows: of the channels that have a say."""
    name = row.name.normalized
    newest = newest_first(other for other in rows if other.name.normalized == name)[0]
    first, behind = (_channel_of(each, request) for each in (newest, row))
    asked = " and ".join(asked_by(request, text) for text in request.requirements if name_of(text) == name)
    by_channel = "" if "://" in behind else f'ask for "{behind}::{name}", or '
    return NoSolution(
        f"no solution for conda's packages on {request.platform.value}: {asked or name} fits {_called(row)} "
        f"of {behind}, but a name belongs to the first channel that has it: {first}, "
        f"whose newest {name} is {newest.version}",
        hint=f"{by_channel}loosen the requirement, or put {behind} before {first} in [conda] channels",
    )


def _channel_of(row: RepoDataRecord, request: CondaRequest) -> str:
    url = without_credentials(row.channel or row.url)
    return next((channel.name for channel in request.channels if channel.url == url), url)


def _elsewhere(row: RepoDataRecord) -> str:
    return f"{row.subdir} has {row.name.normalized} {row.version} ({row.build})"


async def _terms(request: CondaRequest, channels: Channels, more: Iterable[str]) -> Terms:
    names = {name_of(text) for text in (*request.requirements, *request.constraints, *more)}
    rows = by_name(await channels.rows(request, names))
    return Terms(request, {name: rows.get(name, ()) for name in names}, machine_rows(request))


def _reason(requirement: str, terms: Terms) -> str | None:
    """Why a requirement can't be met whatever else is asked; None where it may be."""
    request, words = terms.request, asked_by(terms.request, requirement)
    name = name_of(requirement)
    if name.startswith("__"):
        unmet = terms.unmet(requirement)
        return f"{words}: the spec asks for {unmet}" if unmet else None
    rows = terms.rows[name]
    timely = [row for row in rows if terms.in_time(row)]
    fitting = [row for row in rows if terms.fits(requirement, row)]
    if not fitting:
        return f"nothing fits {words}: {_what_there_is(requirement, timely or rows, request)}"
    candidates = newest_first(row for row in fitting if terms.in_time(row))
    if not candidates:
        return f"nothing that fits {words} is in time: it {terms.too_late(fitting)}"
    obstacles = [terms.obstacle(row) for row in candidates]
    if not all(obstacles):
        return None
    capped = [text for text, _ in terms.limits(name) if text in request.constraints]
    if capped and not any(all(terms.fits(text, row) for text in capped) for row in candidates):
        limits = [limit for text, limit in terms.limits(name) if text in capped]
        return f"{words} is above {' and '.join(limits)}" if request.cuda else f"{words}: excluded by {limits[0]}"
    return f"{words}: {_called(candidates[0])} {obstacles[0]}"


def _what_there_is(requirement: str, rows: Sequence[RepoDataRecord], request: CondaRequest) -> str:
    from rattler import MatchSpec

    asked, newest = MatchSpec(requirement), newest_first(rows)[0]
    name = newest.name.normalized
    of_version = [row for row in rows if asked.version and MatchSpec(f"{name} {asked.version}").matches(row)]
    if asked.build and of_version:
        builds = ", ".join(sorted({str(row.build) for row in of_version})[:4])
        return f"the builds of that version are {builds}"
    said = f"the newest {name} by {moment_text(request.cut_of(name))} is {newest.version} ({newest.build})"
    if asked.version and re.match(r"cuda|cpu", asked.version):
        return f"{said}, and a build string stands in the third place: `{name} * {asked.version.rstrip('.*')}*`"
    return said


def _conflict(told: str, terms: Terms) -> str:
    """The tree's ways as sentences, each from a requirement of the spec; empty where the engine told no tree."""
    asked = _as_rattler_says(terms.request.requirements)
    told_ways = [chain for chain in chains(told) if chain.root in asked or chain.steps]
    ways = [chain for chain in told_ways if not any(_goes_on(chain, other) for other in told_ways)]
    if not ways:
        return ""
    order = list(asked)
    ways.sort(key=lambda chain: order.index(chain.root) if chain.root in asked else len(order))
    found = list(dict.fromkeys(_way(chain, asked.get(chain.root, chain.root), terms) for chain in ways))
    more = len(found) - _MOST_CHAINS
    ending = f"; and {more} more of this kind" if more > 0 else ""
    start = "these do not go together: " if len({chain.root for chain in ways}) > 1 else ""
    return start + "; ".join(found[:_MOST_CHAINS]) + ending


def _goes_on(chain: Chain, other: Chain) -> bool:
    """Whether another way leads on where this one ends; then it says more."""
    return chain.root == other.root and chain != other and other.steps[: len(chain.steps)] == chain.steps


def _way(chain: Chain, root: str, terms: Terms) -> str:
    steps = [f"{step.package} {step.verb} {step.requirement}" for step in chain.steps]
    unmet = terms.unmet(chain.last)
    if steps and unmet and chain.steps[-1].verb == "needs":
        steps[-1] = f"{chain.steps[-1].package} needs {unmet}"
    return ": ".join(filter(None, (asked_by(terms.request, root), ", ".join(steps))))


def _as_rattler_says(requirements: Iterable[str]) -> Mapping[str, str]:
    """The spec's words by those that rattler makes of them."""
    from rattler import MatchSpec

    return {str(MatchSpec(text)).removesuffix(" *"): text for text in requirements}


def _no_cuda(build: Build, terms: Terms) -> str:
    """What keeps the newest CUDA build out that its version or the spec would take; empty where nothing alone does."""
    rows = cuda_rows(terms.rows.get(build.name, ()))
    asked = [text for text in terms.request.requirements if name_of(text) == build.name]
    wanted = [row for row in rows if all(terms.fits(text, row) for text in asked)] or rows
    told = [(row, obstacle) for row in wanted if (obstacle := terms.obstacle(row))]
    if len(told) < len(wanted):
        return ""
    row, obstacle = told[0]
    return f"the newest CUDA build, {_called(row)}, {obstacle}"


def _called(row: RepoDataRecord) -> str:
    return f"{row.name.normalized} {row.version} ({row.build})"


def _hint(told: str) -> str:
    return next((hint for words, hint in _HINTS if words in told), _LOOSEN)


async def _known_names(unknown: Sequence[str], request: CondaRequest, channels: Channels) -> str:
    """What may have been meant: another name, or another platform."""
    names = [name_of(text) for text in unknown]
    if "python" in names:
        return f"take {request.platform.value} out of env.platforms, or add a channel that is for it as well"
    if request.platform is not Platform.LINUX_64:
        there = sorted({row.name.normalized for row in await channels.rows(request, names, Platform.LINUX_64)})
        if there:
            return f"linux-64 has {', '.join(there)}: name it in [conda.platform.linux-64]"
    known = await channels.names(request)
    near = [match for name in names for match in get_close_matches(name, known, n=1, cutoff=0.75)]
    return f"did you mean {', '.join(near)}?" if near else _hint("no such package")
