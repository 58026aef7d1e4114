"""Whether the package index and the registries can be reached, and by which way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envspec.credentials import shown
from envspec.doctor.finding import Finding, State
from envspec.doctor.place import Place, Probed
from envspec.effects.surroundings import ca_bundle, proxies
from envspec.errors import UsageError
from envspec.registry.reference import Reference, endpoint

_NOT_ASKED: Final = Probed(None, "not asked", "see network settings")


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """index, registries: what came of asking each. route: of proxies and certificates. fault: of their variables."""

    index_url: str
    index: Probed
    registries: Mapping[str, Probed]
    route: str
    fault: UsageError | None = None


async def look(place: Place, *, index_url: str, registries: Sequence[str], mirrors: Mapping[str, str]) -> NetworkFacts:
    """Ask all of them at the same time."""
    try:
        route = _route(place.environ)
        places = {name: endpoint(Reference(name, "library/none"), mirrors) for name in registries}
    except UsageError as fault:
        return NetworkFacts(index_url, _NOT_ASKED, dict.fromkeys(registries, _NOT_ASKED), "", fault)
    index, *answers = await asyncio.gather(
        place.probe("HEAD", index_url), *(place.probe("GET", f"{where.base}/") for where in places.values())
    )
    named = {
        name if where.registry == name else f"{name} by {where.registry}": answer
        for (name, where), answer in zip(places.items(), answers, strict=True)
    }
    return NetworkFacts(index_url, index, named, route)


def judge(facts: NetworkFacts) -> tuple[Finding, ...]:
    """Index, registries, then the way to them."""
    return (
        _index(facts),
        *(_registry(name, probed) for name, probed in facts.registries.items()),
        Finding("network settings", State.OK, facts.route)
        if facts.fault is None
        else Finding("network settings", State.WARNING, facts.fault.message, facts.fault.hint or ""),
    )


def _index(facts: NetworkFacts) -> Finding:
    what, status = "package index", facts.index.status
    if status is None:
        return Finding(what, State.WARNING, facts.index.problem, facts.index.todo)
    # Some proxies serve the pages of projects and not their list, or no HEAD.
    if status < 400 or status in {404, 405}:
        return Finding(what, State.OK, f"{shown(facts.index_url)} answers")
    todo = "try again later; until then `envspec lock --offline` repeats what this machine has resolved before"
    if status in {401, 403, 407}:
        todo = "the index or a proxy wants credentials; name a mirror in ENVSPEC_DEFAULT_INDEX if there is one"
    return Finding(what, State.WARNING, f"{shown(facts.index_url)}: HTTP {status}", todo)


def _registry(name: str, probed: Probed) -> Finding:
    what = f"registry {name}"
    without = f' (without it digests stay recorded or unresolved; [registry.mirrors] "{name}" may name a mirror)'
    if probed.status is None:
        return Finding(what, State.WARNING, probed.problem, probed.todo + (without if probed is not _NOT_ASKED else ""))
    # 401 is how a registry of the distribution API says that it is one.
    if probed.status in {200, 401}:
        return Finding(what, State.OK, "answers")
    return Finding(what, State.WARNING, f"HTTP {probed.status}", "is it a registry? A proxy may answer in its place")


def _route(environ: Mapping[str, str]) -> str:
    """In words; UsageError for a variable that can't be used."""
    routes, bundle = proxies(environ), ca_bundle(environ)
    ways = [f"{scheme} by {shown(url)}" for scheme, url in sorted(routes.by_scheme.items())] or ["no proxy"]
    if routes.by_scheme and routes.exempt:
        ways.append(f"not for {', '.join(routes.exempt)}")
    return "; ".join([*ways, f"certificates of {bundle}" if bundle else "the system's certificates"])
