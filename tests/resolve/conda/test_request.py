"""Requests for a conda solver, for each platform, and their channels."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from rattler import BuildString, MatchSpec, PackageRecord

from envspec.errors import UsageError
from envspec.facts import Facts, load_facts
from envspec.models import CondaPackage, CudaVersion, Platform
from envspec.resolve.conda.request import channels_of, conda_request, decisions_of
from envspec.resolve.types import CondaRequest, Cutoffs
from envspec.spec import Spec, parse_spec
from envspec.spec.targets import has_cuda

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
FACTS = load_facts()
EVERYWHERE = 'platforms = ["linux-64", "linux-aarch64", "osx-arm64", "win-64"]\n'


def spec(more: str, python: str = "3.13", platforms: str = EVERYWHERE) -> Spec:
    return parse_spec(f'[env]\nname = "x"\npython = "{python}"\n{platforms}{more}', "spec.toml", NOW)


def asked(of: Spec, platform: Platform = Platform.LINUX_64, facts: Facts = FACTS) -> CondaRequest:
    return conda_request(of, platform, facts, Cutoffs(NOW, {}), (), channels_of(of, {}, {}))


def machine(of: Spec, platform: Platform) -> dict[str, str]:
    return {package.name: str(package) for package in asked(of, platform).virtual_packages}


def takes(spec: str, version: str) -> bool:
    """Whether a match spec takes a version of the package that it names."""
    meant = MatchSpec(spec)
    assert meant.name is not None
    return meant.matches(PackageRecord(meant.name.normalized, version, BuildString("0"), 0, "linux-64"))


# --- channels ------------------------------------------------------------------------------------------------------

CHANNELS = """[conda]
channels = ["conda-forge", "pytorch/label/test", "https://${WHO}:${PASS}@Conda.example.com/t/${TOKEN}/own/",
            "http://user:word@127.0.0.1:8080/c", "file://localhost/srv/channel"]
"""


def test_channels_with_and_without_their_credentials() -> None:
    found = channels_of(spec(CHANNELS), {"WHO": "me", "PASS": "p@ss/wörd%", "TOKEN": "to-1", "OTHER": "x"}, {})
    public = "https://conda.anaconda.org"
    own = "https://me:p%40ss%2Fw%C3%B6rd%25@Conda.example.com/t/to-1/own"
    assert [(channel.name, channel.url, channel.address) for channel in found] == [
        ("conda-forge", f"{public}/conda-forge", f"{public}/conda-forge"),
        ("pytorch/label/test", f"{public}/pytorch/label/test", f"{public}/pytorch/label/test"),
        ("https://Conda.example.com/own", "https://conda.example.com/own", own),
        ("http://127.0.0.1:8080/c", "http://127.0.0.1:8080/c", "http://user:word@127.0.0.1:8080/c"),
        ("file://localhost/srv/channel", "file:///srv/channel", "file:///srv/channel"),
    ]
    assert {channel.repodata for channel in found} == {None}


@pytest.mark.parametrize("token", [{}, {"TOKEN": ""}])
def test_a_variable_that_is_not_set(token: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="TOKEN, which is not set") as caught:
        channels_of(spec(CHANNELS), {"WHO": "me", "PASS": "s3cr3t", **token}, {})
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.exit_code == 2 and caught.value.hint


def test_folders_of_rows_stand_for_channels() -> None:
    one, other = Path("one"), Path("other")
    environ = {"WHO": "a", "PASS": "b", "TOKEN": "c"}
    rows = {"https://conda.anaconda.org/conda-forge/": one, "https://conda.example.com/own": other}
    found = channels_of(spec(CHANNELS), environ, rows)
    assert [channel.repodata for channel in found] == [one, None, other, None, None]
    assert rows.keys() == {"https://conda.anaconda.org/conda-forge/", "https://conda.example.com/own"}


# --- requirements --------------------------------------------------------------------------------------------------


def test_cutoffs_undated_and_locked() -> None:
    package = CondaPackage("python", "3.13.5", "0", 0, "conda-forge", "linux-64", "f", "u", "0" * 64)
    earlier, cutoffs = NOW - timedelta(days=30), {"numpy": NOW}
    found = spec('[conda]\nundated = "accept"\n')
    result = conda_request(found, Platform.LINUX_64, FACTS, Cutoffs(earlier, cutoffs), (package,), ())
    assert (result.as_of, result.cutoffs, result.undated, result.locked) == (earlier, cutoffs, True, (package,))
    assert (result.cutoff_of("numpy"), result.cutoff_of("scipy")) == (NOW, earlier)
    assert conda_request(found, Platform.LINUX_64, FACTS, Cutoffs(earlier, cutoffs, NOW), (), ()).as_of == NOW
    assert asked(spec("[conda]\n")).undated is False


# --- the machine ---------------------------------------------------------------------------------------------------


def test_cuda_of_a_version() -> None:
    found = spec('[cuda]\nversion = "12.8"\nos = "ubuntu22.04"\n[conda]\n')
    for platform in (Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.WIN_64):
        result = asked(found, platform)
        assert result.cuda == CudaVersion(12, 8)
        assert result.constraints == ("cuda-version <=12.8", "cudatoolkit <12.9")
        assert machine(found, platform)["__cuda"] == "__cuda=12.8"
    assert machine(found, Platform.LINUX_64)["__glibc"] == "__glibc=2.35"
    mac = asked(found, Platform.OSX_ARM64)
    assert mac.cuda is None and mac.constraints == () and "__cuda" not in machine(found, Platform.OSX_ARM64)


@pytest.mark.parametrize(
    ("cap", "name", "version", "fits"),
    [
        ("11.7", "cudatoolkit", "11.7.1", True),
        ("11.7", "cudatoolkit", "11.6.2", True),
        ("11.7", "cudatoolkit", "11.8.0", False),
        ("11.8", "cuda-version", "11.8", True),
        ("12.8", "cuda-version", "12.8", True),
        ("12.8", "cuda-version", "12.9", False),
        ("12.9", "cuda-version", "12.10", False),
        ("12.9", "cuda-version", "13.0", False),
    ],
)
def test_what_the_cap_lets_in(cap: str, name: str, version: str, fits: bool) -> None:
    bounds = {bound.split()[0]: bound for bound in asked(spec(f'[cuda]\nversion = "{cap}"\n[conda]\n')).constraints}
    assert takes(bounds[name], version) is fits


def test_cuda_without_a_version_is_the_newest_that_has_a_driver_and_no_cap() -> None:
    found = spec("[cuda]\n[conda]\n")
    newest = max(CudaVersion.parse(row.cuda) for row in FACTS.drivers)
    assert asked(found).cuda == newest and asked(found).constraints == ()
    assert machine(found, Platform.LINUX_64)["__cuda"] == f"__cuda={newest}"
    assert asked(found, Platform.WIN_64).cuda is None and "__cuda" not in machine(found, Platform.WIN_64)
    added = load_facts({"driver": [{"cuda": "19.1", "minimum": "900", "source": "a data sheet"}]})
    assert asked(found, facts=added).cuda == CudaVersion(19, 1)


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ("[pip]\n", ()),
        ("[cuda]\n", (Platform.LINUX_64, Platform.LINUX_AARCH64)),
        ('[cuda]\nversion = "12.8"\n', (Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.WIN_64)),
    ],
)
def test_where_cuda_applies(section: str, where: tuple[Platform, ...]) -> None:
    found = spec(section)
    assert tuple(platform for platform in Platform if has_cuda(found, platform)) == where


VIRTUAL = """[cuda]
version = "12.8"
[conda]
[conda.virtual_packages]
__linux = "6.8"
__osx = "15.1"
__cuda = "12.9"
__mine = "1.0"
[conda.platform.linux-64.virtual_packages]
__archspec = "x86_64_v3"
__linux = "6.11"
"""


def test_virtual_packages_of_the_spec() -> None:
    found = spec(VIRTUAL)
    arm = machine(found, Platform.LINUX_AARCH64)
    assert (arm["__linux"], arm["__archspec"]) == ("__linux=6.8", "__archspec=1=aarch64")
    mac = machine(found, Platform.OSX_ARM64)
    assert mac["__osx"] == "__osx=15.1" and not {"__cuda", "__linux"} & mac.keys()
    assert machine(found, Platform.WIN_64).keys() == {"__archspec", "__cuda", "__mine", "__win"}


# --- decisions -----------------------------------------------------------------------------------------------------


def test_decisions() -> None:
    machine_of, cap = decisions_of(spec(VIRTUAL), FACTS, Platform.LINUX_64)
    assert (machine_of.what, cap.what) == ("conda.virtual_packages", "conda.cuda_version")
    assert machine_of.value == ("__archspec=1=x86_64_v3, __cuda=12.9, __glibc=2.39, __linux=6.11, __mine=1.0, __unix=0")
    assert machine_of.source.startswith("the spec: conda.virtual_packages; ")
    assert (cap.value, cap.source) == ("<=12.8", "the spec: cuda.version")
    assert {machine_of.platform, cap.platform} == {Platform.LINUX_64}
    (without_version,) = decisions_of(spec("[cuda]\n[conda]\n"), FACTS, Platform.LINUX_64)
    assert max(FACTS.drivers, key=lambda row: CudaVersion.parse(row.cuda)).source in without_version.source
