"""Every folder of tests/diagnostics/golden/fit: a lock and a machine in, the report out."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.diagnostics.fit import fits
from envspec.report.explanation import fit_as_text
from tests.support.cuda_cases import facts_of, lock_of, machine_of, read_case, told_fit
from tests.support.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden" / "fit"
CASES = sorted(path.parent for path in GOLDEN.glob("*/case.toml"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path) -> None:
    assert_golden(told_fit(read_case(case)), case / "expected.txt")


def test_a_package_that_uses_no_gpu_has_its_change_beside_it() -> None:
    """The machine fits: there is no smallest change."""
    case = read_case(GOLDEN / "cpu-build-beside-torch")
    facts, lock = facts_of(case), lock_of(case)
    text = fit_as_text(fits(lock, machine_of(case, facts), facts), 100)
    assert "it uses no GPU there\n      require faiss-gpu-cu12\n" in text
    assert "smallest change" not in text
