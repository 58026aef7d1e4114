"""METADATA with a spec's overrides, as it is on a target, and of wheels that old tools built."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from envspec.models import Platform, marker_values
from envspec.resolve.pypi.metadata import (
    applicable,
    declared,
    evaluated,
    extras_of,
    metadata_file,
    requires_python,
    valid,
    with_overrides,
)

OVERRIDES = {"num-lib": SpecifierSet("<2"), "gone": None}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["gone"], []),
        (["gone>=2; python_version < '3'", "other", "Gone[x]", "GONE @ https://example.com/g.whl"], ["other"]),
        (["Num_Lib[fast]>=3; extra == 'x'", "gone"], ['Num_Lib[fast]<2; extra == "x"']),
        (["other (>=1)", "not a requirement !"], ["other (>=1)", "not a requirement !"]),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_overridden(before: list[str], after: list[str], newline: str, is_first: bool) -> None:
    fields = [f"Requires-Dist: {text}" for text in before]
    head = ["Metadata-Version: 2.1", "Name: x", "Provides-Extra: x"]
    lines = [*fields, *head] if is_first else [*head, *fields]
    for body in ("", f"{newline}{newline}Requires-Dist: gone{newline}"):
        made = with_overrides((newline.join(lines) + body).encode(), OVERRIDES)
        assert list(declared(made)) == after
        assert b"Provides-Extra: x" in made and made.endswith(body.encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("cv (>=3.) ; extra == 'all'", "cv (>=3) ; extra == 'all'"),
        ("torch (!=1.4.1,>=1.9.*)", "torch (!=1.4.1,>=1.9)"),
        ("torch (<2.0.*,>1.)", "torch (<2.0,>1)"),
        ("torch (==1.9.*)", "torch (==1.9.*)"),
        ("a >= 1 <2.", "a >= 1 <2."),
    ],
)
def test_valid(before: str, after: str) -> None:
    made = valid(f"Metadata-Version: 2.1\nName: x\nRequires-Dist: {before}\n\nA text >=3.\n".encode())
    assert list(declared(made)) == [after]
    assert made.endswith(b"\n\nA text >=3.\n")


def test_valid_metadata_is_the_same() -> None:
    metadata = b"Metadata-Version: 2.1\r\nName: x\r\nSummary: \xff\r\nRequires-Dist: a>=1\r\n"
    assert valid(metadata) == metadata


TARGETS = [marker_values(platform, python) for platform in Platform for python in ("3.11.5", "3.11.12", "3.13.1")]
ATOMS = (
    *("extra == 'a'", "extra == 'B_c'", "'b-C' == extra", "extra != 'a'", "python_version < '3.12'"),
    *("python_full_version >= '3.11.10'", "python_version >= '3.11.5'", "implementation_version == '3.13.1'"),
    *("sys_platform == 'win32'", "platform_release >= '6'", "'x' not in platform_version", "os_name ~= 'nt'"),
)
both = st.sampled_from(["and", "or"])
markers = st.recursive(
    st.sampled_from(ATOMS), lambda parts: st.builds("({} {} {})".format, parts, both, parts), max_leaves=6
)


@given(markers, st.sampled_from(TARGETS), st.sampled_from(TARGETS), st.sets(st.sampled_from(["a", "b-c", "other"])))
def test_evaluated_means_everywhere_what_it_means_on_the_target(
    marker: str, target: dict[str, str], here: dict[str, str], extras: set[str]
) -> None:
    body = metadata_file("x", "1.0", [("Requires-Dist", f"y[z]>=1; {marker}")])
    [*before] = applicable(declared(body), target, frozenset(extras))
    [*after] = applicable(declared(evaluated(body, target)), here, frozenset(extras))
    assert [(each.name, each.extras, each.specifier) for each in after] == [
        (each.name, each.extras, each.specifier) for each in before
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y>=1", "y>=1"),
        ("y (>=1) ; not a marker", "y (>=1) ; not a marker"),
        ("y @ https://example.com/y.whl ; python_version < '4'", "y @ https://example.com/y.whl"),
        ("y[z]; python_full_version >= '3.11.10' and extra == 'a'", 'y[z] ; extra == "a"'),
        ("y; python_full_version < '3.11.10' and extra == 'a'", None),
        ("y; python_full_version < '3.11.10' or extra == 'a' or extra == 'b'", 'y ; extra == "a" or extra == "b"'),
        ("y; extra != 'a' and extra != 'b'", 'y ; extra != "a" and extra != "b"'),
    ],
)
def test_evaluated_requirements(before: str, after: str | None) -> None:
    body = metadata_file("x", "1.0", [("Provides-Extra", "a"), ("Requires-Dist", before)])
    made = evaluated(body + b"\nRequires-Dist: text\n", marker_values(Platform.LINUX_64, "3.11.12"))
    assert declared(made) == ((after,) if after else ())
    assert made.endswith(b"\n\nRequires-Dist: text\n")


def test_extras_of_markers_alone_get_their_field() -> None:
    lines = [("Provides-Extra", "Has_It"), *[("Requires-Dist", f"y; extra == '{each}'") for each in ("has-it", "more")]]
    made = evaluated(metadata_file("x", "1.0", lines), marker_values(Platform.LINUX_64, "3.11.12"))
    assert sorted(extras_of(made)) == ["Has_It", "more"]


@pytest.mark.parametrize(
    ("before", "is_allowed"),
    [
        *((">=3.8", True), ("!=3.11.9", True), (">=3.6.*", True)),
        *((">=3.11.13", False), ("!=3.11.12", False), ("<3.11", False)),
    ],
)
def test_evaluated_pythons(before: str, is_allowed: bool) -> None:
    body = metadata_file("x", "1.0", [("Requires-Python", before)])
    made = requires_python(evaluated(body, marker_values(Platform.LINUX_64, "3.11.12")))
    if is_allowed:
        assert made is None
    else:
        assert made is not None and made.startswith(before)
        assert not any(SpecifierSet(made).contains(python) for python in ("3.8.0", "3.11.12", "3.13.1"))


def test_a_requirement_of_an_extra_or_an_old_python_applies_without_spaces_too() -> None:
    text = 'colour; (python_version < "3.12")or(extra == "web")'
    [found] = applicable((text,), marker_values(Platform.LINUX_64, "3.11.7"), frozenset())
    assert found.name == "colour"
