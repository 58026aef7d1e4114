"""METADATA with a spec's overrides, and of wheels that old tools built."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from envspec.resolve.pypi.metadata import declared, valid, with_overrides

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
