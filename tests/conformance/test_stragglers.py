"""Which of several values stands out, and which published values fit a GPU and its fabric."""

from __future__ import annotations

import re

import pytest

from envspec.conformance.published import PUBLISHED, Fabric, Transfer, connection, fabric_of, published
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


@pytest.mark.parametrize(
    ("transfer", "gpu", "fabric", "values"),
    [
        (Transfer.HOST, "NVIDIA H100 80GB HBM3", Fabric.PCIE, [48]),
        (Transfer.PEER, "NVIDIA H200", Fabric.NVLINK, [335]),
        (Transfer.ALL_REDUCE, "NVIDIA H100 80GB HBM3", Fabric.NVLINK, [460]),
        (Transfer.ALL_REDUCE, "NVIDIA H100 80GB HBM3", Fabric.NETWORK, [300, 150]),
        (Transfer.ALL_REDUCE, "NVIDIA GB300", Fabric.NETWORK, [40]),
        # Another board, another fabric, and one that nobody knows.
        (Transfer.HOST, "NVIDIA H100 PCIe", Fabric.PCIE, []),
        (Transfer.PEER, "NVIDIA H200 NVL", Fabric.NVLINK, []),
        (Transfer.PEER, "NVIDIA H200", Fabric.PCIE, []),
        (Transfer.PEER, "NVIDIA H200", None, []),
    ],
)
def test_published_values_are_of_the_same_gpu_and_fabric(
    transfer: Transfer, gpu: str, fabric: Fabric | None, values: list[float]
) -> None:
    text = published(transfer, gpu, fabric)
    assert [float(each) for each in re.findall(r"([\d.]+) GB/s \(", text)] == values
    assert text.startswith("published, not judged: ") == bool(values)


def test_every_published_value_has_a_source() -> None:
    assert all(each.source and each.value > 0 for each in PUBLISHED)


def test_two_gpus_are_connected_as_nvml_numbers_them() -> None:
    """CUDA may show some of the GPUs, and in another order."""
    boards = tuple(Board(number, f"0000:0{number}:00.0") for number in range(3))
    driver = Driver(boards=boards, topology={"0-2": "NV18", "1-2": "PHB"})
    shown = {number: Gpu(0, "H100", "", "9.0", 0, pci=f"0000:0{number}:00.0") for number in (2, 0, 1)}
    assert connection(driver, shown[2], shown[0]) == "NV18" and fabric_of("NV18") is Fabric.NVLINK
    assert connection(driver, shown[1], shown[2]) == "PHB" and fabric_of("PHB") is Fabric.PCIE
    assert connection(driver, shown[0], shown[1]) == connection(None, shown[0], shown[1]) == ""
    assert fabric_of("") is None
