"""Every folder of tests/base_image/golden: pins and a request in, the plan or its refusal out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cuda_cases import read_case, told_plan
from tests.support.golden import assert_golden

CASES = sorted(path.parent for path in (Path(__file__).parent / "golden").glob("*/case.toml"))


def test_there_are_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path) -> None:
    assert_golden(told_plan(read_case(case)), case / "expected.txt")
