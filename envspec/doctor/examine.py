"""The whole examination: gather everything at the same time, then judge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envspec.doctor import configuration, engine, gpu, network, system, toolkit
from envspec.doctor.finding import Finding
from envspec.doctor.place import Place
from envspec.registry.reference import DOCKER_HUB


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that was looked at."""

    gpu: gpu.GpuFacts
    engines: engine.EngineFacts
    toolkit: toolkit.ToolkitFacts
    system: system.SystemFacts
    network: network.NetworkFacts
    configuration: configuration.ConfigurationFacts


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
        engine.look(place),
        toolkit.look(place),
        system.look(place),
        network.look(place, index_url=index_url, registries=registries, mirrors=mirrors or {}),
    )
    return judge(Gathered(gpu.look(place), engines, tools, parts, net, configuration.look(place)))


def judge(gathered: Gathered) -> tuple[Finding, ...]:
    """Facts to findings."""
    return (
        *gpu.judge(gathered.gpu),
        *engine.judge(gathered.engines, contained=gathered.gpu.contained),
        *toolkit.judge(gathered.toolkit, gathered.gpu, gathered.engines),
        *system.judge(gathered.system),
        *network.judge(gathered.network),
        *configuration.judge(gathered.configuration),
    )
