"""Records of a channel and packages of a lock, both ways; which builds are CUDA builds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rattler import MatchSpec, PackageRecord, RepoDataRecord
from rattler.package.build_string import BuildString

from envspec.models import CondaPackage, Dependent
from envspec.resolve.conda.channel_client import without_credentials
from envspec.resolve.conda.channels import open_channels
from envspec.resolve.conda.records import (
    available_records,
    constrained_name,
    cpu_fallbacks,
    cuda_constraint,
    is_cpu_build,
    is_cuda_build,
    name_of,
    package_of,
    record_of,
    with_askers,
)
from envspec.resolve.types import Channel
from tests.support.builders.conda_channel import request, row, write_channel


def records_of(folder: Path, *names: str) -> tuple[list[RepoDataRecord], Channel]:
    url = folder.as_uri()
    channel = Channel("forge", url, url)

    async def query() -> list[RepoDataRecord]:
        async with open_channels([channel], folder / "cache", {}, offline=False) as channels:
            return await channels.records(request(channels=[channel]), names)

    return asyncio.run(query()), channel


WHOLE = {
    "license": "BSD-3-Clause",
    "license_family": "BSD",
    "features": "mkl",
    "track_features": "mkl debug",
    "python_site_packages_path": "lib/python3.14t/site-packages",
    "noarch": "generic",
}


def test_a_package_has_all_fields_of_its_record(tmp_path: Path) -> None:
    given = row("a", "1!2.0+cu", "h_7", depends=["b >=2", "c"], constrains=["d <1"], build_number=7, more=WHOLE)
    old_format = row("a", "1", "0", suffix=".tar.bz2", subdir="noarch", built=None)
    write_channel(tmp_path, [given, old_format])
    records, channel = records_of(tmp_path, "a")
    whole, bare = (package_of(each, [channel]) for each in sorted(records, key=lambda each: each.subdir))
    fields = given.fields()
    same = ("name", "version", "build", "build_number", "sha256", "md5")
    assert [getattr(whole, key) for key in same] == [fields[key] for key in same]
    assert (whole.size_bytes, whole.timestamp_ms) == (fields["size"], fields["timestamp"])
    assert (whole.depends, whole.constrains) == (("b >=2", "c"), ("d <1",))
    assert (whole.license, whole.license_family, whole.features) == ("BSD-3-Clause", "BSD", "mkl")
    assert (whole.track_features, whole.noarch) == (("mkl", "debug"), "generic")
    assert whole.python_site_packages_path == "lib/python3.14t/site-packages"
    assert (whole.channel, whole.url) == ("forge", f"{channel.url}/linux-64/a-1!2.0+cu-h_7.conda")
    assert (bare.filename, bare.subdir, bare.noarch, bare.timestamp_ms) == ("a-1-0.tar.bz2", "noarch", "python", None)


def test_a_record_of_another_channel(tmp_path: Path) -> None:
    write_channel(tmp_path, [row("a", "1")])
    (record,), channel = records_of(tmp_path, "a")
    other = Channel("other", "https://conda.example.org/other", "https://conda.example.org/other")
    package = package_of(record, [other])
    assert (package.channel, package.url) == (channel.url, f"{channel.url}/linux-64/a-1-0.conda")


AT = "https://conda.example.org/forge/noarch/pkg-1-0.conda"
texts = st.text("abcdefgh0123456789", min_size=1, max_size=8)
packages = st.builds(
    CondaPackage,
    name=texts,
    version=st.sampled_from(["1", "2.0.1", "1!3.4rc1", "2025.3.0"]),
    build=texts,
    build_number=st.integers(0, 999),
    channel=st.just("forge"),
    subdir=st.sampled_from(["linux-64", "noarch", "osx-arm64"]),
    filename=st.just("pkg-1-0.conda"),
    url=st.sampled_from(["linux-64", "noarch"]).map(lambda sub: f"https://conda.example.org/forge/{sub}/pkg-1-0.conda"),
    sha256=st.binary(min_size=32, max_size=32).map(bytes.hex),
    md5=st.none() | st.binary(min_size=16, max_size=16).map(bytes.hex),
    size_bytes=st.none() | st.integers(1, 10**12),
    timestamp_ms=st.none() | st.integers(1, 10**13),
    depends=st.lists(texts, max_size=3).map(tuple),
    constrains=st.lists(texts, max_size=3).map(tuple),
    noarch=st.sampled_from(["", "python", "generic"]),
    track_features=st.lists(texts, max_size=3).map(tuple),
    **dict.fromkeys(("license", "license_family", "features", "python_site_packages_path"), st.none() | texts),
)


@given(packages)
@example(CondaPackage("a", "1", "0", 0, "forge", "noarch", "pkg-1-0.conda", AT, "00" * 32, timestamp_ms=1099374963218))
def test_package_and_record_are_the_same_both_ways(package: CondaPackage) -> None:
    channel = Channel("forge", "https://conda.example.org/forge", "https://conda.example.org/forge")
    assert package_of(record_of(package), [channel]) == package


def test_records_that_the_channel_still_has(tmp_path: Path) -> None:
    write_channel(tmp_path, [row("a", "1"), row("b", "1"), row("c", "1")])
    records, channel = records_of(tmp_path, "a", "b", "c")
    before = [package_of(each, [channel]) for each in records]
    left = [each for each in records if each.name.normalized != "b"]
    assert sorted(each.file_name for each in available_records(before, left)) == ["a-1-0.conda", "c-1-0.conda"]
    write_channel(tmp_path, [row("a", "1", more={"sha256": "00" * 32})])
    assert available_records(before, records_of(tmp_path, "a")[0]) == []


def test_what_requires_a_package() -> None:
    def package(name: str, *depends: str) -> CondaPackage:
        return CondaPackage(name, "1", "0", 0, "f", "noarch", "f", "u", "00", depends=depends)

    chosen = [package("numpy", "python", "libblas >=3.9"), package("libblas"), package("python", "numpy >1")]
    found = with_askers(chosen, ["forge::numpy 2.*", "Python >=3"])
    assert {each.name: each.required_by for each in found} == {
        "libblas": (Dependent("numpy", "libblas >=3.9"),),
        "numpy": (Dependent("python", "numpy >1"), Dependent("spec", "forge::numpy 2.*")),
        "python": (Dependent("numpy", "python"), Dependent("spec", "Python >=3")),
    }
    assert [each.name for each in found] == ["libblas", "numpy", "python"]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("numpy", "numpy"),
        ("numpy >=2,<3", "numpy"),
        ("numpy>=2", "numpy"),
        ("numpy=2.3", "numpy"),
        ("conda-forge::numpy 2.*", "numpy"),
        ("https://conda.example.org/x::numpy", "numpy"),
        ("conda-forge/linux-64::NumPy", "numpy"),
        ("python[version='>=3.10']", "python"),
        ("_libgcc_mutex 0.1 conda_forge", "_libgcc_mutex"),
        ("__cuda >=12", "__cuda"),
    ],
)
def test_the_name_in_a_match_spec(spec: str, name: str) -> None:
    assert name_of(spec) == name


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("https://user:pass@conda.example.org/forge/", "https://conda.example.org/forge"),
        ("https://conda.example.org/t/TOKEN/forge", "https://conda.example.org/forge"),
        ("https://u:********@conda.example.org/t/********/forge/", "https://conda.example.org/forge"),
        (
            "https://conda.example.org/forge/linux-64/a-1-0.conda?sig=1#x",
            "https://conda.example.org/forge/linux-64/a-1-0.conda",
        ),
        ("file:///srv/t/forge", "file:///srv/t/forge"),
    ],
)
def test_a_channel_without_credentials(url: str, bare: str) -> None:
    assert without_credentials(url) == bare


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


def record(name: str, version: str, build: str) -> PackageRecord:
    return PackageRecord(name, version, BuildString(build), 0, "linux-64")


@pytest.mark.parametrize(("build", "kind"), BUILDS.items())
def test_cuda_and_cpu_builds(build: str, kind: str) -> None:
    torch = record("torch", "2.8", build)
    assert (is_cuda_build(torch), is_cpu_build(torch)) == (kind == "cuda", kind == "cpu")
    assert MatchSpec(cuda_constraint("torch"), strict=True).matches(torch) == is_cuda_build(torch)


def test_the_name_in_a_constraint() -> None:
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
    build = record("torch", *chosen)
    known = [record("torch", *each) for each in cuda]
    assert cpu_fallbacks([record("zlib", "1", "h0_0"), build], known) == ([build] if expected else [])


def test_fallbacks_are_sorted_by_name() -> None:
    chosen = [record(name, "1", "cpu_0") for name in ("torch", "jaxlib", "faiss")]
    known = [record(name, "1", "cuda126_0") for name in ("jaxlib", "torch", "faiss")]
    assert [build.name.normalized for build in cpu_fallbacks(chosen, known)] == ["faiss", "jaxlib", "torch"]
