"""METADATA with a spec's overrides."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from envspec.resolve.pypi.metadata import declared, overridden

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
        made = overridden((newline.join(lines) + body).encode(), OVERRIDES)
        assert list(declared(made)) == after
        assert b"Provides-Extra: x" in made and made.endswith(body.encode())
