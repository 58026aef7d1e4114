"""The check `health` on GPUs that are none: an NVML made here, whose values and faults are a test's.

The check, the process that watches, ctypes and the library's calls are real. It says nothing of a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.machines import driver as made_driver
from tests.support.machines import suite

pytestmark = pytest.mark.skipif(not made_driver.CAN, reason="a driver is made with gcc")

#: All GPUs behind switches, as in HGX H100.
_SWITCHES: Final = "links=18,switch=1,fabric=3"
_RESET: Final = "reset this GPU"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made_driver.made(tmp_path_factory.mktemp("driver"))


def _run(driver: Mapping[str, str], folder: Path, *checks: str, **more: str) -> suite.SuiteOutput:
    environ = {**driver, **made_driver.says(gpus=2), "VALUES": _SWITCHES, **more}
    requested = suite.make_request(*checks or ["health"], device="cuda", limits={"driver": 3})
    output = suite.run(Path(sys.executable), requested, folder / "run", environ=environ)
    assert output.status == 0 and output.document["is_whole"]
    return output


def _result(output: suite.SuiteOutput) -> Mapping[str, Any]:
    return output.results["health"]


def _kinds(output: suite.SuiteOutput, kind: str) -> set[str]:
    return {name for name, each in output.findings("health").items() if each["kind"] == kind}


def test_a_healthy_gpu_passes_each_row(driver: Mapping[str, str], tmp_path: Path) -> None:
    output = _run(driver, tmp_path)
    assert _result(output)["status"] == "passed", _result(output)
    assert _kinds(output, "exact") == {
        f"GPU {gpu}: {name}"
        for gpu in (0, 1)
        for name in (
            "answers",
            "no uncorrected errors",
            "no remapping pending",
            "no remapping failed",
            "no retirement pending",
            "no recovery is due",
            "its fabric",
            "PCIe width",
            "PCIe generation",
            "no Xid error during the checks",
            "its hardware does not lower its clocks",
            "NVLinks stay active",
        )
    } | {"GPU 0: NVLinks", "GPU 1: NVLinks"}
    assert _kinds(output, "not run") == set()
    assert output.findings("health")["GPU 1: corrected errors"]["value"] == 0


@pytest.mark.parametrize(
    ("values", "words", "hint"),
    [
        ("uncorrected@1=3", "GPU 1: no uncorrected errors: 3; 0 more during the checks", _RESET),
        ("uncorrected@1=0>2", "GPU 1: no uncorrected errors: 2; 2 more during the checks", _RESET),
        ("pending@0=1", "GPU 0: no remapping pending: 1", _RESET),
        ("failed@0=1", "GPU 0: no remapping failed: 1", "replaced"),
        ("retired@1=1", "GPU 1: no retirement pending: 1", _RESET),
        ("recovery@1=2", "GPU 1: no recovery is due: restart the node", "NVML requests: restart the node"),
        ("width@1=4", "GPU 1: PCIe width: 4 with traffic; GPU and slot have 16", "seated"),
        ("generation@1=1", "GPU 1: PCIe generation: 1 with traffic; GPU and slot have 5", "seated"),
        ("links@1=17", "GPU 1: NVLinks: 17 of 18 are active; the most of a GPU of its kind here is 18", "nvlink"),
        ("links@1=18>17", "GPU 1: NVLinks stay active: 17 active, 18 before the checks", "nvlink"),
        ("fabric=1", "GPU 0: its fabric: not started", "nvidia-fabricmanager"),
        ("fabric=2", "GPU 0: its fabric: in progress", "nvidia-fabricmanager"),
        ("fabric status@1=15", "GPU 1: its fabric: completed; error 15", "nvidia-fabricmanager"),
        ("fabric health@0=0xa9", "GPU 0: its fabric: completed; degraded bandwidth", "nvidia-fabricmanager"),
        ("fabric health@0=0x5aa", "GPU 0: its fabric: completed; a wrong configuration (5)", "nvidia-fabricmanager"),
        ("xid@1=79", "GPU 1: no Xid error during the checks: 79 (the GPU has fallen off the bus)", "catalogue of Xid"),
        ("xid@1=777", "GPU 1: no Xid error during the checks: 777", "catalogue of Xid errors for 777"),
    ],
)
def test_a_fault_fails_and_says_what_to_do(
    driver: Mapping[str, str], tmp_path: Path, values: str, words: str, hint: str
) -> None:
    result = _result(_run(driver, tmp_path, VALUES=f"{values},{_SWITCHES}"))
    assert (result["status"], result["cause"]) == ("failed", "found"), result
    assert words in result["reason"] and hint in result["hint"]
    assert {each["name"][:5] for each in result["findings"] if each["ok"] is False} == {words[:5]} | (
        {"GPU 1"} if values in ("fabric=1", "fabric=2") else set()
    )


@pytest.mark.parametrize("bits", ["0x8", "0x40", "0x80"], ids=["slowdown", "thermal", "power brake"])
def test_clocks_that_hardware_lowers_under_load_fail(driver: Mapping[str, str], tmp_path: Path, bits: str) -> None:
    result = _result(_run(driver, tmp_path, VALUES=f"reasons@1={bits},{_SWITCHES}"))
    assert result["status"] == "failed" and "GPU 1: its hardware does not lower its clocks" in result["reason"]
    assert "GPU 0" not in result["reason"] and "cooling" in result["hint"]


@pytest.mark.parametrize(
    "values",
    [
        # By software: a limit of power.
        "reasons=0x24",
        "corrected=5,remapped=1",
        "link errors=7,replays=3",
        # A program was ended.
        "xid@0=45",
        # Nothing has run, and without traffic a GPU lowers its PCIe generation.
        "busy=0,reasons=0x40",
        "traffic=0,generation=1,width=8",
    ],
)
def test_what_is_no_clear_fault_informs(driver: Mapping[str, str], tmp_path: Path, values: str) -> None:
    output = _run(driver, tmp_path, VALUES=f"{values},{_SWITCHES}")
    assert _result(output)["status"] == "passed", _result(output)["reason"]
    if values.startswith("busy"):
        assert _kinds(output, "not run") == {"GPU 0: clocks", "GPU 1: clocks"}
    if values.startswith("traffic"):
        assert _kinds(output, "not run") == {"GPU 0: PCIe", "GPU 1: PCIe"}
    if values.startswith("xid"):
        assert "was ended" in output.findings("health")["GPU 0: Xid 45"]["detail"]
    if values.startswith("corrected"):
        assert output.findings("health")["GPU 0: corrected errors"]["value"] == 5


_NO_LINKS: Final = "nvmlDeviceGetNvLinkState=3"
_NO_FABRIC: Final = "nvmlDeviceGetGpuFabricInfoV=3"
#: Neither a field of recovery nor a fabric: drivers before 535.
_OLD: Final = "nvmlDeviceGetFieldValues=2,nvmlDeviceGetGpuFabricInfoV=25"
_NO_MEMORY: Final = "nvmlDeviceGetTotalEccErrors=3,nvmlDeviceGetRemappedRows=3,nvmlDeviceGetRetiredPagesPendingStatus=3"


@pytest.mark.parametrize(
    ("card", "values", "faults"),
    [
        ("NVIDIA H100 80GB HBM3", _SWITCHES, ""),
        ("NVIDIA H800", "links=8,switch=1,fabric=3", ""),
        ("NVIDIA H100 PCIe", "links=0", _NO_FABRIC),
        # Two of four are joined by bridges.
        ("NVIDIA A100-PCIE-80GB", "links@0=12,links@1=0,all links=12", _OLD),
        ("Tesla T4", "", f"{_NO_LINKS},{_OLD},nvmlDeviceGetRemappedRows=3"),
        ("NVIDIA L4", "", f"{_NO_LINKS},{_NO_FABRIC},nvmlDeviceGetRetiredPagesPendingStatus=3"),
        ("NVIDIA GeForce RTX 4090", "", f"{_NO_LINKS},{_NO_FABRIC},{_NO_MEMORY}"),
        (
            "NVIDIA GB10",
            "",
            f"{_NO_LINKS},{_NO_FABRIC},{_NO_MEMORY},nvmlDeviceGetCurrPcieLinkGeneration=3,"
            "nvmlDeviceGetMaxPcieLinkGeneration=3,nvmlDeviceGetMaxPcieLinkWidth=3",
        ),
        ("NVIDIA GB200", "links=18,switch=1,fabric=3,fabric health=0xaa", "nvmlDeviceGetPcieReplayCounter=3"),
        # WSL 2 and virtual GPUs: neither events nor samples.
        (
            "NVIDIA A10-24Q",
            "",
            f"{_NO_LINKS},{_OLD},{_NO_MEMORY},nvmlDeviceRegisterEvents=3,nvmlDeviceGetUtilizationRates=3,"
            "nvmlDeviceGetPersistenceMode=3,nvmlDeviceGetPcieReplayCounter=3,nvmlDeviceGetGpuMaxPcieLinkGeneration=3",
        ),
    ],
)
def test_a_healthy_one_of_each_kind_passes(
    driver: Mapping[str, str], tmp_path: Path, card: str, values: str, faults: str
) -> None:
    more = {**({"VALUES": values} if values else {"VALUES": "busy=87"}), **({"FAULTS": faults} if faults else {})}
    output = _run(driver, tmp_path, CARD=card, **more)
    assert _result(output)["status"] == "passed", _result(output)["reason"]


def test_what_a_gpu_does_not_report_is_not_run(driver: Mapping[str, str], tmp_path: Path) -> None:
    output = _run(driver, tmp_path, FAULTS=f"{_NO_MEMORY},nvmlDeviceRegisterEvents@0=3")
    not_run = _kinds(output, "not run")
    assert {"GPU 0: uncorrected errors", "GPU 1: remapping pending", "GPU 0: Xid"} <= not_run
    assert "GPU 1: Xid" not in not_run and "GPU 0: no Xid error during the checks" not in output.findings("health")


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ("nvmlDeviceGetTotalEccErrors@1=15", "GPU 1: answers: corrected errors: GPU is lost (error 15)"),
        ("nvmlDeviceGetRemappedRows@1=999", "GPU 1: answers: rows remapped, corrected: Unknown Error"),
        ("nvmlDeviceGetHandleByIndex_v2@1=15", "GPU 1: answers: after the checks: GPU is lost (error 15)"),
    ],
)
def test_a_gpu_that_is_lost_fails(driver: Mapping[str, str], tmp_path: Path, faults: str, words: str) -> None:
    result = _result(_run(driver, tmp_path, FAULTS=faults))
    assert result["status"] == "failed" and words in result["reason"] and _RESET in result["hint"]


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceGetCurrPcieLinkWidth"])
@pytest.mark.parametrize("kind", ["crash", "exit"])
def test_a_watch_that_ends_early_is_not_run(
    driver: Mapping[str, str], tmp_path: Path, function: str, kind: str
) -> None:
    output = _run(driver, tmp_path, FAULTS=f"{function}={kind}")
    assert _result(output)["status"] == "passed", _result(output)["reason"]
    assert "nothing was sampled" in output.findings("health")["GPU 0: Xid"]["detail"]


def test_a_watch_that_hangs_is_not_run(driver: Mapping[str, str], tmp_path: Path) -> None:
    output = _run(driver, tmp_path, FAULTS="nvmlEventSetWait_v2=hang")
    assert _result(output)["status"] == "passed", _result(output)["reason"]
    assert "NVML has answered nothing for the last" in output.findings("health")["GPU 1: Xid"]["detail"]


def test_without_nvml_or_gpus_it_is_not_run(driver: Mapping[str, str], tmp_path: Path) -> None:
    assert _result(_run(driver, tmp_path, FAULTS="nvmlInit_v2=9"))["status"] == "not run"
    requested = suite.make_request("health", device="cpu")
    output = suite.run(Path(sys.executable), requested, tmp_path / "cpu")
    assert (_result(output)["status"], _result(output)["reason"]) == ("not run", "no GPU is requested")
