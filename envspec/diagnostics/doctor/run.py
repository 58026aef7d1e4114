"""The whole examination: gather everything at the same time, then judge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envspec.diagnostics.doctor import gpu, services, system
from envspec.diagnostics.doctor import gpu as toolkit
from envspec.diagnostics.doctor import system as configuration
from envspec.diagnostics.doctor.types import Finding, Place, State, this_place
from envspec.errors import UsageError
from envspec.registry.reference import DOCKER_HUB
from envspec.settings import read_settings


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that was looked at."""

    gpu: gpu.GpuFacts
    engines: services.EngineFacts
    toolkit: toolkit.ToolkitFacts
    system: system.SystemFacts
    network: services.NetworkFacts
    configuration: configuration.ConfigurationFacts


def examine_machine(environ: Mapping[str, str]) -> tuple[Finding, ...]:
    """What this machine has and lacks, with its user's settings."""
    from envspec.io.cache import cache_place
    from envspec.io.http_settings import default_index_url
    from envspec.io.tasks import run_to_end

    mirrors: Mapping[str, str] = {}
    try:
        settings = read_settings(environ)
        settings.check()
        environ, mirrors = settings.environ, settings.mirrors
        found = [f"{row.setting.key} ({row.source})" for row in settings.rows() if row.source != "default"]
        own = Finding("settings of envspec", State.OK, ", ".join(found) or "defaults only")
    except UsageError as error:
        own = Finding("settings of envspec", State.MISSING, error.message, error.hint or "")
    place = this_place(environ, cache_place(environ))
    return (*run_to_end(examine(place, index_url=default_index_url(environ), mirrors=mirrors)), own)


async def examine(
    place: Place,
    *,
    index_url: str,
    registries: Sequence[str] = (DOCKER_HUB,),
    mirrors: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """What `place` has and lacks, in the order in which a reader needs it.

    index_url: of the default index's simple pages. registries: asked whether they answer, by their mirrors if named.
    Takes as long as the slowest answer, some 15 s where a network swallows packets. Nothing is changed, and a thing
    that can't be looked at is a finding, never an error.
    """
    engines, tools, parts, net = await asyncio.gather(
        services.observe_engines(place),
        toolkit.observe_toolkit(place),
        system.observe_system(place),
        services.observe_network(place, index_url=index_url, registries=registries, mirrors=mirrors or {}),
    )
    return judge(
        Gathered(gpu.observe_gpus(place), engines, tools, parts, net, configuration.observe_configuration(place))
    )


def judge(gathered: Gathered) -> tuple[Finding, ...]:
    """Facts to findings."""
    return (
        *gpu.judge_gpus(gathered.gpu),
        *services.judge_engines(gathered.engines, contained=gathered.gpu.contained),
        *toolkit.judge_toolkit(gathered.toolkit, gathered.gpu, gathered.engines),
        *system.judge_system(gathered.system),
        *services.judge_network(gathered.network),
        *configuration.judge_configuration(gathered.configuration),
    )
