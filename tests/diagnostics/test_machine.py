"""Reading this machine: driver file, NVML that answers, fails, or is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.conformance.nvml import DRIVER_FILE
from envspec.diagnostics.machine import (
    MachineGpu,
    NvmlReading,
    described_machine,
    read_machine,
    read_nvml,
    this_platform,
)
from envspec.facts import load_facts
from envspec.facts.gpu import ComputeCapability
from envspec.models import Platform

FACTS = load_facts()
PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (root@host)\n"


@pytest.mark.parametrize(
    ("text", "driver"), [(PROPRIETARY, "550.54.15"), (OPEN, "570.124.06"), ("something else", None)]
)
def test_the_drivers_file(tmp_path: Path, text: str, driver: str | None) -> None:
    file = tmp_path / "version"
    file.write_text(text, encoding="utf-8")
    machine = read_machine(file, lambda: NvmlReading(None, (), "NVML does not answer: Driver Not Loaded"))
    assert machine.driver == driver
    assert machine.gpus == ()
    assert machine.problem == "NVML does not answer: Driver Not Loaded"
    assert not machine.is_described


def test_nvml_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text(PROPRIETARY, encoding="utf-8")
    gpu = MachineGpu("NVIDIA H100 80GB HBM3", ComputeCapability(9, 0), 81559)
    machine = read_machine(file, lambda: NvmlReading("580.95.05", (gpu,)))
    assert (machine.driver, machine.gpus, machine.problem) == ("580.95.05", (gpu,), "")
    assert machine.platform is this_platform()


def test_this_machine_answers_or_says_why_not() -> None:
    """The real NVML: with a driver there are GPUs with names and capabilities, without one there is a reason."""
    answer = read_nvml()
    if DRIVER_FILE.exists() and not answer.problem:
        assert answer.driver
        assert all(gpu.name and gpu.capability for gpu in answer.gpus)
    else:
        assert answer.driver is None
        assert answer.gpus == ()
        assert answer.problem.startswith("NVML ")


def test_a_described_machine() -> None:
    machine = described_machine(Platform.LINUX_64, "550.54.15", ("t4", "9.0"), FACTS)
    assert [(gpu.name, str(gpu.capability)) for gpu in machine.gpus] == [
        ("T4", "7.5"),
        ("compute capability 9.0", "9.0"),
    ]
    assert machine.is_described
