"""Every case of golden/torch_build and golden/family: a request in, the choice or its refusal out; and for whatever a
spec requires of torch and CUDA: a build is chosen, or the refusal is true."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envspec.errors import EnvspecError
from envspec.facts import load_facts
from envspec.facts.gpu import Runs, capability_of, find_gpu, runs
from envspec.facts.tables import TorchRelease
from envspec.facts.torch import CudaChoice, Machines, NoSuchBuild, choose_build, family_mismatch, fitting_set
from envspec.models import CudaVersion, Platform
from envspec.reasons import words
from tests.support.golden import GoldenCase, read_cases

GOLDEN = Path(__file__).parent / "golden"
BUILDS = read_cases(GOLDEN / "torch_build")
FAMILIES = read_cases(GOLDEN / "family")


def build_as_text(case: Mapping[str, Any]) -> str:
    """torch: a specifier. cuda: a version, `any` or `cpu`. platforms, as_of, driver, gpus, python, [[facts.torch]]."""
    facts = load_facts(case.get("facts"))
    cuda = CudaChoice(case["cuda"]) if case["cuda"] in ("any", "cpu") else CudaVersion.parse(case["cuda"])
    as_of: datetime | None = case.get("as_of")
    gpus = tuple(find_gpu(facts, name) for name in case.get("gpus", ()))
    machines = Machines(case.get("driver"), gpus, case.get("python", ""))
    lines = []
    for name in case["platforms"]:
        try:
            build = choose_build(facts, SpecifierSet(case["torch"]), cuda, Platform(name), as_of, machines)
        except EnvspecError as error:
            lines += [f"{name}: refused: {type(error).__name__}, exit code {error.exit_code}", str(error)]
            continue
        lines.append(f"{name}: {f'pytorch {build.url}' if build.url else 'default'}")
        lines.append(f"  variant {build.variant}, torch {build.constraint or 'as asked'}")
        lines.append(f"  {words(build.why)}")
        lines += [f"  {words(build.left_out)}"] if build.left_out else []
        lines += [f"  warning: {build.warning}"] if build.warning else []
        lines += [] if build.serves_gpus else ["  no build that may be chosen has code for the GPUs"]
    return "\n".join(lines) + "\n"


def family_as_text(case: Mapping[str, Any]) -> str:
    """[requests]: name = specifier."""
    requests = {name: SpecifierSet(specifier) for name, specifier in case["requests"].items()}
    return f"{family_mismatch(load_facts(case.get('facts')), requests) or 'nothing is known against it'}\n"


def test_there_are_cases() -> None:
    assert BUILDS
    assert FAMILIES


@pytest.mark.parametrize("case", BUILDS, ids=lambda case: case.name)
def test_torch_build(case: GoldenCase) -> None:
    case.check(build_as_text(case.table("case.toml")))


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_family(case: GoldenCase) -> None:
    case.check(family_as_text(case.table("case.toml")))


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


gpu_names = st.lists(
    st.sampled_from(["3.7", "V100", "T4", "A100", "H100", "B200", "RTX 5090", "GB10"]), min_size=1, max_size=3
)


@given(specifiers, st.sampled_from([CudaChoice.ANY, CudaVersion(12, 6), CudaVersion(12, 8)]), gpu_names)
def test_the_newest_with_code_for_the_gpus_is_taken(
    torch: SpecifierSet, cuda: CudaVersion | CudaChoice, names: list[str]
) -> None:
    gpus = tuple(find_gpu(FACTS, name) for name in names)
    requested = cuda.variant if isinstance(cuda, CudaVersion) else ""

    def has_code(row: TorchRelease) -> bool:
        code = FACTS.gpu_code_of(row.version, requested or row.default["linux-64"], Platform.LINUX_64)
        return code is not None and all(runs(capability_of(gpu), code.sm, code.ptx) is not Runs.NOT for gpu in gpus)

    published = [row for row in FACTS.torch if not requested or requested in row.published]
    matching = [row for row in published if torch.contains(row.version)]
    fitting = [row for row in matching if has_code(row)]
    try:
        build = choose_build(FACTS, torch, cuda, Platform.LINUX_64, machines=Machines(gpus=gpus))
    except NoSuchBuild:
        assert not matching
        return
    if matching:
        assert build.serves_gpus == bool(fitting)
    if fitting:
        allowed = [row for row in matching if SpecifierSet(build.constraint).contains(row.version)]
        assert allowed[-1] is fitting[-1]
        assert bool(build.left_out) == (fitting[-1] is not matching[-1])


@given(releases)
def test_the_set_that_fits_is_not_refused(torch: str) -> None:
    fitting = fitting_set(FACTS, torch)
    asked = {name: SpecifierSet(each if each.startswith("~=") else f"=={each}") for name, each in fitting.items()}
    assert family_mismatch(FACTS, {**asked, "torch": SpecifierSet(f"=={torch}")}) is None


@given(specifiers, st.lists(st.sampled_from(["torchvision", "torchaudio", "torchdata", "numpy"]), unique=True))
def test_members_without_a_version_are_never_refused(torch: SpecifierSet, names: list[str]) -> None:
    assert family_mismatch(FACTS, {"torch": torch, **dict.fromkeys(names, SpecifierSet())}) is None


def test_a_cuda_that_no_torch_was_built_for_is_named_as_it_is_written() -> None:
    with pytest.raises(NoSuchBuild, match=r"no build for CUDA 12\.10 was ever published"):
        choose_build(load_facts(), SpecifierSet("==2.9.1"), CudaVersion(12, 10), Platform.LINUX_64)
