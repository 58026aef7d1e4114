"""Whatever a spec asks of torch and CUDA: a build is chosen, or the refusal is true."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envspec.facts import load_facts
from envspec.facts.torch import CudaChoice, NoSuchBuild, choose_build, family_mismatch, fitting_set
from envspec.models import CudaVersion, Platform

FACTS = load_facts()
RELEASES = [row.version for row in FACTS.torch]

releases = st.sampled_from(RELEASES)
others = st.builds("{}.{}.{}".format, st.integers(1, 3), st.integers(0, 30), st.integers(0, 3))
clauses = st.builds(
    "{}{}".format, st.sampled_from(["==", ">=", "<=", "<", ">", "!=", "~="]), st.one_of(releases, others)
)
specifiers = st.lists(clauses, max_size=3).map(lambda found: SpecifierSet(",".join(found)))
cudas = st.one_of(
    st.sampled_from([CudaChoice.CPU, CudaChoice.ANY]), st.builds(CudaVersion, st.integers(11, 14), st.integers(0, 9))
)
platforms = st.sampled_from(list(Platform))


@given(specifiers, cudas, platforms)
def test_what_is_chosen_was_asked_for_and_exists(
    torch: SpecifierSet, cuda: CudaVersion | CudaChoice, platform: Platform
) -> None:
    try:
        build = choose_build(FACTS, torch, cuda, platform)
    except NoSuchBuild:
        assert isinstance(cuda, CudaVersion)
        asked = [row for row in FACTS.torch if torch.contains(row.version)]
        assert asked
        assert all(cuda.variant not in row.published for row in asked)
        return
    for version in build.versions:
        assert torch.contains(version)
        assert SpecifierSet(build.constraint).contains(version)
        if build.url is None:
            assert FACTS.default_variant(version, platform) == build.variant
        else:
            release = FACTS.torch_release(version)
            assert release and build.variant in release.published
    if isinstance(cuda, CudaVersion) and platform is not Platform.OSX_ARM64 and build.versions:
        assert build.variant == cuda.variant


@given(specifiers, cudas, platforms, st.integers(0, 30))
def test_nothing_newer_than_the_date(
    torch: SpecifierSet, cuda: CudaVersion | CudaChoice, platform: Platform, months: int
) -> None:
    as_of = datetime(2024, 6, 1, tzinfo=timezone.utc) + timedelta(days=30 * months)
    try:
        build = choose_build(FACTS, torch, cuda, platform, as_of)
    except NoSuchBuild:
        return
    for version in build.versions:
        row = FACTS.torch_release(version)
        assert row is not None
        assert row.uploaded is not None
        assert row.uploaded <= as_of


@given(releases)
def test_the_set_that_fits_is_not_refused(torch: str) -> None:
    fitting = dict(fitting_set(FACTS, torch))
    triton = fitting.pop("triton")
    requests = {name: SpecifierSet(f"=={version}") for name, version in fitting.items()}
    exact = triton if triton.startswith("~=") else f"=={triton}"
    asked = {**requests, "torch": SpecifierSet(f"=={torch}"), "triton": SpecifierSet(exact)}
    assert family_mismatch(FACTS, asked) is None


@given(specifiers, st.lists(st.sampled_from(["torchvision", "torchaudio", "torchdata", "numpy"]), unique=True))
def test_members_without_a_version_are_never_refused(torch: SpecifierSet, names: list[str]) -> None:
    assert family_mismatch(FACTS, {"torch": torch, **dict.fromkeys(names, SpecifierSet())}) is None
