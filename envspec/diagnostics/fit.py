"""Can a machine run a lock, and if not: what is the smallest change that helps?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from envspec.base_image.cuda import PackageSource, pins_of
from envspec.base_image.gpus import OtherBuild, builds_text, other_builds
from envspec.diagnostics.machine import Machine, MachineGpu, MachineSource
from envspec.facts import Facts
from envspec.facts.gpu import ComputeCapability, Runs, first_driver, match_gpu, runs
from envspec.facts.tables import numeric
from envspec.models import CudaVersion, Driver, GpuCode, Lock, Platform


class Verdict(Enum):
    """What can be said."""

    FITS = "fits"
    NOT_ASKED = "not asked"  # whoever describes the machine left it out
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


@dataclass(frozen=True, slots=True)
class _Build:
    """The locked build of torch. channel: of conda; empty for a wheel."""

    code: GpuCode
    channel: str

    def __str__(self) -> str:
        name = f"{self.channel}'s {self.code.package}" if self.channel else self.code.package
        return f"{name} {self.code.version} {self.code.variant}"

    @property
    def public_version(self) -> str:
        return self.code.version.partition("+")[0]

    def is_of(self, torch: str) -> bool:
        """Is it a build of this release, or of this series? Facts of a channel are of series."""
        wanted = numeric(torch)
        return numeric(self.public_version)[: len(wanted)] == wanted


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
    build = _locked_build(lock, machine.platform)
    if lock.driver is None:
        return FitReport(lock.name, machine, (platform, Finding("gpu", Verdict.FITS, "the lock needs no GPU")))
    if not machine.platform.is_linux:
        return FitReport(lock.name, machine, (platform, _elsewhere(build, machine)))
    findings = (platform, _driver(lock.driver, machine), *_gpus(lock.driver, build, machine, facts))
    return FitReport(lock.name, machine, findings, _smallest_change(lock.driver, build, machine, facts))


def _locked_build(lock: Lock, platform: Platform) -> _Build | None:
    """What the lock tells of torch's GPU code; None where it does not."""
    code = next((each for each in lock.gpu_code if each.platform is platform), None)
    if code is None:
        return None
    pins = (pin for item in lock.resolutions if item.target.platform is platform for pin in pins_of(item))
    origin = next((pin.origin for pin in pins if pin.source is PackageSource.CONDA and pin.name == code.package), "")
    return _Build(code, origin)


def _elsewhere(build: _Build | None, machine: Machine) -> Finding:
    if machine.platform is Platform.OSX_ARM64 or (build and build.code.variant == "cpu"):
        return Finding(
            "gpu", Verdict.FITS, f"on {machine.platform.value} the lock has CPU builds: it needs no NVIDIA GPU"
        )
    return Finding("driver", Verdict.UNKNOWN, "NVIDIA's drivers are known here for linux only")


def _driver(needed: Driver, machine: Machine) -> Finding:
    if machine.driver is None and machine.source is MachineSource.DESCRIBED:
        return Finding("driver", Verdict.NOT_ASKED, f"no driver is given: the lock needs {needed.minimum} or newer")
    if machine.driver is None:
        why = "no NVIDIA driver is loaded" + (f" ({machine.problem})" if machine.problem else "")
        return Finding("driver", Verdict.DOES_NOT_FIT, why, _newer_driver(needed.minimum, machine))
    if not _enough(machine, needed.minimum):
        why = f"the driver is {machine.driver}, the lock needs {needed.minimum} or newer: {needed.why}"
        return Finding("driver", Verdict.DOES_NOT_FIT, why, _newer_driver(needed.minimum, machine))
    why = f"{machine.driver} is {needed.minimum} or newer"
    if needed.bundled and not _enough(machine, needed.bundled):
        # NVIDIA_REQUIRE_CUDA of the images lists old driver branches for data center GPUs only (12.8.1's Dockerfile).
        why += (
            f"; older than the {needed.bundled} that the toolkit ships with, so NVIDIA's container toolkit may refuse "
            "the image on GPUs that are not for data centers"
        )
    return Finding("driver", Verdict.FITS, why)


def _gpus(driver: Driver, build: _Build | None, machine: Machine, facts: Facts) -> tuple[Finding, ...]:
    if machine.gpus:
        return tuple(_gpu(gpu, driver, build, machine, facts) for gpu in machine.gpus)
    if machine.source is MachineSource.DESCRIBED:
        return (Finding("gpu", Verdict.NOT_ASKED, "no GPU is given"),)
    why = f"no NVIDIA GPU is visible ({machine.problem})" if machine.problem else "the machine has no NVIDIA GPU"
    return (
        Finding("gpu", Verdict.DOES_NOT_FIT, why, "run it on a machine with an NVIDIA GPU, or describe one: --gpu"),
    )


def _gpu(gpu: MachineGpu, driver: Driver, build: _Build | None, machine: Machine, facts: Facts) -> Finding:
    capability = _capability(gpu, facts)
    if capability is None:
        why = f"{gpu.name}: its compute capability is not known here"
        return Finding("gpu", Verdict.UNKNOWN, why, "name it: --gpu 9.0, or a [[facts.gpu]] row in the spec")
    named = f"{gpu.name} ({capability.sm})"
    first = first_driver(facts, capability)
    if first and not _enough(machine, first[0]):
        why = f"{named}: the driver is older than {first[0]}, the first for it (CUDA {first[1]})"
        return Finding("gpu", Verdict.DOES_NOT_FIT, why, _newer_driver(first[0], machine))
    if build is None:
        return Finding("gpu", Verdict.UNKNOWN, f"{named}: the lock does not tell which GPU code its packages hold")
    code = build.code
    how = runs(capability, code.sm, code.ptx)
    if how is Runs.NOT:
        held = f"only {' '.join((*code.sm, *code.ptx))}" if code.variant != "cpu" else "being a CPU build"
        change = builds_text(facts, capability, machine.platform, code.version, build.channel)
        return Finding("gpu", Verdict.DOES_NOT_FIT, f"{named}: {build} holds no code for it, {held}", change)
    if how is Runs.PTX and driver.bundled and not _enough(machine, driver.bundled):
        why = f"{named}: the driver must compile PTX for it, and is older than the toolkit's own"
        return Finding("gpu", Verdict.DOES_NOT_FIT, why, _newer_driver(driver.bundled, machine))
    why = f"{build} holds code for it" if how is Runs.SASS else f"the driver compiles {build} for it from PTX"
    return Finding("gpu", Verdict.FITS, f"{named}: {why}")


def _capability(gpu: MachineGpu, facts: Facts) -> ComputeCapability | None:
    if gpu.capability:
        return gpu.capability
    row = match_gpu(facts, gpu.name)
    return ComputeCapability.parse(row.compute_capability) if row else None


def _smallest_change(needed: Driver, build: _Build | None, machine: Machine, facts: Facts) -> str:
    """A newer driver where that is all (with the build that does without one), else the nearest torch build that GPUs
    and driver run, else the nearest one with the driver that it needs; empty where nothing has to change.
    """
    gpus = [found for found in (_capability(gpu, facts) for gpu in machine.gpus) if found]
    builds = _nearest_builds(build, gpus, machine, facts)
    as_is = [other for other in builds if _enough(machine, _driver_for(other, gpus, facts))]
    if build is None or _worst(gpus, build.code) is not Runs.NOT:
        own = needed.bundled if build and _worst(gpus, build.code) is Runs.PTX else needed.minimum
        driver = _newest([own or needed.minimum, *_first_drivers(gpus, facts)])
        if not machine.gpus and machine.source is MachineSource.READ:
            return (
                f"run it on a machine with an NVIDIA GPU and driver {driver} or newer, or describe one: --gpu, --driver"
            )
        if _enough(machine, driver):
            return ""
        return _newer_driver(driver, machine) + (f", or lock {as_is[0]}" if as_is and machine.driver else "")
    if as_is:
        return f"lock {as_is[0]}"
    if builds:
        driver = _driver_for(builds[0], gpus, facts) or needed.minimum
        return f"lock {builds[0]}, and {_newer_driver(driver, machine)}"
    return f"none known: no known torch build has code for {', '.join(gpu.name for gpu in machine.gpus)}"


def _newer_driver(version: str, machine: Machine) -> str:
    verb = "update the NVIDIA driver to" if machine.driver else "install an NVIDIA driver"
    return f"{verb} {version} or newer"


def _worst(gpus: list[ComputeCapability], code: GpuCode) -> Runs:
    """How the GPU that fares worst runs the code; SASS where there is none."""
    how = {runs(each, code.sm, code.ptx) for each in gpus}
    return next((each for each in (Runs.NOT, Runs.PTX) if each in how), Runs.SASS)


def _nearest_builds(
    build: _Build | None, capabilities: list[ComputeCapability], machine: Machine, facts: Facts
) -> list[OtherBuild]:
    """Torch builds of the locked one's origin that every GPU of the machine runs: the same torch first, then the
    nearest releases, newer before older, and default builds before others.
    """
    if build is None or not capabilities:
        return []
    shared = other_builds(facts, capabilities, machine.platform, build.channel)
    here = next((other.torch for other in shared if build.is_of(other.torch)), build.public_version)
    mine = build.code.variant
    known = {*(row.version for row in facts.torch), *(other.torch for other in shared), here}
    versions = sorted(known, key=numeric)
    others = [other for other in shared if (other.torch, other.variant) != (here, mine)]

    def distance(other: OtherBuild) -> tuple[int, bool, bool, tuple[int, ...]]:
        step = versions.index(other.torch) - versions.index(here)
        return abs(step), step < 0, not other.default, numeric(other.variant[2:])

    return sorted(others, key=distance)


def _driver_for(build: OtherBuild, gpus: list[ComputeCapability], facts: Facts) -> str | None:
    """The oldest driver for a build on these GPUs; None where code is compiled from PTX and nobody knows the toolkit's
    own driver.
    """
    row = facts.driver_of(str(CudaVersion.parse(build.variant)))
    own = row.bundled if build.how is Runs.PTX else row.minimum
    return _newest([own, *_first_drivers(gpus, facts)]) if own else None


def _first_drivers(gpus: list[ComputeCapability], facts: Facts) -> list[str]:
    return [first[0] for first in (first_driver(facts, each) for each in gpus) if first]


def _newest(drivers: list[str]) -> str:
    return max(drivers, key=numeric)


def _enough(machine: Machine, needed: str | None) -> bool:
    """Is the driver new enough? One that nobody was asked for is taken to be."""
    if machine.driver is None:
        return machine.source is MachineSource.DESCRIBED
    return needed is not None and numeric(machine.driver) >= numeric(needed)
