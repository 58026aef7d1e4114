"""CUDA builds: which rows are some, and what to ask so that no package quietly comes as a build for the CPU. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

# `cuda129_mkl_py313_h7947483_302`, `cuda_py312_h4a51b5c_1` (conda-forge), `py3.11_cuda12.1_cudnn8.9.2_0` (pytorch).
_CUDA_BUILD: Final = re.compile(r"^cuda|cuda\d")
_CPU_BUILD: Final = re.compile(r"(^|_)cpu(_|\d|$)")
#: The same as `_CUDA_BUILD`, as a match spec has it.
_CUDA_BUILDS: Final = '[build="^(cuda|.*cuda[0-9]).*$"]'


@dataclass(frozen=True, slots=True)
class Build:
    """What of a row decides here. version: anything that can be ordered."""

    name: str
    version: str
    build: str


def is_cuda_build(build: str) -> bool:
    """Whether a build string is a CUDA build's."""
    return _CUDA_BUILD.search(build) is not None


def cuda_constraint(name: str) -> str:
    """The match spec that only CUDA builds of `name` satisfy."""
    return name + _CUDA_BUILDS


def constrained_name(constraint: str) -> str | None:
    """The name in what `cuda_constraint` gave; None for any other constraint."""
    return constraint.removesuffix(_CUDA_BUILDS) if constraint.endswith(_CUDA_BUILDS) else None


def is_cpu_build(build: str) -> bool:
    """Whether a build string says that the build is for the CPU: a package with builds for both marks them."""
    return _CPU_BUILD.search(build) is not None


def fallbacks(chosen: Iterable[Build], cuda: Iterable[Build], order: Callable[[str], Any]) -> list[Build]:
    """The chosen builds that are for the CPU although their package has CUDA builds, sorted by name.

    cuda: all CUDA builds that there are of their names. order: makes of a version something that can be compared.
    A package that has given up its CUDA builds, because one build now does for both, is no fallback: its CUDA builds
    are all older than the chosen version, and the chosen build isn't marked `cpu`.
    """
    newest: dict[str, Any] = {}
    for build in cuda:
        version = order(build.version)
        newest[build.name] = max(newest.get(build.name, version), version)
    return sorted(
        (
            build
            for build in chosen
            if build.name in newest
            and not is_cuda_build(build.build)
            and (is_cpu_build(build.build) or newest[build.name] >= order(build.version))
        ),
        key=lambda build: build.name,
    )
