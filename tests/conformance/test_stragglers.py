"""Which of several values stands out, and how two GPUs are connected."""

from __future__ import annotations

import pytest

from envspec.conformance.checks.bandwidth import connection
from envspec.conformance.results import Board, Driver, Gpu
from envspec.conformance.stragglers import described, stragglers


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([50, 50, 50, 30], ["GPU 3 (33 % less than the mean)"]),
        ([50, 50, 50, 80], ["GPU 3 (39 % more than the mean)"]),
        # More than one standard deviation, and not more than 10 %.
        ([50, 50, 50, 46], []),
        # More than 10 %, and not more than one standard deviation: nothing is alike here.
        ([30, 50, 30, 50], []),
        ([50, 10], []),
        ([50, 50, 50], []),
        ([0, 0, 0], []),
        ([], []),
    ],
)
def test_the_values_that_stand_out(values: list[float], expected: list[str]) -> None:
    assert described({f"GPU {number}": value for number, value in enumerate(values)}) == expected


def test_a_deviation_is_a_fraction_of_the_mean() -> None:
    assert stragglers({"a": 10.0, "b": 10.0, "c": 10.0, "d": 6.0}) == pytest.approx({"d": -1 / 3})


def test_two_gpus_are_connected_as_nvml_numbers_them() -> None:
    """CUDA may show some of the GPUs, and in another order."""
    boards = tuple(Board(number, f"0000:0{number}:00.0") for number in range(3))
    driver = Driver(boards=boards, topology={"0-2": "NV18", "1-2": "PHB"})
    shown = {number: Gpu(0, "H100", "", "9.0", 0, pci=f"0000:0{number}:00.0") for number in (2, 0, 1)}
    assert connection(driver, shown[2], shown[0]) == "NV18"
    assert connection(driver, shown[1], shown[2]) == "PHB"
    assert connection(driver, shown[0], shown[1]) == connection(None, shown[0], shown[1]) == ""
