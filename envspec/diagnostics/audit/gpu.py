"""GPU code and drivers: whether what installers take runs on the machines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from envspec.diagnostics.audit.types import Audit, Finding, Rule, Severity, Taken, TorchBuild
from envspec.facts.gpu import Runs, capability_of, has_wheel, runs, without_code
from envspec.facts.tables import GpuRow, at_least, numeric
from envspec.facts.torch import Machines, builds_for
from envspec.importers.types import Source
from envspec.models import CudaVersion, GpuCodeFound
from envspec.origins import PYTORCH_INDEX

NO_CODE: Final = Rule("ENV201", Severity.ERROR, "torch has no code for a GPU")
ONLY_PTX: Final = Rule("ENV202", Severity.INFO, "torch has only PTX for a GPU, which the driver compiles")
UNKNOWN: Final = Rule("ENV203", Severity.INFO, "the GPU code of this build of torch is unknown")
EXTENSION: Final = Rule("ENV204", Severity.ERROR, "an extension's wheel has no code for a GPU")
DRIVER: Final = Rule("ENV301", Severity.ERROR, "the driver is too old for the CUDA that installers take")


def gpu_code(audit: Audit) -> Iterator[Finding]:
    """torch and the extensions of which the facts know the GPU code."""
    if audit.torch is not None and audit.torch.cuda is not None:
        yield from _torch(audit, audit.torch)
    gpus = {f"{gpu.name} ({capability_of(gpu).sm})": capability_of(gpu) for gpu, _ in audit.gpus}
    for each in (audit.taken or {}).values():
        row = audit.facts.extension(each.name, each.version.partition("+")[0])
        if row is None or each.is_sdist or not row.sm:
            continue
        if missing := without_code(gpus, GpuCodeFound(row.sm, row.ptx)):
            what = f"{each.name} {each.version} has no code for {' and '.join(missing)}"
            why = f"its wheels have code for {', '.join((*row.sm, *row.ptx))}"
            todo = f"take a release of {each.name} with code for it, or build it from source for this GPU"
            yield Finding(EXTENSION, audit.bringing(each.name), what, why, row.source, todo)


def _torch(audit: Audit, torch: TorchBuild) -> Iterator[Finding]:
    code = audit.facts.gpu_code_of(torch.row.version, torch.variant, audit.target.platform)
    if code is None:
        names = ", ".join(gpu.name for gpu, _ in audit.gpus)
        why = "no row of the facts has this build"
        yield Finding(UNKNOWN, torch.source, f"whether {torch} has code for {names} is unknown", why, "", "try it")
        return
    for gpu, named in audit.gpus:
        capability = capability_of(gpu)
        how = runs(capability, code.sm, code.ptx)
        where = "" if not named.file else f", which {named} names"
        text, why = f"{gpu.name} ({capability.sm}){where}", f"it has {', '.join((*code.sm, *code.ptx))}"
        if how is Runs.NOT:
            yield Finding(
                NO_CODE, torch.source, f"{torch} has no code for {text}", why, code.source, _for_gpu(audit, torch, gpu)
            )
        elif how is Runs.PTX:
            what = f"{torch} has only PTX for {text}"
            row = audit.facts.driver_of(str(torch.cuda))
            bundled, driver = row.bundled, audit.driver.value if audit.driver else ""
            if driver and bundled and not at_least(driver, bundled):
                what += f", which driver {driver} can't compile"
                yield Finding(DRIVER, torch.source, what, why, row.source, f"update the driver to {bundled} or newer")
                continue
            todo = f"{f'use driver {bundled} or newer, and ' if bundled else ''}expect a slow first start"
            yield Finding(ONLY_PTX, torch.source, what, why, code.source, todo)


def _for_gpu(audit: Audit, torch: TorchBuild, gpu: GpuRow) -> str:
    machines = Machines(audit.driver.value if audit.driver else None, (gpu,), audit.target.python.series)
    if found := _other_build(audit, torch, machines):
        return found
    if found := _other_build(audit, torch, replace(machines, driver=None)):
        return f"{found}, and update the driver"
    return "build torch from source: no known build has code for it"


def _other_build(audit: Audit, torch: TorchBuild, machines: Machines) -> str:
    """A build that runs on the machines: of the same release, else of the newest; empty if there is none."""
    facts, platform = audit.facts, audit.target.platform
    for row in (torch.row, *reversed(facts.torch)):
        cudas = builds_for(facts, row, platform, machines) if has_wheel(row, platform, machines.python) else []
        if cudas:
            variant = cudas[0].variant
            is_default = variant == row.default.get(platform.value)
            place = "the default index" if is_default else PYTORCH_INDEX.format(variant=variant)
            return f"take torch {row.version} for CUDA {cudas[0]} from {place}"
    return ""


def drivers(audit: Audit) -> Iterator[Finding]:
    """The CUDA of torch, of packages that load CUDA from the system, and of NVIDIA's own wheels."""
    driver = audit.driver.value if audit.driver else ""
    for what, cuda, source, fact in _built_for(audit):
        row = audit.facts.driver_of(str(cuda))
        if driver and not at_least(driver, row.minimum):
            text = f"{what}, which driver {driver} does not run"
            why = f"CUDA {cuda} needs driver {row.minimum} or newer"
            yield Finding(DRIVER, source, text, why, fact or row.source, _for_driver(audit, audit.torch, driver))


def _for_driver(audit: Audit, torch: TorchBuild | None, driver: str) -> str:
    if torch is None or torch.cuda is None:
        return "update the driver, or take a release for an older CUDA"
    gpus = tuple(gpu for gpu, _ in audit.gpus)
    other = _other_build(audit, torch, Machines(driver, gpus, audit.target.python.series))
    return f"{other}, or update the driver" if other else "update the driver"


def _built_for(audit: Audit) -> Iterator[tuple[str, CudaVersion, Source, str]]:
    """Package, its CUDA, the line that brings it, and the fact's source, where it is not the driver's."""
    if audit.torch is not None and audit.torch.cuda is not None:
        yield f"installers take {audit.torch}", audit.torch.cuda, audit.torch.source, ""
        return
    found = audit.taken or {}
    for each in found.values():
        row = audit.facts.cuda_build(each.name, each.version, audit.target.platform)
        if row is not None:
            cuda = CudaVersion.parse(row.cuda)
            yield f"{each.name} {each.version} is for CUDA {cuda}", cuda, audit.bringing(each.name), row.source
    if (runtime := cuda_runtime(found)) is not None:
        cuda = CudaVersion(*numeric(runtime.version)[:2])
        yield f"{runtime.name} is {runtime.version}", cuda, audit.bringing(runtime.name), ""


def cuda_runtime(taken: Mapping[str, Taken]) -> Taken | None:
    """NVIDIA's runtime library among what installers take: its version is that of CUDA."""
    return next((each for name, each in taken.items() if name.startswith("nvidia-cuda-runtime")), None)
