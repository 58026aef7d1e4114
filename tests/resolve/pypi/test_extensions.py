"""Which wheel of an extension fits: torch, C++ ABI, CUDA, Python and GPUs, against tables written by hand."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cache, partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envspec.facts import load_facts
from envspec.facts.extensions import Extensions, Label, read_label, without_order
from envspec.facts.gpu import find_gpu
from envspec.models import Platform, Python, Target
from envspec.resolve.pypi.extensions import published_elsewhere
from envspec.resolve.pypi.index.page import ListedFile, PageListing
from envspec.resolve.pypi.index.selection import Selection, SelectionPolicy, TagRanks, select, version_of, version_text
from envspec.spec.targets import wheel_tags

FACTS = load_facts()
NOW = datetime(2026, 11, 23, tzinfo=timezone.utc)

#: torch -> the CUDA of its default build, and of the others that were published.
BUILDS = {
    "2.4.1": ("12.1", "11.8 12.4"),
    "2.5.1": ("12.4", "11.8 12.1"),
    "2.6.0": ("12.4", "11.8 12.6"),
    "2.7.1": ("12.6", "11.8 12.8"),
    "2.8.0": ("12.8", "12.6 12.9"),
    "2.9.1": ("12.8", "12.6 13.0"),
    "2.10.0": ("12.8", "12.6 13.0"),
    "2.11.0": ("13.0", "12.6 12.8"),
}
#: The builds whose C++ strings are the old ones.
OLD_ABI = {("2.4.1", "*"), ("2.5.1", "*"), ("2.6.0", "11.8"), ("2.6.0", "12.4")}
#: What the page has: torch and CUDA, each for both ABIs and for Python 3.10 to 3.12.
ON_THE_PAGE = {
    "2.4": "11 12",
    "2.5": "11 12",
    "2.6": "11 12",
    "2.7": "12",
    "2.8": "12",
    "2.9": "12 13",
    "2.10": "12 13",
}
PAGE = [
    f"flash_attn-2.8.3+cu{cuda}torch{torch}cxx11abi{abi}-{python}-{python}-linux_x86_64.whl"
    for torch, cudas in ON_THE_PAGE.items()
    for cuda in cudas.split()
    for abi in ("FALSE", "TRUE")
    for python in ("cp310", "cp311", "cp312")
]


@cache
def ranks(python: str, platform: Platform = Platform.LINUX_64) -> TagRanks:
    return TagRanks(tuple(wheel_tags(Target(platform, Python(f"{python}.1", "spec"), glibc=(2, 39)))))


def selected(names: list[str], extensions: Extensions, python: str = "3.11", name: str = "flash-attn") -> Selection:
    rows = [ListedFile(each, f"https://x/{each}", None, None, None, None, None, None) for each in names]
    policy = SelectionPolicy(None, NOW, fits=partial(extensions.fits, name))
    listing = PageListing(tuple(names), rows.__getitem__)
    return select(listing, name, policy, ranks(python).loadable(listing))


def chosen(names: list[str], extensions: Extensions, torch: str, python: str, name: str = "flash-attn") -> str | None:
    """What a resolver takes beside a torch: of the versions that it sees, the highest whose requirement allows it."""
    found: dict[Version, str] = {}
    for file in selected(names, extensions, python, name).files:
        version = version_of(file)
        assert version is not None
        requirement = extensions.requirement(name, version)
        if requirement is None or Requirement(requirement).specifier.contains(torch):
            found[Version(extensions.shown(name, str(version)))] = file
    return found[max(found)] if found else None


def expected(torch: str, cuda: str, python: str) -> str | None:
    minor, major = torch.rpartition(".")[0], cuda.partition(".")[0]
    if major not in ON_THE_PAGE.get(minor, "").split() or python not in ("3.10", "3.12"):
        return None
    abi = "FALSE" if {(torch, "*"), (torch, cuda)} & OLD_ABI else "TRUE"
    tag = f"cp{python.replace('.', '')}"
    return f"flash_attn-2.8.3+cu{major}torch{minor}cxx11abi{abi}-{tag}-{tag}-linux_x86_64.whl"


CASES = [
    (torch, cuda, python)
    for torch, (default, others) in BUILDS.items()
    for cuda in (None, default, *others.split())
    for python in ("3.10", "3.12", "3.13")
]


@pytest.mark.parametrize(("torch", "cuda", "python"), CASES)
def test_the_wheel_for_a_build_of_torch(torch: str, cuda: str | None, python: str) -> None:
    """cuda: [cuda] version; None: each release's default build."""
    variant = f"cu{cuda.replace('.', '')}" if cuda else None
    extensions = Extensions(FACTS, Platform.LINUX_64, variant)
    assert chosen(PAGE, extensions, torch, python) == expected(torch, cuda or BUILDS[torch][0], python)


@pytest.mark.parametrize(
    ("gpu", "fits"),
    [
        ("V100", False),
        ("T4", False),
        ("A100", True),
        ("RTX 4090", True),
        ("H100", True),
        ("B200", True),
        ("10.3", True),
        ("RTX 5090", True),
        ("11.0", False),
    ],
)
def test_the_gpu_code_of_the_wheels(gpu: str, fits: bool) -> None:
    """flash-attn 2.8.3 has code for sm_80, 90, 100 and 120, and no PTX; of 2.7 it is not known."""
    extensions = Extensions(FACTS, Platform.LINUX_64, "cu128", gpus=(find_gpu(FACTS, gpu),))
    assert (chosen(PAGE, extensions, "2.8.0", "3.12") is not None) is fits
    older = [name.replace("2.8.3", "2.7.4") for name in PAGE]
    assert chosen(older, extensions, "2.8.0", "3.12") is not None


@pytest.mark.parametrize(
    ("name", "version", "label"),
    [
        ("flash-attn", "2.8.3+cu12torch2.8cxx11abiTRUE", Label("2.8", "cu12", new_abi=True)),
        ("flash-attn", "2.8.3+cu12torch2.10cxx11abiFALSE", Label("2.10", "cu12", new_abi=False)),
        ("flash-attn", "2.8.3+cu12.torch2.8.cxx11abiTRUE", None),
        ("flash-attn", "2.8.3", None),
        ("mamba-ssm", "2.3.1+cu13torch2.10cxx11abiTRUE", Label("2.10", "cu13", new_abi=True)),
        ("mamba-ssm", "2.3.1+hip63torch2.8cxx11abiTRUE", None),
        ("torch-scatter", "2.1.2+pt28cu128", Label("2.8", "cu128")),
        ("torch-scatter", "2.1.2+pt210cpu", Label("2.10", "cpu")),
        ("torch-cluster", "1.6.3+pt20cu118", Label("2.0", "cu118")),
        ("natten", "0.21.6+torch2100cu130", Label("2.10", "cu130")),
        ("natten", "0.21.1+torch280cu129", Label("2.8", "cu129")),
        ("natten", "0.21.1+torch251cu124", Label("2.5", "cu124")),
        ("gptqmodel", "4.0.0+cu126torch2.7", Label("2.7", "cu126")),
        ("auto-gptq", "0.7.1+cu118", Label("", "cu118")),
        ("numpy", "2.0+cu118", None),
    ],
)
def test_labels(name: str, version: str, label: Label | None) -> None:
    row = FACTS.extension(name, Version(version).public)
    assert (read_label(row, Version(version)) if row else None) == label


@pytest.mark.parametrize(
    ("name", "label", "variant", "torch"),
    [
        # An older minor version of CUDA runs with the libraries of a newer one, not the other way round.
        ("torch-scatter", "pt28cu126", "cu128", "2.8.0"),
        ("torch-scatter", "pt28cu128", "cu128", "2.8.0"),
        ("torch-scatter", "pt28cu129", "cu128", None),
        ("torch-scatter", "pt28cu118", "cu128", None),
        ("torch-scatter", "pt28cpu", "cu128", None),
        ("torch-scatter", "pt28cpu", "cpu", "2.8.0"),
        ("torch-scatter", "pt28cu128", "cpu", None),
        ("natten", "torch290cu130", "cu130", "2.9.1"),
        ("natten", "torch290cu130", None, None),
        ("natten", "torch280cu128", None, "2.8.0"),
        # A release of NVIDIA's containers is no release of torch.
        ("mamba-ssm", "cu13torch25.08cxx11abiTRUE", "cu130", None),
        # A form that no row has, and one that nobody has verified.
        ("flash-attn", "mycorp1", "cu128", None),
        ("detectron2", "cu113", "cu113", None),
    ],
)
def test_labels_and_builds(name: str, label: str, variant: str | None, torch: str | None) -> None:
    versions = {"torch-scatter": "2.1.2", "natten": "0.21.1", "mamba-ssm": "2.3.1", "flash-attn": "2.8.3"}
    version = Version(f"{versions.get(name, '0.6')}+{label}")
    extensions = Extensions(FACTS, Platform.LINUX_64, variant)
    assert extensions.fits(name, version) is (torch is not None)
    if torch is not None:
        assert Requirement(extensions.requirement(name, version) or "").specifier.contains(torch)
        assert not Requirement(extensions.requirement(name, version) or "").specifier.contains("2.12.0")


def test_a_label_without_a_torch_bounds_it_by_its_cuda() -> None:
    """The default builds of torch are for CUDA 12 from 2.1 to 2.10, and for 13 from 2.11 on."""
    version = Version("0.7.1+cu121")
    requirement = Requirement(Extensions(FACTS, Platform.LINUX_64).requirement("auto-gptq", version) or "")
    assert [torch for torch in BUILDS if requirement.specifier.contains(torch)] == list(BUILDS)[:-1]
    assert not requirement.specifier.contains("2.0.1")
    assert Extensions(FACTS, Platform.LINUX_64, "cu121").requirement("auto-gptq", version) is None


@pytest.mark.parametrize(
    ("label", "variant", "torch", "lines"),
    [
        (Label("2.8", "cu12", new_abi=True), None, "", ()),
        (Label("2.8", "cu12", new_abi=True), None, "==2.11.0", ('"torch==2.8.*"',)),
        (Label("2.8", "cu129"), None, "==2.8.0", ('[cuda] version = "12.9"',)),
        (Label("2.6", "cu12", new_abi=True), None, "==2.6.0", ('[cuda] version = "12.6"',)),
        (Label("2.6", "cu12", new_abi=False), "cu126", "==2.6.0", ('[cuda] version = "12.4"',)),
        (Label("2.9", "cu13", new_abi=True), "cu128", "==2.8.0", ('"torch==2.9.*"', '[cuda] version = "13.0"')),
        (Label("2.8", "cu12"), "cpu", "==2.8.0", None),
        (Label("25.08", "cu13"), None, "", None),
    ],
)
def test_the_smallest_change(label: Label, variant: str | None, torch: str, lines: tuple[str, ...] | None) -> None:
    found = Extensions(FACTS, Platform.LINUX_64, variant, torch=SpecifierSet(torch)).changes(label)
    assert (found[2] if found else None) == lines


def test_a_release_that_no_row_describes_has_labels_of_the_usual_form_and_no_known_page() -> None:
    extensions = Extensions(FACTS, Platform.LINUX_64, "cu121", torch=SpecifierSet("==2.2.*"))
    version = Version("2.5.9+cu118torch2.2cxx11abiFALSE")
    assert not extensions.fits("flash-attn", version)
    assert extensions.fits("flash-attn", Version("2.5.9+cu12torch2.2cxx11abiFALSE"))
    assert published_elsewhere([("flash-attn", "2.5.9"), ("numpy", "2.0")], extensions) == ""
    assert "torch 2.2" in published_elsewhere([("flash-attn", "2.7.4")], extensions)


@pytest.mark.parametrize("given", ["2.8.0+cu128", "2.8.0+cu126", "2.6.0+cu124"])
def test_a_torch_from_no_index_is_one_build(given: str) -> None:
    extensions = Extensions(FACTS, Platform.LINUX_64, given=Version(given))
    torch, _, variant = given.partition("+")
    assert chosen(PAGE, extensions, torch, "3.12") == expected(torch, f"12.{variant[-1]}", "3.12")
    other = [name for name in PAGE if f"torch{torch[:3]}c" not in name]
    assert not selected(other, extensions).files


def test_the_newest_release_without_a_fitting_wheel_is_said() -> None:
    names = [f"flash_attn-{text}-cp311-cp311-linux_x86_64.whl" for text in ("2.8.3+cu12torch2.8cxx11abiTRUE",)]
    newer = "flash_attn-2.8.4+cu13torch2.9cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
    same = "flash_attn-2.8.3+cu13torch2.9cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
    extensions = Extensions(FACTS, Platform.LINUX_64, "cu128")
    assert selected([*names, newer], extensions).unloadable == "2.8.4"
    assert selected([*names, same], extensions).unloadable is None


labels = st.sampled_from(sorted({version_text(name) for name in PAGE}))


@given(st.lists(labels, min_size=2, unique=True), st.sampled_from(["cu118", "cu124", "cu128", "cu130", None]))
def test_resolvers_see_the_newest_torch_first(versions: list[str], variant: str | None) -> None:
    extensions = Extensions(FACTS, Platform.LINUX_64, variant)
    shown = sorted((Version(extensions.shown("flash-attn", each)), each) for each in versions)
    torches = [read_label(FACTS.extensions[0], Version(each)) for _, each in shown]
    minors = [tuple(map(int, label.torch.split("."))) for label in torches if label]
    assert minors == sorted(minors)
    assert [without_order(str(version)) for version, _ in shown] == [str(Version(each)) for _, each in shown]


@given(labels)
def test_a_requirement_with_a_label_is_shown_as_its_version(version: str) -> None:
    extensions = Extensions(FACTS, Platform.LINUX_64)
    line = f'flash_attn[x] == {version} ; python_version > "3.8"'
    shown = Requirement(extensions.shown_line(line))
    assert shown.specifier.contains(extensions.shown("flash-attn", version)) and shown.marker and shown.extras == {"x"}
    assert extensions.shown_line(f"numpy=={version}") == f"numpy=={version}"
