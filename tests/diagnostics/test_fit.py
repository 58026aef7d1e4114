"""Every case of tests/diagnostics/golden/fit: a lock and a machine in, the report out."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.diagnostics.fit import fits
from envspec.models import PACKAGES, Decision
from envspec.report.machine import fit_as_text
from envspec.structs import replace
from tests.support.cuda_cases import facts_of, fit_report_as_text, lock_of, machine_of
from tests.support.golden import GoldenCase, read_case, read_cases

GOLDEN = Path(__file__).parent / "golden" / "fit"
CASES = read_cases(GOLDEN)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: GoldenCase) -> None:
    case.check(fit_report_as_text(case.table("case.toml")))


def test_a_package_that_uses_no_gpu_has_its_change_beside_it() -> None:
    """The machine fits: there is no smallest change."""
    case = read_case(GOLDEN / "cpu-build-beside-torch.txtar").table("case.toml")
    facts, lock = facts_of(case), lock_of(case)
    text = fit_as_text(fits(lock, machine_of(case, facts), facts), 100)
    assert "it uses no GPU there\n      require faiss-gpu-cu12\n" in text
    assert "smallest change" not in text


def test_another_torch_in_a_lock_of_another_tool_is_locked_by_that() -> None:
    case = read_case(GOLDEN / "gpu-too-old.txtar").table("case.toml")
    facts, lock = facts_of(case), lock_of(case)
    adopted = replace(lock, decisions=(*lock.decisions, Decision(PACKAGES, "uv.lock", (), "the spec: pip.from")))
    change = fits(adopted, machine_of(case, facts), facts).change
    assert change == (
        "lock torch 2.13.0 from https://download.pytorch.org/whl/cu126, with the tool that wrote the lock"
    )
