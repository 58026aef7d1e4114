"""Golden cases of base image and fit: a small TOML of pins and a request becomes values; values become text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from envspec.base_image.cuda import BaseImagePlan, CudaRequest
from envspec.base_image.plan import plan_platforms
from envspec.diagnostics.fit import FitReport, fits
from envspec.diagnostics.machine import Machine, described_machine
from envspec.errors import EnvspecError
from envspec.facts import Facts, load_facts
from envspec.models import BaseImage, CondaPackage, CudaVersion, Driver, GpuCodeFound, Lock, Platform, Resolution
from envspec.reasons import words
from envspec.structs import replace
from tests.support.builders.locks import lock, package, resolution, sha256, wheel


def resolutions_of(case: Mapping[str, Any]) -> tuple[Resolution, ...]:
    """`[pins.<platform>]`: name = version; `[index.<platform>]`: name = the index that the file came from.
    `[required_by.<platform>]`: name = { package = requirement }; the spec by default.
    `[conda.<platform>]`: name = "version build", of conda-forge, or "channel::version build".
    """
    made = []
    pinned, conda = case.get("pins", {}), case.get("conda", {})
    for name in dict.fromkeys((*pinned, *conda)):
        indexes = case.get("index", {}).get(name, {})
        askers = case.get("required_by", {}).get(name, {})
        packages = (
            package(
                each,
                version,
                *askers.get(each, {}).items(),
                file=wheel(each, version, index=indexes.get(each, "default")),
            )
            for each, version in pinned.get(name, {}).items()
        )
        rows = tuple(conda_row(each, given, name) for each, given in sorted(conda.get(name, {}).items()))
        made.append(replace(resolution(Platform(name), *packages), conda=rows))
    return tuple(made)


def conda_row(name: str, given: str, subdir: str) -> CondaPackage:
    """A conda package from its version and build, and its channel where that is not conda-forge."""
    channel, _, rest = given.rpartition("::")
    version, _, build = rest.partition(" ")
    filename = f"{name}-{version}-{build}.conda"
    number = int(build.rpartition("_")[2])
    url = f"https://{channel or 'conda-forge'}.example.org/{subdir}/{filename}"
    return CondaPackage(name, version, build, number, channel or "conda-forge", subdir, filename, url, sha256(filename))


def requests_of(case: Mapping[str, Any]) -> dict[Platform, CudaRequest]:
    """`[cuda]`, with the keys of `[cuda.platform.<platform>]` before its own."""
    if "cuda" not in case:
        return {}
    shared = {key: value for key, value in case["cuda"].items() if key != "platform"}
    own = case["cuda"].get("platform", {})
    return {platform: _request({**shared, **own.get(platform.value, {})}) for platform in Platform}


def _request(given: dict[str, Any]) -> CudaRequest:
    version = given.pop("version", None)
    gpus = tuple(given.pop("gpus", ()))
    return CudaRequest(version=CudaVersion.parse(version) if version else None, gpus=gpus, **given)


def facts_of(case: Mapping[str, Any]) -> Facts:
    return load_facts(case.get("facts"))


def plan_of(case: Mapping[str, Any]) -> BaseImagePlan:
    return plan_platforms(requests_of(case), resolutions_of(case), facts_of(case))


def lock_of(case: Mapping[str, Any]) -> Lock:
    plan = plan_of(case)
    gpus = (name for request in requests_of(case).values() for name in request.gpus)
    return lock(
        *resolutions_of(case),
        decisions=plan.decisions,
        base_image=plan.base_image,
        driver=plan.driver,
        gpu_code=plan.gpu_code,
        gpus=tuple(dict.fromkeys(gpus)),
        platform_cuda=plan.platform_cuda,
        cpu_builds=plan.cpu_builds,
    )


def machine_of(case: Mapping[str, Any], facts: Facts) -> Machine:
    """`[machine]`: platform, driver, gpus (names), problem; source = "read" unless the user described it."""
    given = case["machine"]
    machine = described_machine(Platform(given["platform"]), given.get("driver"), tuple(given.get("gpus", ())), facts)
    return replace(machine, problem=given.get("problem", ""), is_described=given.get("source") != "read")


def cached_of(case: Mapping[str, Any], lock: Lock) -> dict[str, GpuCodeFound]:
    """`[code]`: name = "sm_80 compute_90", as image builds read it from the wheel of each platform."""
    found = {}
    for pinned in (each for part in lock.resolutions for each in part.packages if each.name in case.get("code", {})):
        words = case["code"][pinned.name].split()
        sm, ptx = (tuple(each for each in words if each.startswith(kind)) for kind in ("sm_", "compute_"))
        found[pinned.wheel.sha256] = GpuCodeFound(sm, ptx)
    return found


def plan_as_text(case: Mapping[str, Any]) -> str:
    """The plan, or its refusal, as text."""
    try:
        return "\n".join(_plan_lines(plan_of(case))) + "\n"
    except EnvspecError as error:
        return _refusal(error)


def fit_report_as_text(case: Mapping[str, Any]) -> str:
    facts = facts_of(case)
    try:
        lock = lock_of(case)
        return "\n".join(_fit_lines(fits(lock, machine_of(case, facts), facts, cached_of(case, lock).get))) + "\n"
    except EnvspecError as error:
        return _refusal(error)


def _refusal(error: EnvspecError) -> str:
    return f"refused: {type(error).__name__}, exit code {error.exit_code}\n{error.message}\nhint: {error.hint}\n"


def _plan_lines(plan: BaseImagePlan) -> Iterator[str]:
    yield from _base_lines(plan.base_image, plan.driver)
    for each in plan.platform_cuda:
        yield f"{each.platform.value}:"
        yield from _base_lines(each.base_image, each.driver)
    for code in plan.gpu_code:
        held = " ".join((*code.sm, *code.ptx)) or "-"
        yield f"gpu code: {code.platform.value} {code.package} {code.version} {code.variant}: {held}"
    for build in plan.cpu_builds:
        instead = " of ".join(filter(None, (build.instead, build.index))) or "-"
        yield f"cpu build: {build.platform.value} {build.package} {build.version}: {instead}"
    for decision in plan.decisions:
        where = f" [{decision.platform.value}]" if decision.platform else ""
        yield f"{decision.what}{where} = {decision.value}: {words(decision.why)}"
    for warning in plan.warnings:
        yield f"warning: {warning}"


def _base_lines(image: BaseImage | None, driver: Driver | None) -> Iterator[str]:
    if image:
        yield f"image: {image.repository}:{image.tag} (cuda {image.cuda_release}, {image.flavor}, {image.os})"
        for pinned in image.digests:
            yield f"  {pinned.platform.value}: {pinned.digest or '-'} {pinned.source} {pinned.kind}".rstrip()
    else:
        yield "image: none"
    yield f"driver: {driver.minimum} (bundled {driver.bundled})" if driver else "driver: none"


def _fit_lines(report: FitReport) -> Iterator[str]:
    yield f"verdict: {report.verdict.value}"
    for finding in report.findings:
        change = f" -> {finding.change}" if finding.change else ""
        yield f"{finding.what}: {finding.verdict.value}: {finding.why}{change}"
    yield f"change: {report.change or '-'}"
