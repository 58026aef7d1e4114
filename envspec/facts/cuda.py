"""What to require so that a package is for one version of CUDA: what rows state, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet

from envspec.facts.tables import CudaBuildRow, Facts
from envspec.models import CudaVersion, Platform


def require_for(name: str, major: int, platform: Platform, facts: Facts, cudnn: int | None = None) -> str:
    """What to require so that a package is for a major version of CUDA: other releases, else another package.

    Empty if no row names any. cudnn: the major version of cuDNN that it must load; None for any.
    """
    rows = [row for row in facts.cuda_builds if platform.value in row.platforms and _major(row) == major]
    rows = [row for row in rows if cudnn is None or row.cudnn in (None, cudnn)]
    if own := [row for row in rows if row.package == name]:
        return f"{name}{own[-1].versions}"
    if cudnn is not None:
        return ""
    if alike := [row.package for row in rows if _stem(row.package) == _stem(name)]:
        return alike[-1]
    for cpu_build in facts.cpu_builds:
        is_of_major = cpu_build.cuda and CudaVersion.parse(cpu_build.cuda).major == major
        is_of_name = any(fnmatchcase(name, pattern) for pattern in cpu_build.with_cuda)
        if is_of_major and is_of_name and platform.value in cpu_build.platforms:
            return cpu_build.instead
    return ""


def torch_for(major: int, platform: Platform, required: Iterable[SpecifierSet], facts: Facts) -> str:
    """The requirement on torch that gives a default build for a major version of CUDA; empty without one.

    required: what the packages of a lock require of torch.
    """
    bounds = [*required]
    for row in reversed(facts.torch):
        variant = row.default.get(platform.value, "cpu")
        if variant == "cpu" or CudaVersion.parse(variant).major != major:
            continue
        if all(bound.contains(row.version, prereleases=True) for bound in bounds):
            return f"torch<={row.version}"
    return ""


def _major(row: CudaBuildRow) -> int:
    return CudaVersion.parse(row.cuda).major


def _stem(name: str) -> str:
    """`cupy` of `cupy-cuda12x`."""
    return re.sub(r"-(?:cuda\d+x?|cu\d+)$", "", name)
