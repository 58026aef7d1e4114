"""The rows of envspec/data: whole, coherent with each other, and readable; and the rows that a spec adds."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envspec.data import DATA, facts_version
from envspec.documents import parse_toml
from envspec.errors import UsageError
from envspec.facts import load_facts
from envspec.facts.gpu import ComputeCapability, capability_of
from envspec.facts.tables import numeric
from envspec.facts.torch import extra_requirements, fitting_set
from envspec.models import CudaVersion, Platform

FACTS = load_facts()
FILES = sorted(DATA.glob("*.toml"))
X86, ARM = Platform.LINUX_64, Platform.LINUX_AARCH64


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_has_source_and_date(file: Path) -> None:
    rows = [row for table in parse_toml(file.read_text(encoding="utf-8")).values() for row in table]
    assert rows
    for row in rows:
        assert row["source"].strip()
        assert date(2024, 1, 1) < row["read"] < date(2100, 1, 1)
        assert row["confidence"] in ("high", "medium", "low", *(["unverified"] if file.stem == "extensions" else []))


def test_versions_are_in_order_and_once() -> None:
    for versions in ([row.version for row in FACTS.torch], [row.cuda for row in FACTS.drivers]):
        assert versions == sorted(set(versions), key=numeric)


def test_torch_rows_are_whole() -> None:
    for row in FACTS.torch:
        # Two old releases have no wheels for Arm.
        whole = {platform.value for platform in Platform}
        assert set(row.default) == whole or (
            numeric(row.version) < (1, 10) and {"linux-64", "win-64"} <= set(row.default)
        )
        assert row.default["linux-64"] in row.variants
        assert not set(row.variants) & set(row.unsure)
        assert row.uploaded is not None
        assert row.uploaded.tzinfo is not None
        for variant in row.published:
            assert variant == "cpu" or CudaVersion.parse(variant).variant == variant


def test_every_default_build_has_gpu_code_and_a_driver() -> None:
    """Without a row, `[cuda] gpus` could not be checked for what most people install."""
    for row in FACTS.torch:
        for platform in (X86, ARM):
            variant = row.default.get(platform.value, "cpu")
            code = FACTS.gpu_code_of(row.version, variant, platform)
            assert variant == "cpu" or (code and code.sm), (row.version, platform)
        cuda = CudaVersion.parse(row.default["linux-64"])
        # Before 1.13, CUDA's libraries were inside torch's wheel.
        assert (row.cudart is None) == (numeric(row.version) < (1, 13))
        assert row.cudart is None or numeric(row.cudart)[:2] == (cuda.major, cuda.minor)
        assert FACTS.driver_of(str(cuda)).bundled


def test_cpu_builds_are_whole() -> None:
    for row in FACTS.cpu_builds:
        assert canonicalize_name(row.package) == row.package
        assert set(row.platforms) <= {platform.value for platform in Platform} - {"osx-arm64"}
        SpecifierSet(row.versions)
        # What is advised ends the warning.
        assert not row.instead or (Requirement(row.instead) and row.with_cuda), row.package
        assert row.instead or not (row.cuda or row.compute_capability or row.index), row.package
        assert not row.cuda or CudaVersion.parse(row.cuda)
        assert not row.compute_capability or ComputeCapability.parse(row.compute_capability)


def test_gpu_code_rows_are_whole() -> None:
    for row in FACTS.gpu_code:
        assert all(re.fullmatch(r"sm_\d{2,3}[af]?", code) for code in row.sm)
        assert all(re.fullmatch(r"compute_\d{2,3}[af]?", code) for code in row.ptx)
        assert all(version.startswith(f"{row.torch}.") for version in row.measured)
    builds = [(row.torch, row.variant, row.platform, row.channel) for row in FACTS.gpu_code]
    assert len(builds) == len(set(builds))


def test_gpu_code_of_a_channel_is_its_own() -> None:
    wheels, conda = FACTS.gpu_code_of("2.8.0", "cu129", X86), FACTS.gpu_code_of("2.8.0", "cu129", X86, "conda-forge")
    assert wheels and conda
    assert "compute_120" in conda.ptx
    assert set(wheels.sm) < set(conda.sm)
    assert FACTS.gpu_code_of("2.8.0", "cu128", X86, "conda-forge") is None
    assert FACTS.gpu_code_of("2.8.0", "cu129", X86, "corp") is None


def test_drivers_rise_with_cuda() -> None:
    bundled = [numeric(row.bundled) for row in FACTS.drivers if row.bundled]
    assert bundled == sorted(bundled)
    for row in FACTS.drivers:
        assert row.bundled is None or numeric(row.bundled) >= numeric(row.minimum)


def test_recorded_digests_are_of_known_kinds_and_of_tags_that_exist() -> None:
    tags = {(image.cuda, flavor, os) for image in FACTS.images for flavor in image.flavors for os in image.os}
    for row in FACTS.digests:
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", row.digest)
        release, _, rest = row.tag.partition("-")
        flavor, _, os = rest.rpartition("-")
        assert (release, flavor, os) in tags
        assert row.kind in ("index", "manifest")
        assert len(row.platforms) == (2 if row.kind == "index" else 1)
    assert len({row.digest for row in FACTS.digests}) == len(FACTS.digests)


def test_a_manifest_list_goes_before_a_manifest() -> None:
    found = FACTS.digest_of("12.8.1-base-ubuntu24.04", X86)
    assert found and found.kind == "index"
    assert FACTS.digest_of("12.9.1-base-ubuntu24.04", ARM) is None


def test_gpu_names_are_unique_and_capabilities_readable() -> None:
    names = [name.lower() for row in FACTS.gpus for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))
    for row in FACTS.gpus:
        assert str(capability_of(row)) == row.compute_capability


def test_standalone_pythons_come_newest_first() -> None:
    rows = FACTS.standalone_pythons("3.11", X86)
    assert [row.version for row in rows] == ["3.11.16", "3.11.15", "3.11.14"]
    assert all(re.fullmatch(r"[0-9a-f]{64}", row.sha256) and "x86_64" in row.url for row in rows)
    assert FACTS.standalone_pythons("3.1", X86) == ()


def test_systems_of_images_have_glibc() -> None:
    glibc = {row.os: row.glibc for row in FACTS.systems}
    assert (glibc["ubuntu20.04"], glibc["ubuntu22.04"], glibc["ubuntu24.04"]) == ("2.31", "2.35", "2.39")
    assert {os for row in FACTS.images for os in row.os} <= set(glibc)


def test_edges_are_requirements_of_normalised_names() -> None:
    for row in FACTS.edges:
        assert canonicalize_name(row.package) == row.package
        assert SpecifierSet(row.versions) is not None
        for line in row.requires:
            assert canonicalize_name(Requirement(line).name) == Requirement(line).name


def test_edges_of_the_two_releases_whose_metadata_lies() -> None:
    assert [line for line, _ in extra_requirements(FACTS, "torchaudio", "2.11.0")] == ["torch>=2.11", "torch<2.15"]
    beside_cpu = extra_requirements(FACTS.without_cuda(), "torchaudio", "2.11.0")
    assert [line for line, _ in beside_cpu] == ["torch>=2.11"]
    assert [line for line, _ in extra_requirements(FACTS, "torchaudio", "2.10.0")] == []
    assert [line for line, _ in extra_requirements(FACTS, "torchtext", "0.18.0")] == ["torch>=2.3,<2.4"]


def test_no_torchaudio_goes_with_a_torch_for_another_cuda() -> None:
    with_audio = {row.version for row in FACTS.torch if "torchaudio" in fitting_set(FACTS, row.version)}
    assert {row.version for row in FACTS.torch} - with_audio == {"2.15.0"}


@pytest.mark.parametrize("torch", [row.version for row in FACTS.torch])
def test_every_torch_has_a_set(torch: str) -> None:
    """torch requires triton since 2.0, torchtext ended with torch 2.3, torchaudio has its number from 2.1 to 2.10."""
    fitting = fitting_set(FACTS.without_cuda(), torch)
    assert {"torchvision", "torchaudio"} <= set(fitting)
    assert ("triton" in fitting) == (numeric(torch) >= (2, 0))
    assert ("torchtext" in fitting) == (numeric(torch) < (2, 4))
    assert numeric(torch) < (2, 1) or fitting["torchaudio"] == (torch if numeric(torch) < (2, 11) else "2.11.0")


def test_default_variants() -> None:
    assert FACTS.default_variant("2.9.1", X86) == "cu128"
    assert FACTS.default_variant("2.9.1", ARM) == "cpu"
    assert FACTS.default_variant("2.13.0+cu130", ARM) == "cu130"
    assert FACTS.default_variant("9.9.9", X86) is None


def test_driver_of_a_release_without_a_row() -> None:
    assert FACTS.driver_of("12.8.2").cuda == "12.8.1"
    assert FACTS.driver_of("12.99").minimum == "525.60.13"
    assert FACTS.driver_of("12.99").bundled is None
    with pytest.raises(UsageError, match=r"no driver is known for CUDA 99\.0"):
        FACTS.driver_of("99.0")


def test_version_is_that_of_the_files() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", facts_version())
    assert facts_version() == load_facts({"gpu": []}).version


def test_a_torch_of_the_spec_extends_and_replaces() -> None:
    row = {"default": {"linux-64": "cu134"}, "variants": ["cu134"], "gpu_code": {"cu134": ["sm_90"]}}
    facts = load_facts({"torch": [{"version": "2.16.0", **row}]})
    assert (facts.torch[-1].version, facts.torch[-1].source) == ("2.16.0", "the spec's [facts]")
    code = facts.gpu_code_of("2.16.0", "cu134", X86)
    assert code and code.sm == ("sm_90",)
    own = load_facts({"torch": [{"version": "2.9.1", **row}]})
    assert own.default_variant("2.9.1", X86) == "cu134"
    assert len(own.torch) == len(FACTS.torch)


def test_rows_of_the_spec_go_first() -> None:
    digest = {"digest": f"sha256:{'0' * 64}", "kind": "index", "platforms": ["linux-64"]}
    facts = load_facts({"digest": [{"tag": "12.8.1-base-ubuntu24.04", **digest}]})
    found = facts.digest_of("12.8.1-base-ubuntu24.04", X86)
    assert found and found.digest == f"sha256:{'0' * 64}"
