"""GPU code and drivers: whether what installers choose runs on the machines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from envspec.diagnostics.audit.types import Audit, Finding, InstalledTorch, Rule, Severity
from envspec.facts.gpu import (
    Runs,
    capability_of,
    first_drivers,
    gpus_without_code,
    has_wheel,
    oldest_driver,
    runs,
    unsupported,
)
from envspec.facts.tables import GpuRow, at_least, numeric
from envspec.facts.torch import Machines, builds_for, driver_of_build, served
from envspec.importers.types import Source
from envspec.models import CudaVersion
from envspec.origins import PYTORCH_INDEX

NO_CODE: Final = Rule("ENV201", Severity.ERROR, "torch has no code for a GPU")
ONLY_PTX: Final = Rule("ENV202", Severity.INFO, "torch has only PTX for a GPU, which the driver compiles")
UNKNOWN: Final = Rule("ENV203", Severity.INFO, "the GPU code of this build of torch is unknown")
EXTENSION: Final = Rule("ENV204", Severity.ERROR, "an extension's wheel has no code for a GPU")
NEWER_GPU: Final = Rule("ENV205", Severity.ERROR, "the driver is too old for a GPU")
DRIVER: Final = Rule("ENV301", Severity.ERROR, "the driver is too old for the CUDA that installers choose")


def gpu_code(audit: Audit) -> Iterator[Finding]:
    """torch and the extensions of which the facts know the GPU code."""
    if audit.torch is not None and audit.torch.cuda is not None:
        yield from _torch(audit, audit.torch)
    for each in (audit.taken or {}).values():
        row = audit.facts.extension(each.name, each.version.partition("+")[0])
        if row is None or each.is_sdist or not row.sm:
            continue
        gpus = [gpu for gpu, _ in _meant(audit, row.sm, row.ptx)]
        if missing := gpus_without_code(gpus, row.sm, row.ptx):
            what = f"{each.name} {each.version} has no code for {' and '.join(missing)}"
            why = f"its wheels have code for {', '.join((*row.sm, *row.ptx))}"
            todo = f"use a release of {each.name} with code for it, or build it from source for this GPU"
            yield Finding(EXTENSION, audit.bringing(each.name), what, why, row.source, todo)


def _meant(audit: Audit, sm: Sequence[str], ptx: Sequence[str]) -> list[tuple[GpuRow, Source]]:
    """The GPUs that must run some code. Of those that sources name, not the ones without it if there is one with it:
    TORCH_CUDA_ARCH_LIST and the like name whatever a build may serve.
    """
    meant, is_any_served = [], False
    for gpu, line in audit.gpus:
        is_served = runs(capability_of(gpu), sm, ptx) is not Runs.NOT
        if is_served or not line.file:
            meant.append((gpu, line))
        if is_served and line.file:
            is_any_served = True
    return meant if is_any_served else list(audit.gpus)


def _torch(audit: Audit, torch: InstalledTorch) -> Iterator[Finding]:
    code = audit.facts.gpu_code_of(torch.row.version, torch.variant, audit.target.platform)
    if code is None:
        names = ", ".join(gpu.name for gpu in audit.gpu_rows)
        why = "no row of the facts has this build"
        yield Finding(UNKNOWN, torch.source, f"whether {torch} has code for {names} is unknown", why, "", "try it")
        return
    for gpu, named in _meant(audit, code.sm, code.ptx):
        capability = capability_of(gpu)
        how = runs(capability, code.sm, code.ptx)
        text, why = f"{gpu.name} ({capability.sm})", f"it has code for {', '.join((*code.sm, *code.ptx))}"
        if named.file:
            text += f", which {named} names"
        if how is Runs.NOT:
            what, todo = f"{torch} has no code for {text}", _for_gpu(audit, torch, gpu)
            yield Finding(NO_CODE, torch.source, what, why, code.source, todo)
        elif how is Runs.PTX:
            what, todo = f"{torch} has only PTX for {text}", "expect a slow first start"
            row = audit.facts.driver_of(str(torch.cuda))
            bundled, driver = row.bundled, audit.driver_version
            if driver and bundled and not at_least(driver, bundled):
                what += f", which driver {driver} can't compile"
                yield Finding(DRIVER, torch.source, what, why, row.source, _update(audit, torch.cuda))
                continue
            if bundled:
                todo = f"use driver {bundled} or newer, and {todo}"
            yield Finding(ONLY_PTX, torch.source, what, why, code.source, todo)


def _for_gpu(audit: Audit, torch: InstalledTorch, gpu: GpuRow) -> str:
    """A build for this GPU and the others; one for this GPU alone if there is none for all."""
    everyone = served(audit.facts, audit.gpu_rows, audit.target.platform)
    if gpu not in everyone:
        return "build torch from source: no known build has code for it"
    if found := _build_or_update(audit, torch, everyone):
        return found
    names = ", ".join(each.name for each in everyone)
    text = f"no known build has code for all of {names}: use an environment for each kind of GPU"
    if alone := _build_or_update(audit, torch, [gpu]):
        text += f". For {gpu.name}, {alone}"
    return text


def _build_or_update(audit: Audit, torch: InstalledTorch, gpus: Sequence[GpuRow]) -> str:
    """A build that the driver and GPUs run, else one that needs a newer driver; empty if none has code for them."""
    with_driver = _other_build(audit, torch, gpus, audit.driver_version)
    if with_driver or not audit.driver_version:
        return with_driver
    return _other_build(audit, torch, gpus, "")


def _other_build(audit: Audit, torch: InstalledTorch, gpus: Sequence[GpuRow], driver: str) -> str:
    """A build that runs on the machines: of the same release, else of the newest; empty if there is none.

    driver: empty for any, of which the text names the oldest.
    """
    facts, platform = audit.facts, audit.target.platform
    machines = Machines(driver or None, tuple(gpus), audit.target.python.series)
    for row in (torch.row, *reversed(facts.torch)):
        if not has_wheel(row, platform, machines.python):
            continue
        if builds := builds_for(facts, row, platform, machines):
            cuda = builds[0]
            place = PYTORCH_INDEX.format(variant=cuda.variant)
            if cuda.variant == audit.default_of(row):
                place = "the default index"
            text = f"use torch {row.version} for CUDA {cuda} from {place}"
            if audit.driver and not driver:
                needed = driver_of_build(facts, row.version, cuda, platform, gpus)
                if needed and not at_least(audit.driver.value, needed):
                    text += f", and update the driver to {needed} or newer"
            return text
    return ""


def drivers(audit: Audit) -> Iterator[Finding]:
    """The GPUs, the CUDA of torch, of packages that load CUDA from the system, and of NVIDIA's own wheels."""
    driver = audit.driver_version
    if audit.target.platform.is_linux:
        yield from _gpus_of_newer_drivers(audit, driver)
    for what, cuda, source, fact in _built_for(audit):
        row = audit.facts.driver_of(str(cuda))
        if driver and not at_least(driver, row.minimum):
            text = f"{what}, which driver {driver} does not run"
            why = f"CUDA {cuda} needs driver {row.minimum} or newer"
            yield Finding(DRIVER, source, text, why, fact or row.source, _for_driver(audit, audit.torch, cuda, driver))


def _gpus_of_newer_drivers(audit: Audit, driver: str) -> Iterator[Finding]:
    named = dict(audit.gpus)
    default, cuda = audit.top, None
    if audit.torch:
        default, cuda = audit.torch.source, audit.torch.cuda
    for gpu, first in unsupported(audit.facts, driver, named):
        source = named[gpu]
        if not source.file:
            source = default
        what = f"driver {driver} does not support {gpu.name} ({capability_of(gpu).sm})"
        why = f"its first driver is {first.version}, of CUDA {first.cuda}"
        yield Finding(NEWER_GPU, source, what, why, first.source, _update(audit, cuda))


def _for_driver(audit: Audit, torch: InstalledTorch | None, cuda: CudaVersion, driver: str) -> str:
    update = _update(audit, cuda)
    if torch is None or torch.cuda is None:
        return f"{update}, or use a release for an older CUDA"
    if other := _other_build(audit, torch, audit.gpu_rows, driver):
        return f"{other}, or {update}"
    return update


def _update(audit: Audit, cuda: CudaVersion | None) -> str:
    """The oldest driver for the GPUs and a CUDA: that of torch, where it has a torch."""
    gpus = audit.gpu_rows
    capabilities = list(map(capability_of, gpus))
    if cuda is None:
        needed: str | None = first_drivers(audit.facts, capabilities)[0].version
    elif audit.torch is not None:
        needed = driver_of_build(audit.facts, audit.torch.row.version, cuda, audit.target.platform, gpus)
    else:
        needed = oldest_driver(audit.facts, cuda, capabilities, Runs.SASS)
    return f"update the driver to {needed} or newer" if needed else "update the driver"


def _built_for(audit: Audit) -> Iterator[tuple[str, CudaVersion, Source, str]]:
    """Package, its CUDA, the line that brings it, and the fact's source if it is not the driver's."""
    if audit.torch is not None and audit.torch.cuda is not None:
        yield f"installers choose {audit.torch}", audit.torch.cuda, audit.torch.source, ""
        return
    found = audit.taken or {}
    for each in found.values():
        row = audit.facts.cuda_build(each.name, each.version, audit.target.platform)
        if row is not None:
            cuda = CudaVersion.parse(row.cuda)
            yield f"{each.name} {each.version} is for CUDA {cuda}", cuda, audit.bringing(each.name), row.source
    for name, each in found.items():
        # Its version is that of CUDA.
        if name.startswith("nvidia-cuda-runtime"):
            cuda = CudaVersion(*numeric(each.version)[:2])
            yield f"{each.name} is {each.version}", cuda, audit.bringing(each.name), ""
            return
