"""Packages that use no GPU under `[cuda]`, and what brings CUDA to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from envspec.base_image.cuda import TORCH_OF_CONDA, CudaPins, CudaRequest
from envspec.facts import Facts
from envspec.facts.gpu import ComputeCapability, capabilities_of
from envspec.facts.tables import CpuBuildRow
from envspec.models import CpuBuild, CudaVersion, Platform

NO_CUDA_KNOWN: Final = "no package with CUDA is known for it there"


def cpu_builds(pins: CudaPins, request: CudaRequest, cuda: CudaVersion | None, facts: Facts) -> Iterator[CpuBuild]:
    """The packages of one platform that use no GPU although the spec has `[cuda]`; none on macOS, which has no CUDA.

    cuda: what the lock is for; None if nothing names it.
    """
    if pins.platform is Platform.OSX_ARM64:
        return
    torch = pins.torch
    if torch and torch.build == "cpu":
        instead = f"{torch.name} * cuda*" if torch.channel else ""
        yield CpuBuild(pins.platform, torch.name, torch.version, instead, source="torch's variant")
    for pin, rows in pins.without_cuda:
        fitting = [row for row in rows if row.instead and _fits(row, request, cuda, facts)]
        if fitting:
            row = fitting[0]
            yield CpuBuild(pins.platform, pin.name, pin.version, row.instead, row.index, row.source)
        else:
            yield CpuBuild(pins.platform, pin.name, pin.version, source=rows[0].source)


def _fits(row: CpuBuildRow, request: CudaRequest, cuda: CudaVersion | None, facts: Facts) -> bool:
    """Whether the CUDA of `instead` is the lock's; if that is open, whether driver and GPUs run it."""
    if not row.cuda:
        return True
    needed = CudaVersion.parse(row.cuda)
    if cuda is not None:
        return needed.major == cuda.major
    if request.driver and not facts.runs_cuda(request.driver, needed):
        return False
    oldest = ComputeCapability.parse(row.compute_capability or "0.0")
    return min(capabilities_of(facts, request.gpus).values(), default=oldest) >= oldest


def cpu_build_warning(build: CpuBuild) -> str:
    """`jaxlib 0.7.2 is a CPU build on linux-64: it uses no GPU there. Require jax[cuda13]`."""
    change = cuda_instead(build) or NO_CUDA_KNOWN
    return f"{cpu_build_text(build)}. {change[0].upper()}{change[1:]}"


def cpu_build_text(build: CpuBuild) -> str:
    return f"{build.package} {build.version} is a CPU build on {build.platform.value}: it uses no GPU there"


def cuda_instead(build: CpuBuild) -> str:
    """What to change so that it uses a GPU, as a hint; empty if nothing is known."""
    if build.package in TORCH_OF_CONDA:
        return f'require its CUDA builds: "{build.instead}" in [conda] dependencies'
    if build.package == "torch":
        change = "set [cuda] version: its CUDA builds, if any, are on PyTorch's own index"
        # No default build for Windows has CUDA.
        return f"{change}; or select a torch whose default build has CUDA" if build.platform.is_linux else change
    if build.index:
        return f"require {build.instead}, from {build.index} ([[pip.index]])"
    return f"require {build.instead}" if build.instead else ""
