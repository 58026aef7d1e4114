"""Every folder of tests/diagnostics/golden/fit: a lock and a machine in, the report out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cuda_cases import read_case, told_fit

CASES = sorted(path.parent for path in (Path(__file__).parent / "golden" / "fit").glob("*/case.toml"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path) -> None:
    assert told_fit(read_case(case)) == (case / "expected.txt").read_text(encoding="utf-8")
