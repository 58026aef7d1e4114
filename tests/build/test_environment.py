"""Environments of builds beside a lock's packages: how many compilers, at which cost, and what they require."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envspec.build.environment import (
    STEP,
    Limits,
    Progress,
    cost_line,
    cuda_of,
    limits_of,
    packages_beside,
    requirements_of,
    variables_of,
)
from envspec.build.types import BuildEnvironment
from envspec.context import ReporterOf
from envspec.models import BuildSettings, Dependent, Package, Platform, Python, Resolution, Target, WheelFile


async def _nothing() -> Mapping[str, Path]:
    return {}


def environment(cuda: str = "", **settings: Any) -> BuildEnvironment:
    return BuildEnvironment(BuildSettings("ext", **settings), fetch=_nothing, cuda=cuda)


def package(name: str, version: str = "1.0", *by: str) -> Package:
    file = WheelFile("default", f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "ab" * 32, 1)
    return Package(name, version, file, tuple(Dependent(each, name) for each in by))


@pytest.mark.parametrize(
    ("settings", "processors", "available", "expected"),
    [
        ({}, 8, None, Limits(8, None)),
        ({}, 8, 5000, Limits(2, None)),
        ({"memory_mib": 4096}, 8, 9000, Limits(2, None)),
        ({"memory_mib": 4096}, 8, 100, Limits(1, None)),
        ({"memory_mib": 4096, "jobs": 6}, 8, 100, Limits(6, None)),
        ({"minutes": 90, "gpu_code": ("sm_80", "sm_90")}, 4, None, Limits(4, 45.0)),
    ],
)
def test_memory_and_processors_limit_the_compilers(
    settings: dict[str, Any], processors: int, available: int | None, expected: Limits
) -> None:
    assert limits_of(environment(**settings), processors, available) == expected


def test_the_cost_is_stated_for_the_gpus() -> None:
    both = environment(gpu_code=("sm_80", "sm_90"))
    assert cost_line(both, Limits(2, 44.6)) == "building for sm_80, sm_90: about 45 minutes, 2 compilers at once"
    assert cost_line(environment(), Limits(1, None)) == "building: an unknown time, 1 compiler"
    assert cost_line(environment(), Limits(1, 0.2)) == "building: about 1 minute, 1 compiler"
    assert cost_line(environment(), Limits(2, 400)) == "building: about 7 hours, 2 compilers at once"


def test_the_time_left_follows_from_the_steps_that_have_ended_of_each_run_of_ninja() -> None:
    shown: list[str] = []
    times = iter([100.0, 220.0, 400.0, 700.0, 760.0])
    progress = Progress("ext 1.0", ReporterOf(progress=lambda step: shown.append(step.stage)), "cost", times.__next__)
    for line in (f"{STEP}build", "[1/6] nvcc a", "a warning", "[2/6] nvcc b", "[6/6] c++ x.so", "[1/3] nvcc a"):
        progress.line(line)
    assert shown == [
        "cost",
        "compiling [1/6], about 10 minutes left",
        "compiling [2/6], about 10 minutes left",
        "compiling [6/6]",
        "compiling [1/3], about 2 minutes left",
    ]


def test_what_a_build_requires_is_that_of_its_sources_of_the_lock_and_the_compiler(tmp_path: Path) -> None:
    own = environment("13.0", requires=("torch", "ninja"))
    assert requirements_of(tmp_path, own)[:4] == ["setuptools>=40.8.0", "wheel", "torch", "ninja"]
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["hatchling>=1", "torch"]\n')
    required = requirements_of(tmp_path, own)
    assert required[:3] == ["hatchling>=1", "torch", "ninja"]
    assert "nvidia-cuda-nvcc==13.0.*" in required and "nvidia-nvvm==13.0.*" in required
    assert requirements_of(tmp_path, environment()) == ["hatchling>=1", "torch"]


def test_only_an_nvcc_that_has_the_flag_gets_a_seed_for_the_names_of_its_symbols() -> None:
    flags = [variables_of(environment(cuda), Limits(1, None))["NVCC_APPEND_FLAGS"] for cuda in ("13.0", "")]
    assert flags == ["-objtemp -frandom-seed=0", "-objtemp"]


def test_a_build_is_beside_torch_what_it_names_and_what_these_require() -> None:
    packages = (
        package("ext", "1.0", "spec"),
        package("lib", "1.0", "tool"),
        package("nvidia-cuda-runtime", "13.0.96", "torch"),
        package("other", "1.0", "spec"),
        package("tool", "1.0", "spec"),
        package("torch", "2.12.1", "spec"),
    )
    part = Resolution(Target(Platform.LINUX_64, Python("3.11.7", "spec"), (2, 36)), packages)
    found = packages_beside(part, "ext", ["Tool>=1", "ext"])
    assert [each.name for each in found] == ["lib", "nvidia-cuda-runtime", "tool", "torch"]
    assert cuda_of(found) == "13.0"
    assert cuda_of([package("nvidia-cuda-runtime-cu12", "12.8.90")]) == "12.8"
    assert cuda_of([package("torch")]) == ""
