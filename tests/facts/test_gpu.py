"""Names of GPUs as people write them and as NVML gives them; which code runs where, for whatever numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from envspec.conformance.hardware import TEGRA
from envspec.facts import load_facts
from envspec.facts.gpu import ComputeCapability, Runs, UnknownGpu, find_gpu, first_driver, match_gpu, runs
from envspec.facts.tables import numeric, ranges_text
from envspec.models import CudaVersion

FACTS = load_facts()


#: Names of rows, and what people and NVML call them.
NAMES = {
    "H100": ["h100", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"],
    "H200": ["NVIDIA H200 NVL"],
    "A100": ["NVIDIA A100-SXM4-80GB", "a100_80gb"],
    "T4": ["Tesla T4"],
    "V100": ["Tesla V100-SXM2-16GB"],
    "V100S": ["Tesla V100S-PCIE-32GB"],
    "H20": ["NVIDIA H20"],
    "A800": ["NVIDIA A800-SXM4-80GB"],
    "RTX 3080 Ti": ["NVIDIA GeForce RTX 3080 Ti", "rtx3080ti"],
    "RTX 3070": ["NVIDIA GeForce RTX 3070 Laptop GPU"],
    "GTX 1080": ["gtx1080"],
    "TITAN X": ["NVIDIA TITAN X (Pascal)"],
    "GTX TITAN X": ["GeForce GTX TITAN X"],
    "Quadro RTX 6000": ["Quadro RTX 6000"],
    "Orin": ["Orin (nvgpu)", "Jetson Orin Nano"],
    "A10": ["NVIDIA A10G"],
    "L40S": ["NVIDIA L40S"],
    "RTX 4090": ["NVIDIA GeForce RTX 4090", "rtx4090"],
    "RTX 3080": ["NVIDIA GeForce RTX 3080"],
    "RTX 6000 Ada": ["NVIDIA RTX 6000 Ada Generation"],
    "RTX A6000": ["NVIDIA RTX A6000"],
    "RTX PRO 6000 Blackwell": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
    "GH200": ["NVIDIA GH200 480GB"],
    "compute capability 9.0": ["9.0", "sm_90", " SM_90 "],
}


@pytest.mark.parametrize(("name", "written"), [(name, each) for name, listed in NAMES.items() for each in listed])
def test_names(name: str, written: str) -> None:
    assert find_gpu(FACTS, written).name == name


@pytest.mark.parametrize("written", ["RTX 6000", "A1000", "", "NVIDIA", "H", "100"])
def test_what_no_row_means(written: str) -> None:
    """RTX 6000 may be a Turing, an Ada or a Blackwell card; A1000 is no A100."""
    assert match_gpu(FACTS, written) is None


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("H1000", "unknown GPU `H1000`\n  hint: did you mean H100"),
        ("RTX 4900", "unknown GPU `RTX 4900`\n  hint: did you mean RTX 4090"),
        ("Voodoo", "unknown GPU `Voodoo`\n  hint: if NVIDIA makes it, write its compute capability"),
        ("MI300X", "`MI300X` is a GPU of AMD, and ROCm is not supported"),
        ("AMD Instinct MI250", "of AMD"),
        ("RX 7900 XTX", "of AMD"),
        ("Intel Arc A770", "of Intel"),
    ],
)
def test_unknown_names(written: str, text: str) -> None:
    with pytest.raises(UnknownGpu, match=re.escape(text)):
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
    source = "NVIDIA CUDA toolkit release notes, driver table (public copy)"
    assert first_driver(FACTS, ComputeCapability(10, 0)) == ("570.26", CudaVersion(12, 8), source)
    assert first_driver(FACTS, ComputeCapability(8, 0)) == ("450.51.06", CudaVersion(11, 0), source)
    assert first_driver(FACTS, ComputeCapability(7, 0)) is None
    assert first_driver(FACTS, ComputeCapability(99, 0)) is None


capabilities = st.builds(ComputeCapability, st.integers(3, 20), st.integers(0, 9))
desktop = capabilities.filter(lambda each: (each.major, each.minor) not in TEGRA)
suffixes = st.sampled_from(["", "a", "f"])
ORDER = {Runs.NOT: 0, Runs.PTX: 1, Runs.SASS: 2}


def compute(capability: ComputeCapability) -> str:
    return capability.sm.replace("sm_", "compute_")


@given(capabilities)
def test_text_and_back(capability: ComputeCapability) -> None:
    for text in (str(capability), capability.sm, compute(capability), f"{capability.sm}a"):
        assert ComputeCapability.parse(text) == capability


def test_what_is_no_architecture_runs_nowhere() -> None:
    assert runs(ComputeCapability(9, 0), ["", "gfx942", "sm_", "sm_9"]) is Runs.NOT


@given(desktop, desktop)
def test_sass_runs_within_its_major_from_an_equal_or_lower_minor(
    gpu: ComputeCapability, built: ComputeCapability
) -> None:
    expected = gpu.major == built.major and gpu.minor >= built.minor
    assert (runs(gpu, [built.sm]) is Runs.SASS) == expected


@given(capabilities, capabilities)
def test_ptx_runs_on_every_gpu_that_is_as_new(gpu: ComputeCapability, built: ComputeCapability) -> None:
    assert (runs(gpu, [], [compute(built)]) is Runs.PTX) == (gpu >= built)


@given(capabilities, st.lists(desktop, max_size=4), st.lists(capabilities, max_size=2), capabilities, suffixes)
def test_more_code_never_hurts(
    gpu: ComputeCapability,
    built: list[ComputeCapability],
    kept: list[ComputeCapability],
    more: ComputeCapability,
    suffix: str,
) -> None:
    sm, ptx = [each.sm for each in built], [compute(each) for each in kept]
    before = ORDER[runs(gpu, sm, ptx)]
    assert ORDER[runs(gpu, [*sm, f"{more.sm}{suffix}"], ptx)] >= before
    assert ORDER[runs(gpu, sm, [*ptx, f"{compute(more)}{suffix}"])] >= before


@given(capabilities, capabilities)
def test_code_for_one_capability_alone_runs_nowhere_else(gpu: ComputeCapability, built: ComputeCapability) -> None:
    assert (runs(gpu, [f"{built.sm}a"]) is Runs.SASS) == (gpu == built)


@given(st.sampled_from([row.name for row in FACTS.gpus]), st.sampled_from(["NVIDIA ", ""]))
def test_every_name_finds_its_row_in_any_case(name: str, vendor: str) -> None:
    for text in (f"{vendor}{name}", name.lower(), name.replace(" ", "").upper()):
        found = match_gpu(FACTS, text)
        assert found and found.name == name


versions = st.lists(st.integers(0, 700), min_size=3, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(versions, versions)
def test_numeric_orders_as_versions_do(one: str, other: str) -> None:
    assert (numeric(one) < numeric(other)) == (Version(one) < Version(other))


@given(st.sets(st.integers(0, 12)))
def test_ranges_hold_what_they_were_made_of(chosen: set[int]) -> None:
    known = [str(number) for number in range(13)]
    text = ranges_text([str(number) for number in chosen], known)
    found: set[int] = set()
    for span in filter(None, text.split(", ")):
        first, _, last = span.partition(" to ")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == chosen
