"""Why there is no solution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from envspec.errors import EnvspecError, NoSolution
from envspec.models import Platform
from envspec.resolve.conda.candidates import (
    CondaCause,
    Obstacle,
    RequestLimits,
    first_cause,
    fitting,
    machine_records,
    newest_first,
    with_key,
)
from envspec.resolve.conda.channel_client import without_credentials
from envspec.resolve.conda.channels import Channels, in_time
from envspec.resolve.conda.records import build_text, by_name, channel_name, cuda_builds, name_of, record_name, specs_of
from envspec.resolve.conda.solver import CondaUnsolvable
from envspec.resolve.types import CondaRequest
from envspec.spec.dates import utc_text

if TYPE_CHECKING:
    from rattler import RepoDataRecord

_LINE: Final = re.compile(r"^([│├└─ ]*)(.*?)[.:]?$")
_FIRST: Final = "Cannot solve the request because of: "
# Lines that are neither a requirement nor a package.
_INCOMPATIBLE: Final = "The following packages are incompatible"
_IGNORED: Final = (_INCOMPATIBLE, "the constraint ")
#: Above all depths of the tree before.
_NEXT_TREE: Final = -1000
_ALONE: Final = "No candidates were found for "
#: What follows a package, and the verb between the package and its next requirement.
_VERBS: Final = {" would require": "needs", " would constrain": "allows only"}
#: What follows a requirement.
_SUFFIX: Final = re.compile(
    r"(?:(?:, which)? can be installed with any of the following options"
    r"|(?:, which)? cannot be installed because there are no viable options"
    r"|, for which no candidates were found"
    r"|, which conflicts with (?:any installable versions previously reported|the versions reported above))$"
)


class Chain(Struct, frozen=True):
    """One path to a conflict. root: the spec's requirement. steps: (package that was tried, `needs` or `allows only`,
    its next requirement), from the root's package on; may be empty.
    """

    root: str
    steps: tuple[tuple[str, str, str], ...] = ()

    @property
    def last(self) -> str:
        """The requirement at the end."""
        if not self.steps:
            return self.root
        return self.steps[-1][-1]

    def is_part_of(self, other: Chain) -> bool:
        """Whether another chain goes on where this one ends."""
        return self != other and self.root == other.root and other.steps[: len(self.steps)] == self.steps


def chains(message: str) -> list[Chain]:
    """Every path from a root of the solver's tree to a leaf, in its order; none if the text is no such tree."""
    nodes = list(_nodes(message))
    found: dict[Chain, None] = {}
    path: list[tuple[int, str, str]] = []
    for number, (depth, text, verb) in enumerate(nodes):
        while path and path[-1][0] >= depth:
            path.pop()
        path.append((depth, text, verb))
        if number + 1 == len(nodes) or nodes[number + 1][0] <= depth:
            # A path alternates: requirement, package, requirement, ... A package at its end is one that did not fit.
            pairs = zip(path[1::2], path[2::2], strict=False)
            steps = tuple((package, verb, requirement) for (_, package, verb), (_, requirement, _) in pairs)
            found[Chain(path[0][1], steps)] = None
    return list(found)


def _nodes(message: str) -> Iterator[tuple[int, str, str]]:
    """Depth, text and verb of each line. The requirement on the first line is above all others of its tree."""
    top = 0
    for line in message.splitlines():
        found = _LINE.match(line.removeprefix(_FIRST))
        # A text may have a tree of one requirement, and then one of packages that are incompatible.
        if line.startswith(_INCOMPATIBLE):
            top += _NEXT_TREE
        if not found or not found[2] or found[2].startswith(_IGNORED):
            continue
        text = _SUFFIX.sub("", found[2].removeprefix(_ALONE).partition(" is excluded because ")[0])
        end = next(filter(text.endswith, _VERBS), "")
        text = text.removesuffix(end).removesuffix(" *")
        depth = top + len(found[1])
        if line.startswith(_FIRST):
            depth = top - 1
        yield depth, text, _VERBS.get(end, "")


_MOST_CHAINS: Final = 6


class CpuFallback(NoSolution, code="cpu-fallback"):
    """A package that has CUDA builds would be installed for the CPU."""


async def no_solution_error(error: CondaUnsolvable, request: CondaRequest, channels: Channels) -> EnvspecError:
    """The error to raise for a solver's "no solution": causes that the records show come before the solver's text."""
    subject = f"no solution for conda's packages on {request.platform.value}"
    limits = await _limits(request, channels, error.message)
    unknown: list[str] = []
    for text in request.requirements:
        if not text.startswith("__") and not limits.records.get(name_of(text)):
            unknown.append(text)
    if unknown:
        shown = ", ".join(with_key(request, text) for text in unknown)
        return NoSolution(f"{subject}: no such package: {shown}", hint=await _similar_names(unknown, request, channels))
    obstacles = list(filter(None, [_obstacle(text, limits) for text in request.requirements]))
    why = Obstacle("; ".join(each.text for each in obstacles), first_cause(obstacles))
    if not obstacles:
        why = _conflict(error.message, limits)
    return NoSolution(f"{subject}: {why.text}", hint=why.cause.value)


async def cpu_build_error(
    fallbacks: Sequence[RepoDataRecord], error: CondaUnsolvable, request: CondaRequest, channels: Channels
) -> EnvspecError:
    """The error for packages with CUDA builds of which none fits. request: without added constraints."""
    names = list(map(record_name, fallbacks))
    limits = await _limits(request, channels, error.message, names)
    why = _no_cuda(names[0], limits) or _conflict(error.message, limits)
    texts = ", ".join(map(build_text, fallbacks))
    text = f"{_ineffective_text(request)}: a build for the CPU of {texts}; {why.text}"
    return CpuFallback(text, hint=why.cause.value)


def other_platform_error(
    fallbacks: Sequence[RepoDataRecord], request: CondaRequest, records: Iterable[RepoDataRecord]
) -> EnvspecError:
    """The error for packages whose CUDA builds are for another platform only. records: of that platform."""
    others = by_name(newest_first(cuda_builds(records)))
    found: list[str] = []
    for own in fallbacks:
        other = others[record_name(own)][0]
        found.append(f"{build_text(own)}, no CUDA build; {other.subdir} has {build_text(other)}")
    return CpuFallback(f"{_ineffective_text(request)}: {'. '.join(found)}", hint=CondaCause.NO_CUDA_BUILD.value)


def _ineffective_text(request: CondaRequest) -> str:
    return f"on {request.platform.value} the spec's [cuda] would have no effect"


def channel_priority_error(
    record: RepoDataRecord, request: CondaRequest, records: Iterable[RepoDataRecord]
) -> EnvspecError:
    """The error for a record of a channel after the one that its name belongs to. records: those that count."""
    name = record_name(record)
    newest = newest_first(by_name(records)[name])[0]
    first, later = _channel_of(newest, request), _channel_of(record, request)
    required = " and ".join(with_key(request, text) for text in specs_of(name, request.requirements))
    hint = f"loosen the requirement, or put {later} before {first} in [conda] channels"
    if "://" not in later:
        hint = f'require "{later}::{name}", or {hint}'
    return NoSolution(
        f"no solution for conda's packages on {request.platform.value}: {required or name} fits {build_text(record)} "
        f"of {later}, but a name belongs to the first channel that has it: {first}, "
        f"whose newest {name} is {newest.version}",
        hint=hint,
    )


def _channel_of(record: RepoDataRecord, request: CondaRequest) -> str:
    url = without_credentials(record.channel or record.url)
    return channel_name(url, request.channels)


async def _limits(request: CondaRequest, channels: Channels, message: str, more: Iterable[str] = ()) -> RequestLimits:
    """The limits with the records of what the request requires, the solver's message ends at, and `more` names."""
    names = set(map(name_of, (*request.requirements, *request.constraints))).union(more)
    names.update(name_of(chain.last) for chain in chains(message))
    records = by_name(await channels.records(request, names))
    return RequestLimits(request, {name: records.get(name, ()) for name in names}, machine_records(request))


def _obstacle(requirement: str, limits: RequestLimits) -> Obstacle | None:
    """Why a requirement cannot be met whatever else is required; None if it may be."""
    request, words = limits.request, with_key(limits.request, requirement)
    name = name_of(requirement)
    if name.startswith("__"):
        unmet = limits.unmet(requirement)
        return unmet.after(f"{words}: the spec requires ") if unmet else None
    records = limits.records[name]
    matching = fitting(requirement, records)
    if not matching:
        existing = _existing_text(requirement, in_time(records, request) or records, request)
        return Obstacle(f"nothing fits {words}: {existing}")
    candidates = newest_first(in_time(matching, request))
    if not candidates:
        return limits.too_late(matching).after(f"nothing that fits {words} is in time: it ")
    first = _first_obstacle(candidates, limits)
    if first is None:
        return None
    above = _above_constraints(name, candidates, limits)
    return (above or first.after(f": {build_text(candidates[0])} ")).after(words)


def _first_obstacle(candidates: Sequence[RepoDataRecord], limits: RequestLimits) -> Obstacle | None:
    """What excludes the first candidate; None if one of them is not excluded."""
    obstacles = list(map(limits.obstacle, candidates))
    return obstacles[0] if all(obstacles) else None


def _above_constraints(name: str, candidates: Sequence[RepoDataRecord], limits: RequestLimits) -> Obstacle | None:
    """What follows a requirement of `name` none of whose candidates meets all added constraints; None if one does."""
    caps: list[Obstacle] = []
    for text, limit in limits.limits(name):
        if text in limits.request.constraints:
            candidates = fitting(text, candidates)
            caps.append(limit)
    if candidates:
        return None
    if limits.request.cuda:
        return Obstacle(f" is above {' and '.join(cap.text for cap in caps)}", first_cause(caps))
    return caps[0].after(": excluded by ")


def _existing_text(requirement: str, records: Sequence[RepoDataRecord], request: CondaRequest) -> str:
    from rattler import MatchSpec

    spec, newest = MatchSpec(requirement), newest_first(records)[0]
    name = record_name(newest)
    if spec.build and spec.version and (of_version := fitting(f"{name} {spec.version}", records)):
        builds = sorted({str(record.build) for record in of_version})
        return f"the builds of that version are {', '.join(builds[:4])}"
    text = f"the newest {name} by {utc_text(request.cutoff_of(name))} is {newest.version} ({newest.build})"
    if spec.version and re.match(r"cuda|cpu", spec.version):
        return f"{text}, and a build string comes third: `{name} * {spec.version.rstrip('.*')}*`"
    return text


def _conflict(message: str, limits: RequestLimits) -> Obstacle:
    """The tree's paths as sentences, each from a requirement of the spec; the message itself if it is no tree."""
    from rattler import MatchSpec

    # The spec's requirements by rattler's form of them.
    required = {str(MatchSpec(text)).removesuffix(" *"): text for text in limits.request.requirements}
    every = [chain for chain in chains(message) if chain.root in required or chain.steps]
    longest: list[Chain] = []
    for chain in every:
        if not any(map(chain.is_part_of, every)) and not _is_of_another_python(chain, every):
            longest.append(chain)
    if not longest:
        return Obstacle(message.strip())
    order = {root: number for number, root in enumerate(required)}
    longest.sort(key=lambda chain: order.get(chain.root, len(order)))
    sentences: dict[Obstacle, None] = {}
    for chain in longest:
        sentences[_sentence(chain, required.get(chain.root, chain.root), limits)] = None
    found = list(sentences)
    text = "; ".join(each.text for each in found[:_MOST_CHAINS])
    if len(found) > _MOST_CHAINS:
        text += f"; and {len(found) - _MOST_CHAINS} more of this kind"
    if any(chain.root != longest[0].root for chain in longest):
        text = f"these conflict: {text}"
    return Obstacle(text, first_cause(found[:_MOST_CHAINS]))


def _is_of_another_python(chain: Chain, every: Iterable[Chain]) -> bool:
    """Whether it is a build for another Python, and what excludes the build for this one is another chain."""
    if not chain.steps or name_of(chain.last) != "python":
        return False
    end = len(chain.steps) - 1
    for other in every:
        if other.root != chain.root or other.steps[:end] != chain.steps[:end] or len(other.steps) <= end:
            continue
        package, _, requirement = other.steps[end]
        if package == chain.steps[end][0] and name_of(requirement) != "python":
            return True
    return False


def _sentence(chain: Chain, root: str, limits: RequestLimits) -> Obstacle:
    steps, cause = list(chain.steps), CondaCause.OTHER
    if steps and steps[-1][1] == "needs" and (unmet := limits.unmet(chain.last)):
        steps[-1] = (*steps[-1][:2], unmet.text)
        cause = unmet.cause
    return Obstacle(": ".join(filter(None, (with_key(limits.request, root), ", ".join(map(" ".join, steps))))), cause)


def _no_cuda(name: str, limits: RequestLimits) -> Obstacle | None:
    """What excludes the newest CUDA build that the spec's requirements allow; None if nothing alone does."""
    records = newest_first(cuda_builds(limits.records.get(name, ())))
    allowed = records
    for text in specs_of(name, limits.request.requirements):
        allowed = fitting(text, allowed)
    allowed = allowed or records
    if not allowed:
        return None
    first = _first_obstacle(allowed, limits)
    return first.after(f"the newest CUDA build, {build_text(allowed[0])}, ") if first else None


async def _similar_names(unknown: Sequence[str], request: CondaRequest, channels: Channels) -> str:
    """A hint about another name or another platform."""
    names = list(map(name_of, unknown))
    if "python" in names:
        return f"remove {request.platform.value} from env.platforms, or add a channel that has it"
    if request.platform is not Platform.LINUX_64:
        existing = sorted(set(map(record_name, await channels.records(request, names, Platform.LINUX_64))))
        if existing:
            return f"move {', '.join(existing)} to [conda.platform.linux-64], which has it"
    every = await channels.names(request)
    near: list[str] = []
    for name in names:
        near += get_close_matches(name, every, n=1, cutoff=0.75)
    if not near:
        return CondaCause.NO_SUCH_NAME.value
    return f"did you mean {', '.join(near)}?"
