"""Names of GPUs as people write them and as NVML gives them; which code runs where."""

from __future__ import annotations

import re

import pytest

from envspec.facts import load_facts
from envspec.facts.gpu import ComputeCapability, Runs, UnknownGpu, find_gpu, first_driver, match_gpu, runs
from envspec.models import CudaVersion

FACTS = load_facts()


#: Names of rows, and what people and NVML call them.
NAMES = {
    "H100": ["h100", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"],
    "H200": ["NVIDIA H200 NVL"],
    "A100": ["NVIDIA A100-SXM4-80GB", "a100_80gb"],
    "T4": ["Tesla T4"],
    "V100": ["Tesla V100-SXM2-16GB"],
    "A10": ["NVIDIA A10G"],
    "L40S": ["NVIDIA L40S"],
    "RTX 4090": ["NVIDIA GeForce RTX 4090", "rtx4090"],
    "RTX 3080": ["NVIDIA GeForce RTX 3080 Ti"],
    "RTX 6000 Ada": ["NVIDIA RTX 6000 Ada Generation"],
    "RTX A6000": ["NVIDIA RTX A6000"],
    "RTX PRO 6000 Blackwell": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
    "GH200": ["NVIDIA GH200 480GB"],
    "compute capability 9.0": ["9.0", "sm_90", " SM_90 "],
}


@pytest.mark.parametrize(("name", "written"), [(name, each) for name, listed in NAMES.items() for each in listed])
def test_names(name: str, written: str) -> None:
    assert find_gpu(FACTS, written).name == name


@pytest.mark.parametrize("written", ["Quadro RTX 6000", "A1000", "", "NVIDIA", "H", "100"])
def test_what_no_row_means(written: str) -> None:
    """Quadro RTX 6000 is a Turing card, RTX 6000 Ada is not; A1000 is no A100."""
    assert match_gpu(FACTS, written) is None


@pytest.mark.parametrize(
    ("written", "hint"),
    [("H1000", "did you mean H100"), ("RTX 4900", "did you mean RTX 4090"), ("Radeon", "known: P100, ")],
)
def test_unknown_names_get_the_nearest(written: str, hint: str) -> None:
    with pytest.raises(UnknownGpu, match=f"unknown GPU `{written}`\n  hint: {hint}"):
        find_gpu(FACTS, written)


#: What the properties do not say: kinds of one major capability, Tegra's code, and the suffixes `a` and `f`.
RULES = """
8.9 sm_80 SASS, 8.0 sm_86 NOT, 10.3 sm_100 SASS, 12.0 sm_100 NOT, 9.0 sm_90a SASS, 10.3 sm_100a NOT, 10.3 sm_100f SASS
8.7 sm_80 NOT, 8.7 sm_87 SASS, 8.9 sm_87 NOT, 12.0 compute_90 PTX, 9.0 compute_90a PTX, 10.0 compute_90a NOT
10.3 compute_100f PTX, 12.0 compute_100f NOT, 8.0 compute_90 NOT
"""


@pytest.mark.parametrize("rule", re.split(", |\n", RULES.strip()))
def test_rule(rule: str) -> None:
    gpu, code, how = rule.split()
    sm, ptx = ([code], []) if code.startswith("sm_") else ([], [code])
    assert runs(ComputeCapability.parse(gpu), sm, ptx) is Runs[how]


@pytest.mark.parametrize("text", ["9", "sm_9", "sm90", "90", "9.00", "sm_90b", "a.b", ""])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(ValueError, match="not a compute capability"):
        ComputeCapability.parse(text)


def test_first_driver() -> None:
    assert first_driver(FACTS, ComputeCapability(10, 0)) == ("570.26", CudaVersion(12, 8))
    assert first_driver(FACTS, ComputeCapability(8, 0)) is None
    assert first_driver(FACTS, ComputeCapability(99, 0)) is None
