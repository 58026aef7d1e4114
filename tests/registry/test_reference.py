"""Names of images: those of references.toml, and any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec import documents
from envspec.registry.reference import BadReference, endpoint_of, parse

CASES = documents.parse_toml((Path(__file__).parent / "references.toml").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_golden(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(BadReference) as caught:
            endpoint_of(parse(case["text"]), case.get("mirrors"))
        assert case["error"] in str(caught.value)
        assert caught.value.exit_code == 2
        return
    reference = parse(case["text"])
    place = endpoint_of(reference, case.get("mirrors"))
    assert {
        "name": reference.name,
        "asked": reference.tag_or_digest,
        "canonical": str(reference),
        "url": f"{place.base}/{place.repository}",
    } == case["expect"]
    assert parse(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ubuntu:24.04", "docker.io/library/ubuntu"),
        ("index.docker.io/nvidia/cuda", "docker.io/nvidia/cuda"),
        ("nvcr.io/nvidia/pytorch", "nvcr.io/nvidia/pytorch"),
        ("127.0.0.1:5000/base", "127.0.0.1:5000/base"),
        ("ghcr.io/team/base", "mirror.example.com:5000/hub/team/base"),
    ],
)
def test_the_name_for_an_engine(text: str, name: str) -> None:
    """Docker sends the login of docker.io, and asks its mirrors, only for images of that name."""
    assert endpoint_of(parse(text), {"ghcr.io": "mirror.example.com:5000/hub"}).image_name == name


LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
REGISTRY = st.builds(lambda a, b, port: f"{a}.{b}{port}", LABEL, LABEL, st.sampled_from(["", ":443", ":5000"]))
PATH = st.lists(st.from_regex(r"[a-z0-9]{1,5}((\.|_|__|-{1,3})[a-z0-9]{1,4})?", fullmatch=True), min_size=1, max_size=4)
TAG = st.from_regex(r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,20})?", fullmatch=True)
DIGEST = st.from_regex(r"(@sha256:[0-9a-f]{64})?", fullmatch=True)


@given(REGISTRY, PATH, TAG, DIGEST)
def test_a_full_name_is_written_as_it_was_read(registry: str, path: list[str], tag: str, digest: str) -> None:
    text = f"{registry}/{'/'.join(path)}{tag}{digest}"
    assert str(parse(text)) == text


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_way(text: str) -> None:
    try:
        reference = parse(text)
    except BadReference:
        return
    assert parse(str(reference)) == reference
    assert "//" not in endpoint_of(reference).repository
