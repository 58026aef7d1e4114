"""Whether a machine can run a lock, and if not, the smallest change that helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct

from envspec.base_image.cpu_builds import cpu_build_text, cuda_instead
from envspec.base_image.cuda import PackageSource, pins_of, read_pins
from envspec.base_image.gpus import OtherBuild, builds_text, other_builds
from envspec.context import comma_separated
from envspec.diagnostics.explain import CachedGpuCode
from envspec.diagnostics.machine import Machine, MachineGpu
from envspec.facts import Facts
from envspec.facts.gpu import (
    ComputeCapability,
    Runs,
    capabilities_of,
    capability_of,
    first_driver,
    first_drivers,
    has_other_kernels,
    is_for_data_centers,
    match_gpu,
    newest_driver,
    runs,
    without_code,
)
from envspec.facts.tables import at_least, numeric
from envspec.models import CpuBuild, Driver, GpuCode, GpuCodeFound, Lock, Package, Platform, Resolution
from envspec.origins import PYTORCH_INDEX
from envspec.reasons import words
from envspec.structs import replace


class FitVerdict(Enum):
    """Result of a comparison."""

    FITS = "fits"
    NOT_CHECKED = "not checked"  # the description of the machine has no value
    UNKNOWN = "unknown"
    DOES_NOT_FIT = "does not fit"


class FitFinding(Struct, frozen=True):
    """what: `platform`, `driver` or `gpu`. change: what would make it fit."""

    what: str
    verdict: FitVerdict
    why: str
    change: str = ""


class FitReport(Struct, frozen=True):
    """change: the smallest one that makes the machine fit, if one is known; empty if it fits."""

    lock: str
    machine: Machine
    findings: tuple[FitFinding, ...]
    change: str = ""

    @property
    def verdict(self) -> FitVerdict:
        """The worst of the findings."""
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in (FitVerdict.DOES_NOT_FIT, FitVerdict.UNKNOWN):
            if verdict in verdicts:
                return verdict
        return FitVerdict.FITS


#: What computes on GPUs, by the names on PyPI.
_FRAMEWORKS: Final = frozenset({"torch", "jaxlib", "tensorflow"})


class _TorchBuild(Struct, frozen=True):
    """The locked build of torch.

    channel: of conda; empty for a wheel.
    gpus: those of the spec, by name.
    is_adopted: whether another tool locked it.
    """

    code: GpuCode
    channel: str
    gpus: Mapping[str, ComputeCapability]
    is_adopted: bool = False

    def __str__(self) -> str:
        name = f"{self.channel}'s {self.code.package}" if self.channel else self.code.package
        return f"{name} {self.code.version} {self.code.variant}"

    @property
    def public_version(self) -> str:
        return self.code.version.partition("+")[0]

    def is_of(self, torch: str) -> bool:
        """Whether it is a build of this release, or of this series: facts about channels are of series."""
        release = numeric(torch)
        return numeric(self.public_version)[: len(release)] == release


class _CodeRead(Struct, frozen=True):
    """GPU code that was read from a package's wheel."""

    package: Package
    code: GpuCodeFound

    def __str__(self) -> str:
        return f"{self.package.name} {self.package.version}"

    def runs_on(self, capability: ComputeCapability) -> Runs:
        return runs(capability, self.code.sm, self.code.ptx)

    def is_code_for(self, capability: ComputeCapability) -> bool:
        """Whether it shows that the environment has code for a GPU."""
        # NVIDIA's libraries have code for every GPU; what calls them may not.
        is_nvidias = self.package.name.startswith("nvidia-")
        return not is_nvidias and self.runs_on(capability) is not Runs.NOT


def fits(lock: Lock, machine: Machine, facts: Facts, cached: CachedGpuCode = lambda _: None) -> FitReport:
    """Compare platform, driver and every GPU of the machine with the lock. cached: the GPU code read from a wheel."""
    for part in lock.resolutions:
        if part.target.platform is machine.platform:
            locked = FitFinding("platform", FitVerdict.FITS, f"locked for {machine.platform.value}")
            findings, change = _part_fits(lock.on(machine.platform), part, machine, facts, cached)
            return FitReport(lock.name, machine, (locked, *findings), change)
    names = comma_separated(lock.platforms)
    change = f'add "{machine.platform.value}" to [env] platforms and lock again'
    why = f"locked for {names}, the machine is {machine.platform.value}"
    return FitReport(lock.name, machine, (FitFinding("platform", FitVerdict.DOES_NOT_FIT, why, change),), change)


def _part_fits(
    lock: Lock, part: Resolution, machine: Machine, facts: Facts, cached: CachedGpuCode
) -> tuple[tuple[FitFinding, ...], str]:
    """What is found of the driver and the GPUs, and the smallest change. part: the machine's platform."""
    has_cuda = read_pins(part, facts).has_cuda
    cpu_builds = [each for each in lock.cpu_builds if each.platform is machine.platform]
    needs_gpu = lock.driver is not None
    if not machine.platform.is_linux:
        # Of Windows, facts do not say of every package whether it uses CUDA.
        is_unknown = machine.platform is Platform.WIN_64 and lock.is_for_gpus and not cpu_builds
        needs_gpu = has_cuda or is_unknown
    if not needs_gpu:
        gpus = tuple(_unknown_builds(part)) or _without_cuda(lock, cpu_builds, machine)
        return gpus, _first_change(gpus)
    build = _locked_build(lock, part, facts)
    # A GPU's own finding is about torch.
    of_torch = build.code.package if build else ""
    notes = [_cpu_build(each) for each in cpu_builds if each.package != of_torch]
    if lock.driver is None or not machine.platform.is_linux:
        driver = FitFinding("driver", FitVerdict.UNKNOWN, "envspec has facts about NVIDIA's drivers for Linux only")
        return (driver, *notes), ""
    driver = _driver(lock.driver, machine, facts)
    read = tuple(_code_read(part, of_torch, cached))
    if cpu_builds and not (has_cuda or build or read):
        gpus = _without_cuda(lock, cpu_builds, machine)
        return (driver, *gpus), driver.change or _first_change(gpus)
    others = tuple(_others(read, lock.driver, machine, facts))
    change = _smallest_change(lock.driver, build, machine, facts) or _first_change(others)
    return (driver, *_gpus(lock.driver, build, read, machine, facts), *others, *notes), change


def _unknown_builds(part: Resolution) -> Iterator[FitFinding]:
    """Frameworks of other indexes than PyPI's and PyTorch's, if nothing tells what they are built for."""
    if part.target.platform is Platform.OSX_ARM64:
        # No CUDA since 10.2 (NVIDIA, CUDA Toolkit 11.0 release notes).
        return
    for pin in pins_of(part):
        is_known = pin.build is not None or pin.is_default_index or pin.source is not PackageSource.PYPI
        if pin.name in _FRAMEWORKS and not is_known:
            why = f"what {pin.name} {pin.version} of {pin.origin} is built for is unknown"
            yield FitFinding("gpu", FitVerdict.UNKNOWN, why, 'state its CUDA: [cuda] version = "13.0"')


def _first_change(findings: Iterable[FitFinding]) -> str:
    for each in findings:
        if each.verdict is not FitVerdict.FITS:
            return each.change
    return ""


def _locked_build(lock: Lock, part: Resolution, facts: Facts) -> _TorchBuild | None:
    """torch's GPU code; None if it is not in the lock."""
    for code in lock.gpu_code:
        if code.platform is part.target.platform:
            pins = [pin for pin in pins_of(part) if pin.source is PackageSource.CONDA and pin.name == code.package]
            channel = pins[0].origin if pins else ""
            return _TorchBuild(code, channel, capabilities_of(facts, lock.gpus), lock.is_adopted)
    return None


def _without_cuda(lock: Lock, cpu_builds: Sequence[CpuBuild], machine: Machine) -> tuple[FitFinding, ...]:
    """Of a platform on which nothing uses CUDA: a GPU is no use there, if the spec has `[cuda]`."""
    findings = []
    for build in cpu_builds:
        finding = _cpu_build(build)
        if machine.gpus:
            why = f"{machine.gpu_names}: {finding.why}"
            finding = replace(finding, verdict=FitVerdict.DOES_NOT_FIT, why=why)
        findings.append(finding)
    if findings:
        return tuple(findings)
    why = "the lock needs no GPU"
    if lock.driver and machine.platform is Platform.OSX_ARM64:
        why = f"on {machine.platform.value} the lock has CPU builds: it needs no NVIDIA GPU"
    return (FitFinding("gpu", FitVerdict.FITS, why),)


def _cpu_build(build: CpuBuild) -> FitFinding:
    return FitFinding("gpu", FitVerdict.FITS, cpu_build_text(build), cuda_instead(build))


def _driver(needed: Driver, machine: Machine, facts: Facts) -> FitFinding:
    if machine.driver is None and machine.is_described:
        why = f"no driver is given: the lock needs {needed.minimum} or newer"
        return FitFinding("driver", FitVerdict.NOT_CHECKED, why)
    if machine.driver is None:
        why = "no NVIDIA driver is loaded"
        if machine.problem:
            why += f" ({machine.problem})"
        return FitFinding("driver", FitVerdict.DOES_NOT_FIT, why, _newer_driver(needed.minimum, machine))
    if not _is_enough(machine, needed.minimum):
        why = f"the driver is {machine.driver}, the lock needs {needed.minimum} or newer: {words(needed.why)}"
        return FitFinding("driver", FitVerdict.DOES_NOT_FIT, why, _newer_driver(needed.minimum, machine))
    why = f"{machine.driver} is {needed.minimum} or newer"
    if numeric(machine.driver) < numeric(needed.minimum):
        why = f"{machine.driver} counts as the newest driver of its branch: it is {needed.minimum} or newer"
    # NVIDIA_REQUIRE_CUDA of the images lists old driver branches for data center GPUs only (12.8.1's Dockerfile).
    others = [gpu.name for gpu in machine.gpus if not is_for_data_centers(facts, gpu.name)]
    if needed.bundled and not _is_enough(machine, needed.bundled) and (others or not machine.gpus):
        where = "GPUs that are not for data centers"
        if others and all(is_for_data_centers(facts, name) is False for name in others):
            where = " and ".join(dict.fromkeys(others))
        why += (
            f"; older than the {needed.bundled} that the toolkit ships with, so NVIDIA's container toolkit may refuse "
            f"the image on {where}"
        )
    return FitFinding("driver", FitVerdict.FITS, why)


def _gpus(
    driver: Driver, build: _TorchBuild | None, read: Sequence[_CodeRead], machine: Machine, facts: Facts
) -> tuple[FitFinding, ...]:
    if machine.gpus:
        return tuple(_gpu(gpu, driver, build, read, machine, facts) for gpu in machine.gpus)
    if machine.is_described:
        return (FitFinding("gpu", FitVerdict.NOT_CHECKED, "no GPU is given"),)
    why = f"no NVIDIA GPU is visible ({machine.problem})" if machine.problem else "the machine has no NVIDIA GPU"
    change = "run it on a machine with an NVIDIA GPU, or describe one: --gpu"
    return (FitFinding("gpu", FitVerdict.DOES_NOT_FIT, why, change),)


def _gpu(
    gpu: MachineGpu,
    driver: Driver,
    build: _TorchBuild | None,
    read: Sequence[_CodeRead],
    machine: Machine,
    facts: Facts,
) -> FitFinding:
    capability = _capability(gpu, facts)
    if capability is None:
        why = f"{gpu.name}: its compute capability is unknown"
        return FitFinding("gpu", FitVerdict.UNKNOWN, why, "name it: --gpu 9.0, or add a [[facts.gpu]] row to the spec")
    named = f"{gpu.name} ({capability.sm})"
    first = first_driver(facts, capability)
    if first and not _is_enough(machine, first.version):
        why = f"{named}: the driver is older than {first.version}, the first for it, of CUDA {first.cuda}"
        why = f"{why} [{first.source}]"
        return FitFinding("gpu", FitVerdict.DOES_NOT_FIT, why, _newer_driver(first.version, machine))
    if build is None:
        able = [str(each) for each in read if each.is_code_for(capability)]
        if able:
            return FitFinding("gpu", FitVerdict.FITS, f"{named}: code for it is in {', '.join(able)}")
        return FitFinding("gpu", FitVerdict.UNKNOWN, f"{named}: the lock does not list the GPU code of its packages")
    code = build.code
    how = runs(capability, code.sm, code.ptx)
    if how is Runs.NOT:
        existing = f"only {' '.join((*code.sm, *code.ptx))}"
        if code.variant == "cpu":
            existing = "being a CPU build"
        change = _builds_for(capability, build, machine, facts)
        why = f"{named}: {build} has no code for it, {existing}"
        return FitFinding("gpu", FitVerdict.DOES_NOT_FIT, why, change)
    if how is Runs.PTX and driver.bundled and not _is_enough(machine, driver.bundled):
        why = f"{named}: the driver must compile PTX for it, and is older than the toolkit's own"
        return FitFinding("gpu", FitVerdict.DOES_NOT_FIT, why, _newer_driver(driver.bundled, machine))
    why = f"{build} has code for it" if how is Runs.SASS else f"the driver compiles {build} for it from PTX"
    if first and machine.driver and numeric(machine.driver) < numeric(first.version):
        why = f"{why}; it needs {first.version} or newer of driver branch {machine.driver}"
    return FitFinding("gpu", FitVerdict.FITS, f"{named}: {why}")


def _builds_for(capability: ComputeCapability, build: _TorchBuild, machine: Machine, facts: Facts) -> str:
    """The builds with code for a GPU and those of the spec, if there are any, else those for this GPU."""
    shared = tuple(other_builds(facts, [capability, *build.gpus.values()], machine.platform, build.channel))
    if shared and build.gpus:
        code_for = f"{capability.sm} and the GPUs of the spec"
        return builds_text(shared, code_for, facts, build.code.version, build.channel)
    alone = tuple(other_builds(facts, [capability], machine.platform, build.channel))
    text = builds_text(alone, capability.sm, facts, build.code.version, build.channel)
    if alone and build.gpus:
        text += f"; none of them has code for {' and '.join(build.gpus)}"
    return text


def _code_read(part: Resolution, torch: str, cached: CachedGpuCode) -> Iterator[_CodeRead]:
    """A platform's wheels beside torch's that image builds found GPU code in. torch: its name; empty without one."""
    for package in part.packages:
        if package.name == torch or has_other_kernels(package.name):
            continue
        if (code := cached(package.wheel.sha256)) and (code.sm or code.ptx):
            yield _CodeRead(package, code)


def _others(read: Sequence[_CodeRead], driver: Driver, machine: Machine, facts: Facts) -> Iterator[FitFinding]:
    """Wheels beside torch's that a GPU runs nothing of."""
    gpus = [(gpu.name, found) for gpu in machine.gpus if (found := _capability(gpu, facts))]
    for each in read:
        is_extension = facts.extension(each.package.name) is not None
        for name, capability in gpus:
            how = each.runs_on(capability)
            if is_extension and how is Runs.PTX and driver.bundled and not _is_enough(machine, driver.bundled):
                why = f"{name} ({capability.sm}): the driver must compile {each} for it from PTX, and is older than "
                why += "the toolkit's own"
                change = _newer_driver(driver.bundled, machine)
                yield FitFinding("gpu", FitVerdict.DOES_NOT_FIT, why, change)
            if how is not Runs.NOT:
                continue
            why = f"{name} ({capability.sm}): {each} has no code for it, only "
            why += " ".join((*each.code.sm, *each.code.ptx))
            if is_extension:
                change = f"require another release of {each.package.name}, or build it for {capability.sm}"
                yield FitFinding("gpu", FitVerdict.DOES_NOT_FIT, why, change)
            else:
                # NVIDIA's libraries have kernels of their own for some operations on some GPUs only.
                why += ": what it computes on this GPU fails, or is left to other libraries"
                yield FitFinding("gpu", FitVerdict.FITS, why)


def _capability(gpu: MachineGpu, facts: Facts) -> ComputeCapability | None:
    if gpu.capability:
        return gpu.capability
    row = match_gpu(facts, gpu.name)
    return capability_of(row) if row else None


def _smallest_change(needed: Driver, build: _TorchBuild | None, machine: Machine, facts: Facts) -> str:
    """A newer driver if that is enough (or the build that needs none), else the nearest torch build that GPUs and
    driver run, else the nearest one with the driver that it needs; empty if nothing has to change.
    """
    if not machine.gpus and not machine.is_described:
        where = f"a machine with an NVIDIA GPU and driver {needed.minimum} or newer"
        return f"run it on {where}, or describe one: --gpu, --driver"
    gpus = list(filter(None, (_capability(gpu, facts) for gpu in machine.gpus)))
    if build is None:
        return _driver_change(needed.minimum, gpus, machine, facts)
    builds = _nearest_builds(build, [*gpus, *build.gpus.values()], machine, facts)
    builds = builds or _nearest_builds(build, gpus, machine, facts)
    locks = ""
    for other in builds:
        if _is_enough(machine, other.oldest_driver(facts, gpus)):
            locks = _lock(other, build, machine, facts)
            break
    how = {runs(each, build.code.sm, build.code.ptx) for each in gpus}
    if Runs.NOT not in how:
        minimum = needed.minimum
        if Runs.PTX in how and needed.bundled:
            minimum = needed.bundled
        change = _driver_change(minimum, gpus, machine, facts)
        if change and locks and machine.driver:
            change += f", or {locks}"
        return change
    if locks:
        return locks
    if builds:
        driver = builds[0].oldest_driver(facts, gpus) or needed.minimum
        return f"{_newer_driver(driver, machine)}, and {_lock(builds[0], build, machine, facts)}"
    return f"none: no torch build in envspec's facts has code for {machine.gpu_names}"


def _driver_change(minimum: str, gpus: Sequence[ComputeCapability], machine: Machine, facts: Facts) -> str:
    """The driver that the locked build needs; empty if the machine's is enough. minimum: for its CUDA."""
    driver = newest_driver([minimum, *(first.version for first in first_drivers(facts, gpus))])
    return "" if _is_enough(machine, driver) else _newer_driver(driver, machine)


def _lock(other: OtherBuild, build: _TorchBuild, machine: Machine, facts: Facts) -> str:
    """`lock torch 2.9.1 cu126 (...)`; as a variant if a GPU of the spec does not run it."""
    if build.is_adopted:
        origin = "PyPI" if other.default else PYTORCH_INDEX.format(variant=other.variant)
        return f"lock torch {other.torch} from {origin}, with the tool that wrote the lock"
    text = f"lock {other}"
    code = facts.gpu_code_of(other.torch, other.variant, machine.platform, other.channel)
    if code and (lost := without_code(build.gpus, GpuCodeFound(code.sm, code.ptx))):
        text += f" as a variant ([variants.NAME]): it has no code for {' and '.join(lost)}"
    return text


def _newer_driver(version: str, machine: Machine) -> str:
    verb = "update the NVIDIA driver to" if machine.driver else "install an NVIDIA driver"
    return f"{verb} {version} or newer"


def _nearest_builds(
    build: _TorchBuild, capabilities: list[ComputeCapability], machine: Machine, facts: Facts
) -> list[OtherBuild]:
    """Torch builds of the locked one's origin that run on every GPU of the machine: the same torch first, then the
    nearest releases, newer before older, and default builds before others.
    """
    if not capabilities:
        return []
    shared = tuple(other_builds(facts, capabilities, machine.platform, build.channel))
    releases = [other.torch for other in shared]
    own = [*filter(build.is_of, releases), build.public_version][0]
    versions = sorted({*(row.version for row in facts.torch), *releases, own}, key=numeric)
    others = [other for other in shared if (other.torch, other.variant) != (own, build.code.variant)]

    def distance(other: OtherBuild) -> tuple[int, bool, bool, tuple[int, ...]]:
        step = versions.index(other.torch) - versions.index(own)
        return abs(step), step < 0, not other.default, numeric(other.variant[2:])

    return sorted(others, key=distance)


def _is_enough(machine: Machine, needed: str | None) -> bool:
    """Whether the driver is new enough; true if the description has none."""
    if machine.driver is None:
        return machine.is_described
    return needed is not None and at_least(machine.driver, needed)
