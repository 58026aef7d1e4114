"""What is told of locks beyond the golden cases: names, sizes, and text that fits."""

from __future__ import annotations

import json

import pytest

from envspec.explain.explanation import explain_lock, explain_package
from envspec.explain.layout import size
from envspec.explain.package_text import package_text
from envspec.explain.text import as_json, lock_text
from tests.support.locks import X86, example, lock, package, resolution


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (899_755_466, "899.8 MB"), (7_800_000_000, "7.8 GB")],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


@pytest.mark.parametrize("name", ["corp-tools", "Corp_Tools", "CORP.tools", "corp--tools"])
def test_any_spelling_of_a_name(name: str) -> None:
    assert explain_package(example(), name).name == "corp-tools"


def test_downloads_add_up() -> None:
    told = explain_lock(example()).platforms[0].download
    known = [item.file.size_bytes for item in example().resolutions[0].packages if item.file.size_bytes is not None]
    assert told.size_bytes == sum(known)
    assert told.files == len(known) + 1
    assert told.unsized == ("tiny-model",)
    assert [name for name, _ in told.largest[:2]] == ["torch", "nvidia-cudnn-cu12"]


@pytest.mark.parametrize("width", [80, 120])
def test_prose_fits_the_width(width: int) -> None:
    """Hashes, URLs and tables stay whole; sentences are broken."""
    for line in (
        lock_text(explain_lock(example()), width) + package_text(explain_package(example(), "numpy"), width)
    ).splitlines():
        assert line == line.rstrip()
        assert len(line) <= width or any(sign in line for sign in ("sha256:", "://", "sm_"))


def test_a_long_chain_is_the_shortest_of_all() -> None:
    ring = [package(f"p{place}", "1.0", (f"p{place - 1}", f"p{place}")) for place in range(1, 60)]
    one = lock(resolution(X86, package("p0", "1.0"), *ring, package("end", "1.0", ("p59", "end"), ("p3", "end"))))
    chains = explain_package(one, "end").variants[0].chains
    assert sorted(len(chain) for chain in chains) == [5, 61]
    assert all(chain[0].name == "spec" for chain in chains)


def test_json_holds_what_the_explanation_holds() -> None:
    told = json.loads(as_json(explain_package(example(), "torch")))
    assert told["name"] == "torch"
    assert [item["platform"] for item in told["variants"][0]["files"]] == ["linux-64", "linux-aarch64"]
    assert [
        {"name": "spec", "version": None, "requirement": "torchaudio", "channel": None},
        {"name": "torchaudio", "version": "2.9.1", "requirement": "torch==2.9.1", "channel": None},
    ] in told["variants"][0]["chains"]
