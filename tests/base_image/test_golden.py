"""Every case of tests/base_image/golden: pins and a request in, the plan or its refusal out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cuda_cases import plan_as_text
from tests.support.golden import GoldenCase, read_cases

CASES = read_cases(Path(__file__).parent / "golden")


def test_there_are_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: GoldenCase) -> None:
    case.check(plan_as_text(case.table("case.toml")))
