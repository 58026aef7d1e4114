"""`envspec doctor`: what this machine has and lacks for locking, building and running, each with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from envspec.diagnostics.doctor import machine, services
from envspec.diagnostics.doctor.types import DoctorContext, DoctorFinding, FindingState, this_machine
from envspec.errors import UsageError
from envspec.registry.reference import DOCKER_HUB
from envspec.settings import read_settings


def examine_machine(environ: Mapping[str, str]) -> tuple[DoctorFinding, ...]:
    """Examine this machine, with its user's settings."""
    from envspec.io.cache import cache_path
    from envspec.io.http_settings import default_index_url
    from envspec.io.tasks import run_interruptible

    mirrors: Mapping[str, str] = {}
    try:
        settings = read_settings(environ)
        settings.check()
        environ, mirrors = settings.environ, settings.mirrors
        found = [f"{row.setting.key} ({row.source})" for row in settings.rows() if row.source != "default"]
        own = DoctorFinding("settings of envspec", FindingState.OK, ", ".join(found) or "defaults only")
    except UsageError as error:
        own = DoctorFinding("settings of envspec", FindingState.MISSING, error.message, error.hint or "")
    context = this_machine(environ, cache_path(environ))
    return (*run_interruptible(examine(context, index_url=default_index_url(environ), mirrors=mirrors)), own)


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
    engines, toolkit, uv, network = await asyncio.gather(
        services.read_engines(context),
        machine.toolkit_version(context),
        machine.uv_finding(context),
        services.network_findings(context, index_url=index_url, registries=registries, mirrors=mirrors or {}),
    )
    gpus = machine.read_gpus(context)
    return (
        *machine.gpu_findings(gpus),
        *services.engine_findings(engines, context, is_container=gpus.is_container),
        machine.toolkit_finding(context, toolkit, gpus, engines),
        *machine.system_findings(context),
        uv,
        *network,
        machine.configuration_finding(context),
    )
