"""The report of `envspec fit` as text and JSON."""

from __future__ import annotations

import json

import pytest

from envspec.cli.fit_text import as_json, as_text
from envspec.diagnostics.fit import FitFinding, FitReport, FitVerdict
from envspec.diagnostics.machine import Machine, MachineGpu, MachineSource
from envspec.facts.gpu import ComputeCapability
from envspec.models import Platform

H100 = MachineGpu("NVIDIA H100 80GB HBM3", ComputeCapability(9, 0), 81559)
T4 = MachineGpu("Tesla T4", ComputeCapability(7, 5), 15360)
RUNS = FitFinding("gpu", FitVerdict.FITS, "NVIDIA H100 80GB HBM3 (sm_90): torch 2.9.1 cu128 has code for it")
OLD = FitFinding(
    "driver",
    FitVerdict.DOES_NOT_FIT,
    "the driver is 470.57.02, the lock needs 525.60.13 or newer",
    "update the NVIDIA driver to 525.60.13 or newer",
)
UNKNOWN = FitFinding(
    "gpu", FitVerdict.UNKNOWN, "Tesla T5: its compute capability is not known here", "name it: --gpu 9.0"
)


def machine(
    *gpus: MachineGpu, driver: str | None = "570.124.06", source: MachineSource = MachineSource.READ
) -> Machine:
    return Machine(Platform.LINUX_64, driver, gpus, source=source)


def test_eight_equal_gpus_are_told_once() -> None:
    report = FitReport("llm", machine(*[H100] * 8, T4), (*[RUNS] * 8,))
    assert as_text(report).splitlines() == [
        "this machine can run llm",
        "  linux-64, driver 570.124.06, 8 x NVIDIA H100 80GB HBM3, Tesla T4",
        "",
        "  fits  gpu  NVIDIA H100 80GB HBM3 (sm_90): torch 2.9.1 cu128 has code for it",
    ]


def test_the_smallest_change_stands_for_those_of_the_findings() -> None:
    text = as_text(FitReport("llm", machine(H100), (OLD, RUNS), "lock torch 2.7.1 cu118"))
    assert text.startswith("this machine can't run llm\n")
    assert text.endswith("\n\nsmallest change: lock torch 2.7.1 cu118\n")
    assert OLD.change not in text


def test_without_one_the_findings_say_what_to_do() -> None:
    text = as_text(FitReport("llm", machine(T4), (UNKNOWN, UNKNOWN)))
    assert text.startswith("nobody can tell whether this machine runs llm\n")
    assert text.endswith("\n\nsmallest change: name it: --gpu 9.0\n")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (MachineSource.READ, "linux-64, no NVIDIA driver, no NVIDIA GPU"),
        (MachineSource.DESCRIBED, "linux-64, any driver, any GPU"),
    ],
)
def test_what_nobody_said_is_not_what_is_not_there(source: MachineSource, line: str) -> None:
    assert as_text(FitReport("llm", machine(driver=None, source=source), (RUNS,))).splitlines()[1] == f"  {line}"


@pytest.mark.parametrize("width", [40, 60, 100])
def test_sentences_hang_below_their_first_line(width: int) -> None:
    lines = as_text(FitReport("llm", machine(H100), (OLD, RUNS), OLD.change), width).splitlines()
    assert max(map(len, lines)) <= width
    first = next(line for line in lines if line.startswith("  does not fit"))
    column = first.index(OLD.why.split()[0], len("  does not fit  driver"))
    below = lines[lines.index(first) + 1]
    assert below[:column].strip() in ("", "fits          gpu")
    assert below[column] != " "


def test_json_holds_every_gpu_and_finding() -> None:
    told = json.loads(as_json(FitReport("llm", machine(H100, H100), (OLD, RUNS, RUNS), OLD.change)))
    assert [gpu["memory_mib"] for gpu in told["machine"]["gpus"]] == [81559, 81559]
    assert [finding["verdict"] for finding in told["findings"]] == ["does not fit", "fits", "fits"]
    assert (told["verdict"], told["change"]) == ("does not fit", OLD.change)
