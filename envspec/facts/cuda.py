"""What to require so that a package is for one version of CUDA: what rows state, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet

from envspec.facts.tables import Facts, matching_rows, rows_on
from envspec.models import CudaVersion, Platform


def require_for(name: str, major: int, platform: Platform, facts: Facts, cudnn: int | None = None) -> str:
    """What to require so that a package is for a major version of CUDA: other releases, else another package.

    Empty if no row names any. cudnn: the major version of cuDNN that it must load; None for any.
    """
    own = alike = ""
    for row in rows_on(facts.cuda_builds, platform):
        loads_other_cudnn = cudnn is not None and row.cudnn not in (None, cudnn)
        if CudaVersion.parse(row.cuda).major != major or loads_other_cudnn:
            continue
        if row.package == name:
            own = f"{name}{row.versions}"
        if _stem(row.package) == _stem(name):
            alike = row.package
    if own or cudnn is not None:
        return own
    if alike:
        return alike
    for cpu_build in rows_on(facts.cpu_builds, platform):
        is_of_name = any(fnmatchcase(name, pattern) for pattern in cpu_build.with_cuda)
        if is_of_name and cpu_build.cuda and CudaVersion.parse(cpu_build.cuda).major == major:
            return cpu_build.instead
    return ""


def torch_for(major: int, platform: Platform, required: Iterable[SpecifierSet], facts: Facts) -> str:
    """The requirement on torch that gives a default build for a major version of CUDA; empty without one.

    required: what the packages of a lock require of torch.
    """
    allowed = SpecifierSet()
    for specifier in required:
        allowed &= specifier
    for row in matching_rows(reversed(facts.torch), allowed):
        variant = row.default_on(platform) or "cpu"
        if variant != "cpu" and CudaVersion.parse(variant).major == major:
            return f"torch<={row.version}"
    return ""


def _stem(name: str) -> str:
    """`cupy` of `cupy-cuda12x`."""
    return re.sub(r"-(?:cuda\d+x?|cu\d+)$", "", name)
