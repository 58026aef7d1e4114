"""The order of conda's versions, beside rattler's."""

from __future__ import annotations

from itertools import product

from hypothesis import given, reject
from hypothesis import strategies as st
from rattler import Version
from rattler.exceptions import InvalidVersionError

from envspec.lockfile.diff_packages import compare

VERSIONS = """
0.4 0.4.1 0.4.1.rc 0.4.1rc 0.5a1 0.5b 0.5c1 0.960923 1.0 1.0.0 1.0.dev1 1.0a 1.0a1 1.0.a 1.0.0a.1
1.0.1a 1.0dev 1.0.post1 1.0.0.post1 1.0-1 1_0 1.post 1.dev 1.a 1.2post 1.0+a 1.0+a.1 1!0.1 2!1.0
1.1.1 1.1.1v 1.1.1w 1.10 1.9 9e 9f 10 a1 dev post 1996.07.12 2025a 2025b 2025.10.5 3.13.0rc1 3.14.0
3.14.0rc1 12.9.86 4.35
"""
PARTS = st.text("019ab._", min_size=1, max_size=6).map(lambda text: f"1{text}1")


def by_rattler(one: str, other: str) -> int:
    left, right = Version(one), Version(other)
    return -1 if left < right else 1 if left > right else 0


def test_every_pair_is_in_rattlers_order() -> None:
    for one, other in product(VERSIONS.split(), repeat=2):
        assert compare(one, other) == by_rattler(one, other), (one, other)


@given(PARTS, PARTS)
def test_made_up_versions_are_in_rattlers_order(one: str, other: str) -> None:
    try:
        expected = by_rattler(one, other)
    except InvalidVersionError:
        reject()
    assert compare(one, other) == expected
