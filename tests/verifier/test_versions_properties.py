"""Spellings of a version are distinguished as PEP 440 has it, without `packaging`, which images need not have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from packaging.version import Version

from envspec.verifier.scan import normalised, same_version
from tests.support.tries import tries

NUMBERS = st.integers(0, 12).map(str) | st.sampled_from(["00", "01", "2024"])
SEPARATORS = st.sampled_from(["", ".", "-", "_"])


def stage(*words: str) -> st.SearchStrategy[str]:
    return st.builds("".join, st.tuples(SEPARATORS, st.sampled_from(words), SEPARATORS, NUMBERS | st.just("")))


VERSIONS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "v", "V"]),
        st.sampled_from(["", "0!", "1!"]),
        st.lists(NUMBERS, min_size=1, max_size=4).map(".".join),
        st.just("") | stage("a", "b", "c", "rc", "alpha", "beta", "pre", "preview", "RC"),
        st.just("") | stage("post", "rev", "r", "POST") | NUMBERS.map("-{}".format),
        st.just("") | stage("dev", "Dev"),
        st.just("") | st.sampled_from(["+cu128", "+CU128", "+cu.1", "+cu_01", "+1.2"]),
    ),
)


def is_version(text: str) -> bool:
    try:
        Version(text)
    except ValueError:
        return False
    # A separator at its end, as in `1.0a.`, is read in more than one way.
    return text[-1].isalnum()


@settings(max_examples=tries(500))
@given(VERSIONS.filter(is_version), VERSIONS.filter(is_version))
def test_versions(one: str, other: str) -> None:
    assert same_version(one, other) == (Version(one) == Version(other))
    assert same_version(one, str(Version(one)))


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "1"), ("1.0-1", "1.0.post1"), ("2.9.1+cu.128", "2.9.1+CU-128"), ("01.2", "1.2")]
)
def test_spellings_of_a_version(one: str, other: str) -> None:
    assert same_version(one, other)
    assert not same_version(one, f"{other}.1") and not same_version(one, "x")


@given(st.text("aB-_.1", min_size=1, max_size=8))
def test_names(name: str) -> None:
    assert normalised(name) == canonicalize_name(name)
