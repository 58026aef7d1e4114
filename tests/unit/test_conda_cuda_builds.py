"""Which builds are CUDA's, and which chosen builds are for the CPU although they need not be."""

from __future__ import annotations

import pytest
from rattler import MatchSpec, PackageRecord, Version
from rattler.package.build_string import BuildString

from envspec.resolve.conda.records import (
    CondaBuild,
    constrained_name,
    cpu_fallbacks,
    cuda_constraint,
    is_cpu_build,
    is_cuda_build,
)

# Builds of conda-forge and of the pytorch channel.
BUILDS = {
    "cuda129_mkl_py313_h7947483_302": "cuda",
    "cuda_py312_h4a51b5c_1": "cuda",
    "cuda118h03c5bf3_9": "cuda",
    "py3.11_cuda12.1_cudnn8.9.2_0": "cuda",
    "cpu_mkl_py313_h19d87ba_102": "cpu",
    "cpu_generic_py312_hb1f4e5e_0": "cpu",
    "py3.11_cpu_0": "cpu",
    "cpu": "cpu",
    "h6add32d_100_cp313": "",
    "h1d5ab7f_5_cuda": "",
    "py312hcpuff_0": "",
    "0": "",
}


@pytest.mark.parametrize("build", BUILDS)
def test_a_build_string_says_whose_it_is(build: str) -> None:
    assert (is_cuda_build(build), is_cpu_build(build)) == (BUILDS[build] == "cuda", BUILDS[build] == "cpu")


@pytest.mark.parametrize("build", BUILDS)
def test_the_constraint_takes_the_same_builds(build: str) -> None:
    row = PackageRecord("torch", "2.8", BuildString(build), 0, "linux-64")
    assert MatchSpec(cuda_constraint("torch"), strict=True).matches(row) == is_cuda_build(build)


def test_a_constraint_knows_its_name() -> None:
    assert constrained_name(cuda_constraint("torch")) == "torch"
    assert constrained_name("cuda-version <=12.8") is None


CASES: list[tuple[str, tuple[str, str], list[tuple[str, str]], bool]] = [
    ("no CUDA builds", ("2.8", "cpu_0"), [], False),
    ("CUDA of the same version", ("2.8", "cpu_0"), [("2.8", "cuda129_0")], True),
    ("CUDA of a newer version", ("2.8", "h1_0"), [("2.10", "cuda129_0")], True),
    ("CUDA of an older version, marked cpu", ("2.10", "cpu_0"), [("2.8", "cuda129_0")], True),
    ("CUDA of an older version, one build for both since", ("1.17", "h1_0"), [("1.8", "cuda112_0")], False),
    ("is CUDA's", ("2.8", "cuda129_0"), [("2.8", "cuda129_0")], False),
]


@pytest.mark.parametrize(("what", "chosen", "cuda", "expected"), CASES, ids=[case[0] for case in CASES])
def test_fallbacks(what: str, chosen: tuple[str, str], cuda: list[tuple[str, str]], expected: bool) -> None:
    build = CondaBuild("torch", *chosen)
    known = [CondaBuild("torch", *each) for each in cuda]
    assert cpu_fallbacks([build, CondaBuild("zlib", "1", "h0_0")], known, Version) == ([build] if expected else [])


def test_fallbacks_are_sorted_by_name() -> None:
    chosen = [CondaBuild(name, "1", "cpu_0") for name in ("torch", "jaxlib", "faiss")]
    known = [CondaBuild(name, "1", "cuda126_0") for name in ("jaxlib", "torch", "faiss")]
    assert [build.name for build in cpu_fallbacks(chosen, known, Version)] == ["faiss", "jaxlib", "torch"]
