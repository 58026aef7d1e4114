"""`envspec doctor`: what this machine has and lacks for locking, building and running, each with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from envspec.diagnostics.doctor import gpu, services, system
from envspec.diagnostics.doctor.types import DoctorContext, DoctorFinding
from envspec.registry.reference import DOCKER_HUB


async def examine(
    context: DoctorContext,
    *,
    index_url: str,
    registries: Sequence[str] = (DOCKER_HUB,),
    mirrors: Mapping[str, str] | None = None,
) -> tuple[DoctorFinding, ...]:
    """Examine a machine; findings in the order in which a reader needs them.

    index_url: of the default index's simple pages. registries: probed, by their mirrors if there are any. Takes as long
    as the slowest probe, some 15 s if a network drops packets. Changes nothing; what can't be examined is a finding,
    never an error.
    """
    engines, builders, toolkit, uv, network = await asyncio.gather(
        services.read_engines(context),
        services.builder_findings(context),
        gpu.toolkit_version(context),
        system.uv_finding(context),
        services.network_findings(context, index_url=index_url, registries=registries, mirrors=mirrors or {}),
    )
    gpus = gpu.read_gpus(context)
    return (
        *gpu.gpu_findings(gpus),
        *services.engine_findings(engines, context, is_container=gpus.is_container),
        *builders,
        gpu.toolkit_finding(context, toolkit, gpus, engines),
        *system.system_findings(context),
        uv,
        *network,
        system.configuration_finding(context),
    )
