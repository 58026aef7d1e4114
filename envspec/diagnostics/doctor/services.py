"""Container engine and network."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from envspec.credentials import shown
from envspec.diagnostics.doctor.types import Finding, Place, Probed, State
from envspec.errors import UsageError
from envspec.io.http_settings import ca_bundle, proxies
from envspec.io.process import Finished
from envspec.registry.reference import Reference, endpoint_of

_UNREADABLE: Final = "its answer can't be read"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine's program. version: the client's. server: the daemon's, None where none answers. problem: why not."""

    name: str
    version: str = ""
    server: str | None = None
    rootless: bool = False
    problem: str = ""
    runtimes: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether containers can be started by it."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """engines: those with a program here. named_host: DOCKER_HOST. system: as `sys.platform`."""

    system: str
    engines: tuple[Engine, ...] = ()
    named_host: bool = False
    builders: Mapping[str, str] = field(default_factory=dict)


async def observe_engines(place: Place) -> EngineFacts:
    """Ask every engine at the same time."""
    docker, podman, buildah = await asyncio.gather(_docker(place), _podman(place), _buildah(place))
    return EngineFacts(
        system=place.system,
        engines=tuple(engine for engine in (docker, podman) if engine),
        named_host=bool(place.environ.get("DOCKER_HOST")),
        builders={"buildah": buildah} if buildah else {},
    )


def judge_engines(facts: EngineFacts, *, contained: bool) -> tuple[Finding, ...]:
    """One finding for each engine that is here; one for all when none is. contained: this runs in a container."""
    if not facts.engines and contained:
        return (Finding("container engine", State.NOT_APPLICABLE, "in a container"), *_builders(facts))
    if not facts.engines:
        todo = "install docker or podman to build and run images; locking needs no engine"
        return (Finding("container engine", State.MISSING, "neither docker nor podman", todo), *_builders(facts))
    return (*(_engine(engine, facts) for engine in facts.engines), *_builders(facts))


def _engine(engine: Engine, facts: EngineFacts) -> Finding:
    rootless = ", rootless" if engine.rootless else ""
    if engine.works:
        server = f", daemon {engine.server}" if engine.server else ""
        return Finding(engine.name, State.OK, f"{engine.version or 'version unknown'}{server}{rootless}")
    known = f"{engine.version}: " if engine.version else ""
    return Finding(engine.name, State.WARNING, f"{known}{engine.problem}", _todo(engine, facts))


def _todo(engine: Engine, facts: EngineFacts) -> str:
    problem = engine.problem.lower()
    if engine.name == "docker" and "permission denied" in problem:
        return "add your user to the group docker and log in again, or use docker rootless or podman"
    if engine.name != "docker" or "connect" not in problem:
        return f"`{engine.name} info` says more"
    if facts.named_host:
        return "DOCKER_HOST names another daemon: start it, correct the variable, or unset it"
    if facts.system in {"darwin", "win32"}:
        return "start Docker Desktop"
    return "start the daemon (`systemctl start docker`), or, in a container, mount its socket"


def _builders(facts: EngineFacts) -> tuple[Finding, ...]:
    return tuple(Finding(name, State.OK, version) for name, version in facts.builders.items())


async def _docker(place: Place) -> Engine | None:
    if place.path_of("docker") is None:
        return None
    done = await place.ask(("docker", "info", "--format", "{{json .}}"))
    document = _json(done)
    if shim := _part(document, "version").get("Version"):
        # podman-docker: a `docker` that is podman
        return Engine("docker", f"podman's, {shim}", rootless=_is_rootless_podman(document))
    client = _part(document, "ClientInfo")
    server = str(document.get("ServerVersion") or "") or None
    errors = document.get("ServerErrors")
    said = str(errors[0]) if isinstance(errors, list) and errors else (done.stderr if done else "")
    options = document.get("SecurityOptions")
    return Engine(
        name="docker",
        version=str(client.get("Version") or ""),
        server=server,
        rootless=isinstance(options, list) and any("rootless" in str(option) for option in options),
        problem="" if server else _problem(done, said),
        runtimes=tuple(sorted(_part(document, "Runtimes"))),
    )


async def _podman(place: Place) -> Engine | None:
    if place.path_of("podman") is None:
        return None
    done = await place.ask(("podman", "info", "--format", "json"))
    document = _json(done)
    version = str(_part(document, "version").get("Version") or "")
    return Engine(
        name="podman",
        version=version,
        rootless=_is_rootless_podman(document),
        problem="" if version else _problem(done, done.stderr if done else ""),
    )


async def _buildah(place: Place) -> str | None:
    if place.path_of("buildah") is None:
        return None
    done = await place.ask(("buildah", "--version"))
    found = re.search(r"\d+(?:\.\d+)+", done.stdout if done else "")
    return found[0] if found else "version unknown"


def _is_rootless_podman(document: Mapping[str, Any]) -> bool:
    return _part(_part(document, "host"), "security").get("rootless") is True


def _problem(done: Finished | None, said: str) -> str:
    if done is None:
        return "it can't be run, or doesn't answer"
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0][:200] if lines else _UNREADABLE


def _json(done: Finished | None) -> Mapping[str, Any]:
    try:
        document = json.loads(done.stdout) if done else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


_NOT_ASKED: Final = Probed(None, "not asked", "see network settings")


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """index, registries: what came of asking each. route: of proxies and certificates. fault: of their variables."""

    index_url: str
    index: Probed
    registries: Mapping[str, Probed]
    route: str
    fault: UsageError | None = None


async def observe_network(
    place: Place, *, index_url: str, registries: Sequence[str], mirrors: Mapping[str, str]
) -> NetworkFacts:
    """Ask all of them at the same time."""
    try:
        route = _route(place.environ)
        places = {name: endpoint_of(Reference(name, "library/none"), mirrors) for name in registries}
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


def judge_network(facts: NetworkFacts) -> tuple[Finding, ...]:
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
