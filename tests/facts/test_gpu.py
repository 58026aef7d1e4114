"""Names of GPUs as people write them and as NVML gives them; which code runs where."""

from __future__ import annotations

import pytest

from envspec.facts import load_facts
from envspec.facts.gpu import ComputeCapability, Runs, UnknownGpu, find_gpu, first_driver, match_gpu, runs
from envspec.models import CudaVersion

FACTS = load_facts()


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("a100_80gb", "A100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A10G", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX 3080"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA B200", "B200"),
    ],
)
def test_names(asked: str, name: str) -> None:
    assert find_gpu(FACTS, asked).name == name


@pytest.mark.parametrize("asked", ["9.0", "sm_90", " SM_90 "])
def test_a_compute_capability_is_a_name(asked: str) -> None:
    assert find_gpu(FACTS, asked).compute_capability == "9.0"


@pytest.mark.parametrize("asked", ["Quadro RTX 6000", "A1000", "", "NVIDIA", "H", "100"])
def test_what_no_row_means(asked: str) -> None:
    """Quadro RTX 6000 is a Turing card, RTX 6000 Ada is not; A1000 is no A100."""
    assert match_gpu(FACTS, asked) is None


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("H1000", "did you mean H100"), ("RTX 4900", "did you mean RTX 4090"), ("Radeon", "known: P100, ")],
)
def test_unknown_names_get_the_nearest(asked: str, hint: str) -> None:
    with pytest.raises(UnknownGpu, match=f"unknown GPU `{asked}`\n  hint: {hint}"):
        find_gpu(FACTS, asked)


@pytest.mark.parametrize(
    ("gpu", "code", "how"),
    [
        ("8.9", "sm_80", Runs.SASS),
        ("8.6", "sm_86", Runs.SASS),
        ("8.0", "sm_86", Runs.NOT),
        ("9.0", "sm_80", Runs.NOT),
        ("10.3", "sm_100", Runs.SASS),
        ("12.1", "sm_120", Runs.SASS),
        ("12.0", "sm_100", Runs.NOT),
        ("9.0", "sm_90a", Runs.SASS),
        ("10.3", "sm_100a", Runs.NOT),
        ("10.3", "sm_100f", Runs.SASS),
        ("8.7", "sm_80", Runs.NOT),
        ("8.7", "sm_87", Runs.SASS),
        ("8.9", "sm_87", Runs.NOT),
        ("12.0", "compute_90", Runs.PTX),
        ("9.0", "compute_90a", Runs.PTX),
        ("10.0", "compute_90a", Runs.NOT),
        ("10.3", "compute_100f", Runs.PTX),
        ("12.0", "compute_100f", Runs.NOT),
        ("8.0", "compute_90", Runs.NOT),
    ],
)
def test_rule(gpu: str, code: str, how: Runs) -> None:
    sm, ptx = ([code], []) if code.startswith("sm_") else ([], [code])
    assert runs(ComputeCapability.parse(gpu), sm, ptx) is how


@pytest.mark.parametrize("text", ["9", "sm_9", "sm90", "90", "9.00", "sm_90b", "a.b", ""])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(ValueError, match="not a compute capability"):
        ComputeCapability.parse(text)


def test_first_driver() -> None:
    assert first_driver(FACTS, ComputeCapability(10, 0)) == ("570.26", CudaVersion(12, 8))
    assert first_driver(FACTS, ComputeCapability(8, 0)) is None
    assert first_driver(FACTS, ComputeCapability(99, 0)) is None
