"""Explanations of locks beyond the golden cases of tests/report/test_report.py."""

from __future__ import annotations

import pytest

from envspec.diagnostics.explain import explain_lock, explain_package
from envspec.errors import UsageError
from envspec.models import Decision
from tests.support.builders.locks import X86, example, lock, package, resolution


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


def test_a_long_chain_is_the_shortest_of_all() -> None:
    ring = [package(f"p{place}", "1.0", (f"p{place - 1}", f"p{place}")) for place in range(1, 60)]
    one = lock(resolution(X86, package("p0", "1.0"), *ring, package("end", "1.0", ("p59", "end"), ("p3", "end"))))
    chains = explain_package(one, "end").variants[0].chains
    assert sorted(len(chain) for chain in chains) == [5, 61]
    assert all(chain[0].name == "spec" for chain in chains)


def test_what_an_override_removes() -> None:
    removes = Decision("override.gone", "removed: gone", "x has the same files", "the spec: pip.overrides")
    bounds = Decision("override.lib", "lib<2", "too narrow", "the spec: pip.overrides")
    made = lock(resolution(X86, package("x", "1.0")), decisions=(removes, bounds))
    with pytest.raises(UsageError, match=r"Gone is not in small: pip.overrides removes it \(x has the same files\)"):
        explain_package(made, "Gone")
    with pytest.raises(UsageError, match="lib is not in small\n"):
        explain_package(made, "lib")
