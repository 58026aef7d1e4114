"""The order of an explicit file, and how other tools read it."""

from __future__ import annotations

import re
import string
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rattler.explicit_environment import ExplicitEnvironmentSpec

from envspec.lock.depends import dependencies
from envspec.lock.explicit import explicit_text, in_link_order
from envspec.models import CondaPackage
from tests.support.builders.locks import ARM, CONDA_FORGE, X86, conda, conda_resolution, lock, on_conda

#: How the draft conda/ceps#79 and conda itself read a line, from 24.9 on.
LINE = re.compile(
    r"(?:(?P<url_p>.+)(?:[/\\]))?(?P<fn>[^/\\#]+(?:\.tar\.bz2|\.conda))"
    r"(?:#((?P<md5>[0-9a-f]{32})|((sha256:)?(?P<sha256>[0-9a-f]{64}))))?$"
)


def names(*packages: CondaPackage) -> list[str]:
    return [package.name for package in in_link_order(packages)]


def test_what_is_needed_comes_first_whatever_order_the_rows_are_in() -> None:
    rows = (conda("a", "1", depends=("c >=1", "b")), conda("b", "1", depends=("c",)), conda("c", "1"), conda("d", "1"))
    assert {tuple(names(*each)) for each in permutations(rows)} == {("c", "b", "a", "d")}


def test_python_comes_before_what_it_asks_for_and_links() -> None:
    pip = conda("pip", "25.3", noarch="python", depends=("python >=3.9", "setuptools"))
    rows = (pip, conda("setuptools", "80", noarch="python"), conda("python", "3.12", depends=("openssl", "pip")))
    assert names(*rows, conda("openssl", "3")) == ["openssl", "python", "setuptools", "pip"]


def test_a_ring_holds_up_nothing_else() -> None:
    """`a` needs the ring of x and y; in the ring itself no order is right."""
    rows = (conda("a", "1", depends=("y",)), conda("x", "1", depends=("y",)), conda("y", "1", depends=("x", "z")))
    order = names(*rows, conda("z", "1"))
    assert order[-1] == "a"
    assert order.index("z") < order.index("y")


def test_virtual_packages_and_what_is_not_locked_do_not_matter() -> None:
    assert names(conda("a", "1", depends=("__glibc >=2.17", "gone", "a"))) == ["a"]


NAMES = st.sampled_from(string.ascii_lowercase[:8])
ROWS = st.dictionaries(NAMES, st.tuples(st.lists(NAMES, max_size=4), st.booleans()), max_size=8)


@given(ROWS, st.booleans())
def test_an_order_that_holds_wherever_there_is_one(graph: dict[str, tuple[list[str], bool]], has_python: bool) -> None:
    rows = [
        conda(name, "1", depends=tuple(needs), **({"noarch": "python"} if is_pure else {}))
        for name, (needs, is_pure) in graph.items()
    ]
    if has_python:
        rows.append(conda("python", "3.12", depends=("a", "b")))
    order = names(*rows)
    assert sorted(order) == sorted(row.name for row in rows)
    needs = {
        row.name: set(dependencies(row.depends)) | ({"python"} if row.noarch and has_python else set()) for row in rows
    }
    pure = {row.name for row in rows if row.noarch}
    for row in rows:
        for need in needs[row.name] & set(order) - {row.name}:
            if row.name not in reached(need, needs):
                assert order.index(need) < order.index(row.name)
    if has_python:
        assert all(order.index("python") < order.index(name) for name in pure)


def reached(name: str, needs: dict[str, set[str]]) -> set[str]:
    """Everything that `name` needs, itself included."""
    found, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += needs.get(one, ())
    return found


def test_rattler_reads_every_line_and_the_platform() -> None:
    read = ExplicitEnvironmentSpec.from_str(explicit_text(on_conda(), X86))
    assert str(read.platform) == "linux-64"
    assert {entry.url for entry in read.packages} == {
        f"{package.url}#sha256:{package.sha256}" for package in on_conda().resolutions[0].conda
    }


def test_conda_reads_every_hash() -> None:
    lines = [line for line in explicit_text(on_conda(), ARM).splitlines() if line[0] not in "#@"]
    read = [LINE.match(line) for line in lines]
    assert {(found["fn"], found["sha256"]) for found in read if found} == {
        (package.filename, package.sha256) for package in on_conda().resolutions[1].conda
    }


def test_a_url_that_looks_like_a_variable_is_left_alone() -> None:
    """conda puts environment variables into the lines of a file."""
    row = conda("python", "3.12.11", url="https://conda.example.org/$HOME/linux-64/python-3.12.11-h0_0.conda")
    text = explicit_text(lock(conda_resolution(X86, [row]), channels=(CONDA_FORGE,)), X86)
    assert "https://conda.example.org/%24HOME/linux-64/" in text


def test_credentials_are_not_in_it() -> None:
    row = conda("python", "3.12.11", url="https://u:hunter2@conda.example.org/t/s3cret/c/linux-64/python-3.12.11.conda")
    text = explicit_text(lock(conda_resolution(X86, [row]), channels=(CONDA_FORGE,)), X86)
    assert "\nhttps://conda.example.org/c/linux-64/python-3.12.11.conda#sha256:" in text


def test_a_platform_that_is_not_locked() -> None:
    with pytest.raises(KeyError, match="linux-aarch64"):
        explicit_text(lock(conda_resolution(X86, [conda("python", "3.12.11")])), ARM)
