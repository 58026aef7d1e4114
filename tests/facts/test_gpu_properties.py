"""The rule of SASS and PTX, and the order of versions, for whatever numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from envspec.facts import load_facts
from envspec.facts.gpu import TEGRA, ComputeCapability, Runs, match_gpu, runs
from envspec.facts.tables import numeric, ranges_text

FACTS = load_facts()

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


@given(capabilities)
def test_own_code_runs(gpu: ComputeCapability) -> None:
    assert runs(gpu, [gpu.sm]) is Runs.SASS
    assert runs(gpu, [], [compute(gpu)]) is Runs.PTX


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
