"""Numbers in words, at the edges of their steps."""

from __future__ import annotations

import pytest

from envspec.receipt.values import Machine
from envspec.report import REPORTS, text
from envspec.report.words import amount, facts, percent, share, size
from tests.support.receipts import check, made


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.0009, "0.0009 s"),
        (0.99951, "1.00 s"),
        (99.96, "100 s"),
        (999.4, "999 s"),
        (999.5, "1,000 s"),
        (999.96, "1,000 s"),
        (-999.96, "-1,000 s"),
        (1000.0, "1,000 s"),
        (1e15, "1e+15 s"),
    ],
)
def test_an_amount_has_three_digits(value: float | None, told: str) -> None:
    assert amount(value, "s").removesuffix(" s") == told.removesuffix(" s")


@pytest.mark.parametrize(
    ("part", "told"), [(0.0, "0 %"), (0.125, "12.5 %"), (9.99, "999 %"), (9.996, "10 times"), (450.2, "450 times")]
)
def test_a_share_is_in_per_cent_up_to_ten_times(part: float, told: str) -> None:
    assert share(part) == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 bytes"), (999, "999 bytes"), (999_600, "1.00 MB"), (5e18, "5,000 PB")]
)
def test_a_size_takes_the_next_step_where_its_digits_do(count: float, told: str) -> None:
    assert size(count) == told


@pytest.mark.parametrize(("change", "told"), [(0.0, "+0.0 %"), (-0.104, "-10 %"), (4.5, "+450 %")])
def test_a_change_has_its_sign(change: float, told: str) -> None:
    assert percent(change) == told


def test_what_is_not_known_of_a_machine_is_left_out() -> None:
    assert facts(made(check("matmul")).model_copy(update={"machine": Machine()})) == []


@pytest.mark.parametrize("form", ["text", "junit", "markdown", "html"])
def test_an_error_without_end_is_told_by_its_beginning_and_its_end(form: str) -> None:
    """A compiler's: GitHub takes no summary of more than 1 MiB, and nobody reads it in a terminal."""
    reason = f"C++ compile error: {'many words ' * 200_000}collect2: ld returned 1"
    found = made(check("transformer", status="failed", cause="raised", reason=reason))
    told = text.render(found) if form == "text" else REPORTS[form].render(found)
    assert len(told) < 200_000
    for part in ("C++ compile error", "[...]", "ld returned 1"):
        assert part in told.replace("\\", "")
    assert reason in REPORTS["json"].render(found)


@pytest.mark.filterwarnings("error")
def test_a_page_of_zeros_is_drawn_without_a_warning() -> None:
    nothing = {"allocated_bytes": 0, "reserved_bytes": 0, "host_bytes": 0}
    assert "0 bytes" in REPORTS["html"].render(made(check("matmul", seconds=0, phases=[], peak=nothing)))
