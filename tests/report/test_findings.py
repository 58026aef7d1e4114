"""Findings that are equal on several GPUs are one row; nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.conformance.results import CheckFinding, Kind
from envspec.report.findings import fold


def exact(name: str, *, ok: bool = True, detail: str = "") -> CheckFinding:
    return CheckFinding(name, Kind.EXACT, ok, detail=detail)


def rate(name: str, value: float, spread: float = 0.02) -> CheckFinding:
    return CheckFinding(name, Kind.INFO, value=value, unit="TFLOP/s", spread=spread)


def test_eight_gpus_are_one_row() -> None:
    (row,) = fold(rate(f"GPU {gpu}: bf16", 700 + gpu, gpu / 100) for gpu in range(8))
    assert (row.name, row.value) == ("GPU 0-7: bf16", "700 to 707 TFLOP/s, spread 7 %")


def test_a_gpu_that_failed_has_its_own_row_and_is_first() -> None:
    rows = fold(exact(f"GPU {gpu}: integers", ok=gpu not in (2, 3), detail=f"{gpu} differ") for gpu in range(5))
    assert [row.name for row in rows] == ["GPU 2: integers", "GPU 3: integers", "GPU 0-1,4: integers"]
    assert rows[0].detail == "2 differ" and rows[2].detail == "0 differ (the first of 3)"


def test_a_gpu_that_is_slower_than_the_others_has_its_own_row() -> None:
    (slow, others) = fold(rate(f"GPU {gpu}: bf16", 480 if gpu == 3 else 700 + gpu) for gpu in range(8))
    assert (slow.name, slow.value) == ("GPU 3: bf16", "480 TFLOP/s, spread 2 %")
    assert (others.name, others.value) == ("GPU 0-2,4-7: bf16", "700 to 707 TFLOP/s, spread 2 %")


@pytest.mark.parametrize(
    "findings",
    [
        [rate(f"GPU {gpu}: bf16", 900 if gpu == 3 else 700) for gpu in range(8)],
        [rate(f"GPU {gpu}: bf16", 480 if gpu else 700) for gpu in range(2)],
        [rate(f"GPU {gpu} to GPU {gpu + 1}", 20 if gpu == 3 else 40) for gpu in range(8)],
        [CheckFinding(f"GPU {gpu}: start", Kind.INFO, value=9 if gpu else 3, unit="s") for gpu in range(8)],
    ],
    ids=["faster", "two GPUs do not show which", "pairs", "times"],
)
def test_what_shows_no_slow_gpu_is_one_row(findings: list[CheckFinding]) -> None:
    assert len(fold(findings)) == 1


def test_what_fails_on_all_gpus_is_one_row() -> None:
    (row,) = fold(exact(f"GPU {gpu}: integers", ok=False, detail="3 differ") for gpu in range(8))
    assert (row.name, row.detail) == ("GPU 0-7: integers", "3 differ")


def test_what_was_not_run_for_another_reason_is_another_row() -> None:
    parts = [CheckFinding(f"GPU {gpu}: fp8", Kind.NOT_RUN, detail="old" if gpu else "busy") for gpu in range(3)]
    assert [(row.name, row.detail) for row in fold(parts)] == [("GPU 0: fp8", "busy"), ("GPU 1-2: fp8", "old")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["first kernel on GPU 0", "first kernel on GPU 1"], ["first kernel on GPU 0-1"]),
        (["GPU 0 to GPU 1", "GPU 1 to GPU 0", "GPU 0 to GPU 2"], ["GPU * to GPU *, 3 times"]),
        (["GPU 0: a", "GPU 0: b"], ["GPU 0: a", "GPU 0: b"]),
        (["driver", "driver"], ["driver", "driver"]),
    ],
)
def test_names(names: list[str], expected: list[str]) -> None:
    assert [row.name for row in fold(map(exact, names))] == expected


_FINDINGS = st.builds(
    lambda gpu, what, kind, ok, value: CheckFinding(
        f"GPU {gpu}: {what}" if gpu is not None else what, kind, ok if kind is Kind.EXACT else None, value
    ),
    st.none() | st.integers(0, 7),
    st.sampled_from(["bf16", "integers", "memory"]),
    st.sampled_from([Kind.EXACT, Kind.INFO, Kind.NOT_RUN]),
    st.booleans(),
    st.none() | st.floats(1, 1000),
)


@given(st.lists(_FINDINGS, max_size=30))
def test_nothing_is_lost(findings: list[CheckFinding]) -> None:
    rows = fold(findings)
    assert Counter(id(each) for row in rows for each in row.findings) == Counter(map(id, findings))
    for row in rows:
        assert len({(each.kind, each.ok, each.value is None) for each in row.findings}) == 1
    assert [row.first.ok is not False for row in rows] == sorted(row.first.ok is not False for row in rows)
