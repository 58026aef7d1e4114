"""Can a machine run a lock, and if not: what is the smallest change that helps?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from envspec.base_image.gpus import OtherBuild, other_builds, spoken_builds
from envspec.facts import Facts
from envspec.facts.gpu import ComputeCapability, Runs, match_gpu, runs
from envspec.facts.rows import numeric
from envspec.machine import Machine, MachineGpu
from envspec.model import CudaVersion, Driver, GpuCode, Lock, Platform


class Verdict(Enum):
    """What can be said."""

    FITS = "fits"
    UNKNOWN = "unknown"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One question. what: `platform`, `driver` or `gpu`. change: what to do about it, empty where it fits."""

    what: str
    verdict: Verdict
    why: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class FitReport:
    """change: the smallest one that makes the machine fit, as far as it is known; empty where it fits."""

    lock: str
    machine: Machine
    findings: tuple[Finding, ...]
    change: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        order = (Verdict.DOES_NOT_FIT, Verdict.UNKNOWN)
        return next((each for each in order if any(f.verdict is each for f in self.findings)), Verdict.FITS)


def fits(lock: Lock, machine: Machine, facts: Facts) -> FitReport:
    """Ask of platform, driver and every GPU of the machine whether the lock runs there."""
    platforms = [resolution.target.platform for resolution in lock.resolutions]
    if machine.platform not in platforms:
        names = ", ".join(each.value for each in platforms)
        change = f'add "{machine.platform.value}" to [env] platforms and lock again'
        finding = Finding(
            "platform", Verdict.DOES_NOT_FIT, f"locked for {names}, the machine is {machine.platform.value}", change
        )
        return FitReport(lock.name, machine, (finding,), change)
    platform = Finding("platform", Verdict.FITS, f"locked for {machine.platform.value}")
    code = next((each for each in lock.gpu_code if each.platform is machine.platform), None)
    if lock.driver is None:
        return FitReport(lock.name, machine, (platform, Finding("gpu", Verdict.FITS, "the lock needs no GPU")))
    if not machine.platform.is_linux:
        return FitReport(lock.name, machine, (platform, _elsewhere(code, machine)))
    findings = (platform, _driver(lock.driver, machine), *_gpus(lock.driver, code, machine, facts))
    return FitReport(lock.name, machine, findings, _smallest_change(findings, code, machine, facts))


def _elsewhere(code: GpuCode | None, machine: Machine) -> Finding:
    if machine.platform is Platform.OSX_ARM64 or (code and code.variant == "cpu"):
        return Finding(
            "gpu", Verdict.FITS, f"on {machine.platform.value} the lock has CPU builds: it needs no NVIDIA GPU"
        )
    return Finding("driver", Verdict.UNKNOWN, "NVIDIA's drivers are known here for linux only")


def _driver(needed: Driver, machine: Machine) -> Finding:
    if machine.driver is None:
        return Finding(
            "driver",
            Verdict.DOES_NOT_FIT,
            machine.problem or "no NVIDIA driver",
            f"install an NVIDIA driver {needed.minimum} or newer",
        )
    if numeric(machine.driver) < numeric(needed.minimum):
        return Finding(
            "driver",
            Verdict.DOES_NOT_FIT,
            f"the driver is {machine.driver}, the lock needs {needed.minimum} or newer: {needed.why}",
            f"update the NVIDIA driver to {needed.minimum} or newer",
        )
    return Finding("driver", Verdict.FITS, f"{machine.driver} is {needed.minimum} or newer")


def _gpus(driver: Driver, code: GpuCode | None, machine: Machine, facts: Facts) -> tuple[Finding, ...]:
    if not machine.gpus:
        why = machine.problem or "the machine has no NVIDIA GPU"
        return (
            Finding("gpu", Verdict.DOES_NOT_FIT, why, "run it on a machine with an NVIDIA GPU, or name one: --gpu"),
        )
    return tuple(_gpu(gpu, driver, code, machine, facts) for gpu in machine.gpus)


def _gpu(gpu: MachineGpu, driver: Driver, code: GpuCode | None, machine: Machine, facts: Facts) -> Finding:
    capability = _capability(gpu, facts)
    if capability is None:
        return Finding(
            "gpu", Verdict.UNKNOWN, f"{gpu.name}: its compute capability is not known here", "name it: --gpu 9.0"
        )
    named = f"{gpu.name} ({capability.sm})"
    if code is None:
        return Finding("gpu", Verdict.UNKNOWN, f"{named}: the lock does not tell which GPU code its wheels hold")
    held = " ".join((*code.sm, *code.ptx)) or "none (a CPU build)"
    build = f"torch {code.version} {code.variant}"
    how = runs(capability, code.sm, code.ptx)
    if how is Runs.SASS:
        return Finding("gpu", Verdict.FITS, f"{named}: {build} holds code for it")
    if how is Runs.NOT:
        return Finding(
            "gpu", Verdict.DOES_NOT_FIT, f"{named}: {build} holds no code for it, only {held}", "another build"
        )
    if driver.bundled and machine.driver and numeric(machine.driver) < numeric(driver.bundled):
        return Finding(
            "gpu",
            Verdict.DOES_NOT_FIT,
            f"{named}: the driver must compile PTX for it, and {machine.driver} is older than the toolkit's own",
            f"update the NVIDIA driver to {driver.bundled} or newer",
        )
    return Finding("gpu", Verdict.FITS, f"{named}: the driver compiles {build} for it from PTX")


def _capability(gpu: MachineGpu, facts: Facts) -> ComputeCapability | None:
    if gpu.capability:
        return gpu.capability
    row = match_gpu(facts, gpu.name)
    return ComputeCapability.parse(row.compute_capability) if row else None


def _smallest_change(findings: tuple[Finding, ...], code: GpuCode | None, machine: Machine, facts: Facts) -> str:
    """A newer driver where that is all, with the build that does without; else the nearest torch build that the GPUs
    and the driver run, or the nearest one with the driver that it needs.
    """
    bad = [finding for finding in findings if finding.verdict is Verdict.DOES_NOT_FIT]
    if not bad:
        return ""
    if not machine.gpus:
        return "; ".join(dict.fromkeys(finding.change for finding in bad))
    capabilities = [found for found in (_capability(gpu, facts) for gpu in machine.gpus) if found]
    builds = _nearest_builds(code, capabilities, machine, facts)
    with_driver = [build for build in builds if _runs_on(machine.driver, build, facts)]
    driver_only = [finding.change for finding in bad if finding.change.startswith(("update", "install"))]
    if len(driver_only) == len(bad):
        instead = f", or lock {with_driver[0]}" if with_driver and machine.driver else ""
        return driver_only[-1] + instead
    if with_driver:
        return f"lock {with_driver[0]}"
    if builds:
        cuda = CudaVersion.parse(builds[0].variant)
        return f"lock {builds[0]} and update the NVIDIA driver to {facts.driver_of(str(cuda)).minimum} or newer"
    names = ", ".join(gpu.name for gpu in machine.gpus)
    return f"none known: no torch build known here has code for {names}"


def _nearest_builds(
    code: GpuCode | None, capabilities: list[ComputeCapability], machine: Machine, facts: Facts
) -> list[OtherBuild]:
    """Torch builds that every GPU of the machine runs, other than the locked one: the same torch first, then the
    nearest releases, newer before older, and default builds before others.
    """
    if code is None or not capabilities:
        return []
    shared = set.intersection(*({*other_builds(facts, each, machine.platform)} for each in capabilities))
    versions = [row.version for row in facts.torch]
    public = code.version.partition("+")[0]
    here = versions.index(public) if public in versions else len(versions)
    others = [build for build in shared if (build.torch, build.variant) != (public, code.variant)]

    def distance(build: OtherBuild) -> tuple[int, bool, bool, tuple[int, ...]]:
        step = versions.index(build.torch) - here
        return abs(step), step < 0, not build.default, numeric(build.variant[2:])

    return sorted(others, key=distance)


def _runs_on(driver: str | None, build: OtherBuild, facts: Facts) -> bool:
    minimum = facts.driver_of(str(CudaVersion.parse(build.variant))).minimum
    return driver is not None and numeric(driver) >= numeric(minimum)
