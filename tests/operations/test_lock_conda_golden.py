"""Each folder under golden/lock_conda_refusals and lock_conda_decisions is a spec with [conda] and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ahead import golden_ahead
from tests.support.golden_conda import decisions, refusal

GOLDEN = Path(__file__).parent / "golden"


def cases(group: str) -> list[str]:
    return [f"{group}/{path.parent.name}" for path in sorted(GOLDEN.glob(f"{group}/*/spec.toml"))]


REFUSALS, DECISIONS = cases("lock_conda_refusals"), cases("lock_conda_decisions")


@pytest.fixture(scope="module")
def result_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    tellers = {"lock_conda_refusals": refusal, "lock_conda_decisions": decisions}
    with golden_ahead(request, tmp_path_factory.mktemp("golden"), GOLDEN, tellers) as results:
        yield results


@pytest.mark.parametrize("case", [*REFUSALS, *DECISIONS])
def test_case(result_of: Callable[[str], str], case: str) -> None:
    assert result_of(case) == (GOLDEN / case / "expected.txt").read_text(encoding="utf-8")


def test_there_are_cases() -> None:
    assert len(REFUSALS) > 40 and len(DECISIONS) > 20
