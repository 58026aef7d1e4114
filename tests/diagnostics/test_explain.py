"""Explanations of locks beyond the golden cases of tests/report/test_report.py."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from envspec.diagnostics.explain import GpuDriver, explain_lock, explain_package
from envspec.errors import UsageError
from envspec.models import PACKAGES, Decision, Driver, NamedIndex, Override, Rejected
from envspec.reasons import reason
from envspec.structs import replace
from tests.support.builders.locks import X86, example, lock, package, resolution

AS_OF = datetime(2026, 6, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", ["corp-tools", "Corp_Tools", "CORP.tools", "corp--tools"])
def test_any_spelling_of_a_name(name: str) -> None:
    assert explain_package(example(), name).name == "corp-tools"


def test_downloads_add_up() -> None:
    download = explain_lock(example()).platforms[0].download
    known = [item.file.size_bytes for item in example().resolutions[0].packages if item.file.size_bytes is not None]
    assert download.size_bytes == sum(known)
    assert download.files == len(known) + 1
    assert download.unsized == ("tiny-model",)
    assert [name for name, _ in download.largest[:2]] == ["torch", "nvidia-cudnn-cu12"]


def test_gpus_that_need_a_newer_driver_than_the_lock() -> None:
    made = lock(resolution(X86, package("x", "1.0")), gpus=("A100", "B200"), driver=Driver("525.60.13", None, (), ""))
    source = "NVIDIA CUDA toolkit release notes, driver table (public copy)"
    assert explain_lock(made).gpu_drivers == (GpuDriver("B200", "570.26", "12.8", source),)
    assert explain_lock(replace(made, driver=None)).gpu_drivers == ()


def test_a_long_chain_is_the_shortest_of_all() -> None:
    ring = [package(f"p{place}", "1.0", (f"p{place - 1}", f"p{place}")) for place in range(1, 60)]
    one = lock(resolution(X86, package("p0", "1.0"), *ring, package("end", "1.0", ("p59", "end"), ("p3", "end"))))
    chains = explain_package(one, "end").variants[0].chains
    assert sorted(len(chain) for chain in chains) == [5, 61]
    assert all(chain[0].name == "spec" for chain in chains)


def test_what_an_override_removes() -> None:
    removes = Override("gone", "gone", "x has the same files", removed=True)
    bounds = Override("lib", "lib<2", "too narrow")
    made = lock(resolution(X86, package("x", "1.0")), overrides=(removes, bounds))
    with pytest.raises(UsageError, match=r"Gone is not in small: pip.overrides removes it \(x has the same files\)"):
        explain_package(made, "Gone")
    with pytest.raises(UsageError, match="lib is not in small\n"):
        explain_package(made, "lib")


@pytest.mark.parametrize(
    ("index", "as_of", "is_newest"),
    [
        ("default", AS_OF, True),
        ("dated", AS_OF, True),
        ("undated", None, True),
        ("pytorch-cu128", None, True),
        ("url", None, False),
        ("git", None, False),
    ],
)
def test_the_newest_release_of_its_index(index: str, as_of: datetime | None, is_newest: bool) -> None:
    one = package("lib", "1.0")
    indexes = tuple(
        NamedIndex(name, "https://example.com", ("lib",), undated=name == "undated") for name in ("dated", "undated")
    )
    made = replace(
        lock(resolution(X86, replace(one, file=replace(one.file, index=index)))), indexes=indexes, as_of=AS_OF
    )
    [variant] = explain_package(made, "lib").variants
    assert (variant.as_of, variant.is_newest) == (as_of, is_newest)
    later = replace(made, package_as_of=(("lib", AS_OF + timedelta(days=9)),))
    assert explain_package(later, "lib").variants[0].as_of == (as_of and as_of + timedelta(days=9))


def test_no_newest_release_if_the_versions_are_those_of_another_tool() -> None:
    made = lock(resolution(X86, package("lib", "1.0")))
    adopted = Decision(PACKAGES, "uv.lock", (reason("packages-of-lock"),), "the spec: pip.from")
    [variant] = explain_package(replace(made, decisions=(*made.decisions, adopted)), "lib").variants
    assert (variant.as_of, variant.is_newest) == (None, False)


def test_no_newest_release_if_a_newer_one_was_rejected() -> None:
    made = lock(
        resolution(
            X86,
            replace(package("lib", "1.0"), rejected=Rejected("2.0", (reason("spec-requires", requirement="lib<2"),))),
        )
    )
    assert not explain_package(made, "lib").variants[0].is_newest
