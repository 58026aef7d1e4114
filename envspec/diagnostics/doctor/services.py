"""Container engine and network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from envspec.credentials import shown
from envspec.diagnostics.doctor.types import DoctorContext, DoctorFinding, FindingState, ProbeResult
from envspec.documents import table_of
from envspec.errors import UsageError
from envspec.io.http_settings import ca_bundle, proxies
from envspec.io.process import Finished
from envspec.registry.reference import Reference, endpoint_of

_SETTINGS: Final = "network settings"
_NOT_PROBED: Final = ProbeResult(None, "not checked", f"see {_SETTINGS}")


class EngineStatus(Struct, frozen=True):
    """version: the client's. server: the daemon's, None if none responds. problem: why containers can't be started."""

    name: str
    version: str = ""
    server: str | None = None
    rootless: bool = False
    problem: str = ""
    runtimes: tuple[str, ...] = ()


async def read_engines(context: DoctorContext) -> tuple[EngineStatus, ...]:
    """The installed engines."""
    docker, podman = await asyncio.gather(_docker(context), _podman(context))
    return tuple(filter(None, (docker, podman)))


def engine_findings(
    engines: Sequence[EngineStatus], context: DoctorContext, *, is_container: bool
) -> tuple[DoctorFinding, ...]:
    """One for each installed engine; one if there is none. is_container: envspec runs in a container."""
    if not engines and is_container:
        return (DoctorFinding("container engine", FindingState.NOT_APPLICABLE, "in a container"),)
    if not engines:
        todo = "install docker or podman to build and run images; locking needs no engine"
        return (DoctorFinding("container engine", FindingState.MISSING, "neither docker nor podman", todo),)
    return tuple(_engine(engine, context) for engine in engines)


def _engine(engine: EngineStatus, context: DoctorContext) -> DoctorFinding:
    if engine.problem:
        version = f"{engine.version}: " if engine.version else ""
        return DoctorFinding(engine.name, FindingState.WARNING, f"{version}{engine.problem}", _todo(engine, context))
    text = engine.version or "version unknown"
    if engine.server:
        text += f", daemon {engine.server}"
    if engine.rootless:
        text += ", rootless"
    return DoctorFinding(engine.name, FindingState.OK, text)


def _todo(engine: EngineStatus, context: DoctorContext) -> str:
    problem = engine.problem.lower()
    if engine.name == "docker" and "permission denied" in problem:
        return "add your user to the group docker and log in again, or use docker rootless or podman"
    if engine.name != "docker" or "connect" not in problem:
        return f"see `{engine.name} info`"
    if context.environ.get("DOCKER_HOST"):
        return "DOCKER_HOST names another daemon: start it, correct the variable, or unset it"
    if context.system in {"darwin", "win32"}:
        return "start Docker Desktop"
    return "start the daemon (`systemctl start docker`), or, in a container, mount its socket"


async def _docker(context: DoctorContext) -> EngineStatus | None:
    if context.path_of("docker") is None:
        return None
    done = await context.run(("docker", "info", "--format", "{{json .}}"))
    document = _json(done)
    if shim := table_of(document, "version").get("Version"):
        # podman-docker: a `docker` that is podman
        return EngineStatus("docker", f"podman's, {shim}", rootless=_is_rootless_podman(document))
    server = str(document.get("ServerVersion") or "") or None
    errors, options = document.get("ServerErrors"), document.get("SecurityOptions")
    # Of an unknown version, both may be anything.
    error = str(errors[0]) if isinstance(errors, list) and errors else None
    return EngineStatus(
        name="docker",
        version=str(table_of(document, "ClientInfo").get("Version") or ""),
        server=server,
        rootless=isinstance(options, list) and any("rootless" in str(option) for option in options),
        problem="" if server else _problem(done, error),
        runtimes=tuple(sorted(table_of(document, "Runtimes"))),
    )


async def _podman(context: DoctorContext) -> EngineStatus | None:
    if context.path_of("podman") is None:
        return None
    done = await context.run(("podman", "info", "--format", "json"))
    document = _json(done)
    version = str(table_of(document, "version").get("Version") or "")
    problem = "" if version else _problem(done, None)
    return EngineStatus("podman", version, rootless=_is_rootless_podman(document), problem=problem)


def _is_rootless_podman(document: Mapping[str, Any]) -> bool:
    return table_of(document, "host", "security").get("rootless") is True


def _problem(done: Finished | None, error: str | None) -> str:
    """The first line of an error, by default of stderr."""
    if done is None:
        return "it can't be run, or does not respond"
    text = (done.stderr if error is None else error).strip() or "its output can't be read"
    return text.splitlines()[0].strip()[:200]


def _json(done: Finished | None) -> Mapping[str, Any]:
    if done is None:
        return {}
    try:
        return table_of(json.loads(done.stdout))
    except (ValueError, RecursionError):
        return {}


async def network_findings(
    context: DoctorContext, *, index_url: str, registries: Sequence[str], mirrors: Mapping[str, str]
) -> tuple[DoctorFinding, ...]:
    """Index, registries, then proxies and certificates."""
    try:
        route = _route(context.environ)
        endpoints = {name: endpoint_of(Reference(name, "library/none"), mirrors) for name in registries}
    except UsageError as error:
        settings = DoctorFinding(_SETTINGS, FindingState.WARNING, error.message, error.hint or "")
        return (_index(index_url, _NOT_PROBED), *(_registry(name, _NOT_PROBED) for name in registries), settings)
    index, *probed = await asyncio.gather(
        context.probe("HEAD", index_url), *(context.probe("GET", f"{each.base}/") for each in endpoints.values())
    )
    findings = [_index(index_url, index)]
    for (name, endpoint), result in zip(endpoints.items(), probed, strict=True):
        by = "" if endpoint.registry == name else f" by {endpoint.registry}"
        findings.append(_registry(f"{name}{by}", result))
    return (*findings, DoctorFinding(_SETTINGS, FindingState.OK, route))


def _index(url: str, result: ProbeResult) -> DoctorFinding:
    what = "package index"
    if result.status is None:
        return DoctorFinding(what, FindingState.WARNING, result.problem, result.todo)
    # Some proxies serve the pages of projects and not their list, or no HEAD.
    if result.status < 400 or result.status in {404, 405}:
        return DoctorFinding(what, FindingState.OK, f"{shown(url)} answers")
    todo = "try again later; until then `envspec lock --offline` repeats what this machine has resolved before"
    if result.status in {401, 403, 407}:
        todo = "the index or a proxy requires credentials; name a mirror in ENVSPEC_DEFAULT_INDEX if there is one"
    return DoctorFinding(what, FindingState.WARNING, f"{shown(url)}: HTTP {result.status}", todo)


def _registry(name: str, result: ProbeResult) -> DoctorFinding:
    what = f"registry {name}"
    if result.status is None:
        todo = result.todo
        if result is not _NOT_PROBED:
            todo += f' (without it digests stay recorded or unresolved; [registry.mirrors] "{name}" may name a mirror)'
        return DoctorFinding(what, FindingState.WARNING, result.problem, todo)
    # A registry of the distribution API identifies itself by 401.
    if result.status in {200, 401}:
        return DoctorFinding(what, FindingState.OK, "answers")
    todo = "check that it is a registry: a proxy may answer instead of it"
    return DoctorFinding(what, FindingState.WARNING, f"HTTP {result.status}", todo)


def _route(environ: Mapping[str, str]) -> str:
    """Proxies and certificates; UsageError for an invalid variable."""
    routes, bundle = proxies(environ), ca_bundle(environ)
    ways = [f"{scheme} by {shown(url)}" for scheme, url in sorted(routes.by_scheme.items())] or ["no proxy"]
    if routes.by_scheme and routes.exempt:
        ways.append(f"not for {', '.join(routes.exempt)}")
    return "; ".join([*ways, f"certificates of {bundle}" if bundle else "the system's certificates"])
