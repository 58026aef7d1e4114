"""What belongs to the identity of a spec, and what does not."""

from __future__ import annotations

import pytest

from envspec import documents
from envspec.spec.identity import input_sha256

SPEC = """
[env]
name = "x"
python = "3.11"
as_of = 2026-11-15T00:00:00Z

[pip]
dependencies = ["torch", "numpy"]

[[pip.index]]
name = "corp"
url = "https://wheels.example.com/simple"
packages = ["corp-*"]
"""
SAME = input_sha256(documents.parse_toml(SPEC))


def digest(old: str = "", new: str = "", more: str = "") -> str:
    assert old in SPEC
    return input_sha256(documents.parse_toml(SPEC.replace(old, new) + more))


def test_it_is_the_same_forever() -> None:
    """A changed digest makes every committed lock stale: raise the lock's format when you mean it."""
    assert SAME == "f0a86f895306fb26d89befe7c30e1e9fd7d5245398923df4ad7281eba60dbed5"


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [
        ('name = "x"', "  name   =   'x' # a comment", ""),
        ("2026-11-15T00:00:00Z", "2026-11-15 02:00:00+02:00", ""),
        ("2026-11-15T00:00:00Z", "2026-11-15T00:00:00.000Z", ""),
        ('["torch", "numpy"]', '[\n  "torch", # first\n  "numpy",\n]', ""),
        ("https://wheels", "https://user:secret@wheels", ""),
        ("", "", '[registry.mirrors]\n"docker.io" = "registry.corp:5000"\n'),
        ("", "", "[registry]\n"),
        ("[pip]\n", "[pip]\nbuild.sandbox = false\n", ""),
    ],
)
def test_what_does_not_matter(old: str, new: str, more: str) -> None:
    assert digest(old, new, more) == SAME


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [
        ("2026-11-15T00:00:00Z", "2026-11-15T00:00:01Z", ""),
        ("as_of = 2026-11-15T00:00:00Z", 'as_of = "2026-11-15T00:00:00+00:00"', ""),
        ('["torch", "numpy"]', '["numpy", "torch"]', ""),
        ("/simple", "/other", ""),
        ("", "", '[registry]\nother = "x"\n'),
        ("", "", "[image.env]\nA = 1\n"),
    ],
)
def test_what_matters(old: str, new: str, more: str) -> None:
    assert digest(old, new, more) != SAME


@pytest.mark.parametrize(
    "channel",
    [
        *("https://conda.example.com/other", "https://other.example.com/channel", "http://conda.example.com/channel"),
        *("https://conda.example.com/tt/secret/channel", "file:///t/secret/channel", "channel"),
    ],
)
def test_which_channels_do_matter(channel: str) -> None:
    conda = '[conda]\nchannels = ["conda-forge", "%s"]\n'
    assert digest("", "", conda % channel) != digest("", "", conda % "https://conda.example.com/channel")


def test_only_channels_have_tokens() -> None:
    """In the address of an index, or of a wheel, `/t/` is a folder like any other."""
    assert digest("https://wheels.example.com/simple", "https://wheels.example.com/t/one/simple") != digest(
        "https://wheels.example.com/simple", "https://wheels.example.com/t/two/simple"
    )
    beside = '[conda]\ndependencies = ["%s"]\n'
    assert digest("", "", beside % "https://h/t/one/x") != digest("", "", beside % "https://h/t/two/x")


@pytest.mark.parametrize("value", ["7", '"conda-forge"', "{ a = 1 }", "[7, [1]]"])
def test_channels_of_no_spec_have_an_identity_too(value: str) -> None:
    assert digest("", "", f"[conda]\nchannels = {value}\n") != digest("", "", "[conda]\n")


def test_values_of_other_types_differ() -> None:
    texts = ["a = 1", "a = 1.0", "a = true", 'a = "1"', "a = 1970-01-01", "a = 00:00:00", "a = 1970-01-01T00:00:00"]
    texts += ["a = 1970-01-01T00:00:00Z", "a = []", "a = {}", 'a = { datetime = "1970-01-01T00:00:00+00:00" }']
    assert len({input_sha256(documents.parse_toml(text)) for text in texts}) == len(texts)


def test_it_leaves_the_document_as_it_is() -> None:
    data = {"registry": {"mirrors": {"a": "b"}}}
    assert input_sha256(data) == input_sha256({})
    assert data == {"registry": {"mirrors": {"a": "b"}}}


def test_moments_that_have_no_utc() -> None:
    early = input_sha256(documents.parse_toml("a = 0001-01-01T00:00:00+14:00"))
    assert early != input_sha256(documents.parse_toml("a = 0001-01-01T00:00:00+13:00"))
