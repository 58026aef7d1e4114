"""The driver's query and the check `device` on GPUs that are none: a driver made here, and a torch that calls it.

What the two report is given by variables; the check, ctypes and the libraries' calls are real. It says nothing of a
GPU.
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

_TORCH: Final = """
import os
from types import SimpleNamespace as _Space

__version__ = "2.9.1"
version = _Space(cuda="12.8")
int64 = "int64"
_sm = os.environ.get("TORCH_SM", "90")


def _card(index):
    return _Space(
        name=os.environ["CARD"],
        major=int(_sm[:-1]),
        minor=int(_sm[-1]),
        total_memory=85_000_000_000,
        multi_processor_count=132,
        uuid=f"00000000-0000-0000-0000-{index + int(os.environ.get('TORCH_FIRST', '1')):012x}",
    )


cuda = _Space(
    is_available=lambda: True,
    is_initialized=lambda: False,
    device_count=lambda: int(os.environ.get("TORCH_GPUS", os.environ["GPUS"])),
    can_device_access_peer=lambda one, other: True,
    get_device_properties=_card,
    get_arch_list=lambda: os.environ["TORCH_CODE"].split(),
)


class _Numbers:
    \"""A range of words; those that arrive on the GPU in TORCH_BAD_COPY are others.\"""

    def __init__(self, device, value=0):
        self.device, self.value = device, value

    def sum(self):
        return _Space(item=lambda: int(os.environ["TORCH_SUM"]))

    def __mul__(self, factor):
        return self

    def __add__(self, more):
        return _Numbers(self.device, self.value + more)

    def __ne__(self, other):
        return _Space(sum=lambda: int(self.value != other.value))

    def to(self, device):
        return _Numbers(device, self.value + (device == os.environ.get("TORCH_BAD_COPY")))


def arange(count, device, dtype=None):
    return _Numbers(device)
"""
_RIGHT: Final = {**made_driver.says(gpus=2), "TORCH_CODE": "sm_80 sm_90 compute_90", "TORCH_SUM": "499500"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which the driver and torch are found."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(_TORCH, encoding="utf-8")
    return {**made_driver.made(folder), "PYTHONPATH": str(folder)}


def _run(driver: Mapping[str, str], folder: Path, *checks: str, **more: str) -> suite.SuiteOutput:
    code = {"package": "torch", "version": "2.9.1", "sm": ["sm_80", "sm_90"], "ptx": []}
    libraries = {"package": "nvidia-nvshmem-cu12", "version": "3.3.20", "sm": ["sm_100"], "ptx": []}
    locked = {
        "name": "x",
        "packages": {},
        "code": [code, libraries],
        "minimum_driver": "525.60.13",
        "cuda_release": "12.8.1",
    }
    requested = suite.make_request(*checks or ["device"], device="cuda", locked=locked, limits={"driver": 3})
    output = suite.run(Path(sys.executable), requested, folder / "run", environ={**driver, **_RIGHT, **more})
    assert output.status == 0 and output.document["is_whole"]
    return output


def test_what_fits_passes(driver: Mapping[str, str], tmp_path: Path) -> None:
    output = _run(driver, tmp_path, DRIVER_CALLS=str(tmp_path / "calls"))
    result = output.results["device"]
    assert result["status"] == "passed", result
    assert (result["ran"]["driver"], result["ran"]["CUDA of the driver"]) == ("570.124.06", "12.8")
    findings = output.findings("device")
    exact = {name for name, each in findings.items() if each["kind"] == "exact"}
    gpus = {f"GPU {number} {what}" for number in (0, 1) for what in ("is CUDA's", "is one of NVML's", "of NVML")}
    assert exact == gpus | {
        "GPUs",
        "every GPU",
        "driver",
        "GPU code for sm_90 of the installed torch",
        "GPU code for sm_90 of torch 2.9.1 of the lock",
        "first kernel on GPU 0",
        "first kernel on GPU 1",
        "copies between GPUs",
    }
    # A part of NVIDIA's own that lacks the card judges nothing.
    assert findings["GPU code for sm_90 of nvidia-nvshmem-cu12 3.3.20 of the lock"]["kind"] == "info"
    machine = output.document["machine"]
    assert machine["topology"] == {"0-1": "NV4"} and machine["cuda_driver"] == "12.8"
    assert machine["gpus"][1] == {
        "index": 1,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-00000000-0000-0000-0000-000000000002",
        "compute_capability": "9.0",
        "memory_bytes": 85899345920,
        "pci": "0000:02:00.0",
        "multiprocessors": 132,
    }


def test_nvml_is_called_once_for_each_value(driver: Mapping[str, str], tmp_path: Path) -> None:
    """31,838 calls once for eight GPUs, most of them for each link of each pair."""
    calls = tmp_path / "calls"
    _run(driver, tmp_path, GPUS="8", NVML_GPUS="8", DRIVER_CALLS=str(calls))
    names = calls.read_text(encoding="utf-8").split()
    for each in ("nvmlInit_v2", "nvmlDeviceGetName", "nvmlDeviceGetMigMode", "nvmlDeviceGetHandleByIndex_v2"):
        assert names.count(each) == (1 if each == "nvmlInit_v2" else 8), each
    assert len(names) < 400


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"TORCH_GPUS": "1"}, "GPUs: torch sees 1, CUDA shows 2"),
        ({"NVML_GPUS": "3"}, "every GPU: CUDA shows 2 of NVML's 3"),
        (
            {"CUDA_VISIBLE_DEVICES": "0,5", "TORCH_GPUS": "1"},
            "every GPU: CUDA_VISIBLE_DEVICES is '0,5', and CUDA shows",
        ),
        # The image of a lock sets it: it hides nothing.
        ({"NVML_GPUS": "3", "NVIDIA_VISIBLE_DEVICES": "all"}, "every GPU: CUDA shows 2 of NVML's 3"),
        ({"TORCH_SM": "80"}, "GPU 0 is CUDA's: torch: ('NVIDIA H100 80GB HBM3', '8.0', 132)"),
        ({"TORCH_FIRST": "2"}, "GPU 0 is CUDA's"),
        ({"DRIVER": "470.57.02", "CUDA_VERSION": "11040"}, "driver: driver 470.57.02, which runs CUDA 11.4; the lock"),
        (
            {"TORCH_CODE": "sm_80 sm_100"},
            "GPU code for sm_90 of the installed torch: the installed torch has code for sm_80 sm_100",
        ),
        ({"TORCH_SUM": "0"}, "first kernel on GPU 0: 0 + 1 + ... + 999 = 0"),
        ({"TORCH_BAD_COPY": "cuda:1"}, "copies between GPUs: 0 to 1: 1 of"),
        ({"FAULTS": "nvmlDeviceGetHandleByIndex_v2@1=15"}, "GPU 1 of NVML: handle: GPU is lost (error 15)"),
        ({"FAULTS": "nvmlDeviceGetName@1=15"}, "GPU 1 of NVML: name: GPU is lost (error 15)"),
        ({"FAULTS": "nvmlDeviceGetMemoryInfo@0=999"}, "GPU 0 of NVML: memory_bytes: Unknown Error (error 999)"),
        ({"FAULTS": "nvmlInit_v2=9"}, "NVML: NVML cannot be initialised: Driver Not Loaded (error 9)"),
        ({"FAULTS": "nvmlDeviceGetUUID@1=hang"}, "NVML: NVML does not work: still running after 3 s"),
        ({"FAULTS": "nvmlDeviceGetUUID@1=crash"}, "NVML: NVML does not work: crashed in the phase 'GPU 1 by NVML'"),
    ],
    ids=lambda value: ",".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_fails(driver: Mapping[str, str], tmp_path: Path, fault: dict[str, str], words: str) -> None:
    result = _run(driver, tmp_path, **fault).results["device"]
    assert (result["status"], result["cause"]) == ("failed", "found"), result
    assert words in result["reason"]
    assert "driver" in {each["name"] for each in result["findings"] if each["kind"] == "exact"}


_LACKING: Final = "nvmlDeviceGetMemoryInfo=3,nvmlDeviceGetMigMode=3,nvmlDeviceGetNvLinkState=3"


@pytest.mark.parametrize(
    "lacking",
    [
        # GB10 shares its memory with the CPU; WSL 2 and virtual GPUs lack more.
        {"FAULTS": _LACKING},
        {"FAULTS": f"{_LACKING},nvmlDeviceGetUUID=3,nvmlDeviceGetPciInfo_v3=3"},
        # A part of the machine's GPUs is another container's.
        {"FAULTS": "nvmlDeviceGetHandleByIndex_v2@2=4", "NVML_GPUS": "3"},
        # A forward compatibility package: CUDA is newer than the kernel's driver.
        {"DRIVER": "470.57.02", "CUDA_VERSION": "12080"},
        {"CUDA_VISIBLE_DEVICES": "1", "TORCH_GPUS": "1", "TORCH_FIRST": "2"},
    ],
    ids=["GB10", "WSL 2", "container", "forward compatibility", "one of two"],
)
def test_healthy_machines_that_lack_something_pass(
    driver: Mapping[str, str], tmp_path: Path, lacking: dict[str, str]
) -> None:
    result = _run(driver, tmp_path, **lacking).results["device"]
    assert result["status"] == "passed", result["reason"]


def test_functions_that_an_older_driver_does_not_have_are_not_run(driver: dict[str, str], tmp_path: Path) -> None:
    older = made_driver.made(
        tmp_path / "older", without=["nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState", "cuDeviceGetUuid_v2"]
    )
    output = _run({**driver, **older}, tmp_path)
    assert output.results["device"]["status"] == "passed", output.results["device"]["reason"]
    lacking = output.findings("device")["GPU 1 of NVML: mig"]
    assert lacking["kind"] == "not run" and "this driver has no nvmlDeviceGetMigMode" in lacking["detail"]


def test_without_nvml_the_rest_is_compared(driver: dict[str, str], tmp_path: Path) -> None:
    only = made_driver.made(tmp_path / "only")
    (tmp_path / "only" / "libnvidia-ml.so.1").unlink()
    output = _run({**driver, **only}, tmp_path)
    findings = output.findings("device")
    assert output.results["device"]["status"] == "passed", output.results["device"]["reason"]
    assert {findings[name]["kind"] for name in ("the GPUs as NVML sees them", "every GPU")} == {"not run"}
    # CUDA alone says enough: it runs what the lock needs.
    assert findings["driver"]["ok"] is True


def test_a_slice_of_a_gpu_is_one_of_its_machine(driver: Mapping[str, str], tmp_path: Path) -> None:
    mig = {"CARD": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "GPUS": "1", "MIG": "1"}
    output = _run(driver, tmp_path, **mig)
    assert output.results["device"]["status"] == "passed", output.results["device"]["reason"]
    assert output.findings("device")["every GPU"]["kind"] == "not run"
    assert output.document["machine"]["gpus"][0]["uuid"].startswith("MIG-")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"FAULTS": "cuInit=802"}, "CUDA cannot be initialised: system not yet initialized (error 802)"),
        ({"FAULTS": "cuInit=100"}, "no CUDA-capable device is detected (error 100)"),
        ({"GPUS": "0"}, "CUDA shows no GPU to this process"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA shows no GPU to this process; CUDA_VISIBLE_DEVICES is ''"),
        ({"FAULTS": "cuInit=hang"}, "CUDA does not work: still running after 3 s, in the phase 'cuInit'"),
        ({"FAULTS": "cuInit=ignore"}, "CUDA does not work: still running after 3 s, in the phase 'cuInit'"),
        ({"FAULTS": "cuDeviceGetName@1=crash"}, "CUDA does not work: crashed in the phase 'GPU 1', by signal 6"),
        ({"FAULTS": "cuInit=exit"}, "CUDA does not work: exited in the phase 'cuInit' with status 0 without a result"),
        ({"FAULTS": "cuInit=hang,nvmlInit_v2=hang"}, "CUDA does not work: still running after 3 s"),
    ],
    ids=lambda value: ",".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else "",
)
def test_a_driver_that_does_not_work_is_a_failure_and_no_check_uses_it(
    driver: Mapping[str, str], tmp_path: Path, fault: dict[str, str], words: str
) -> None:
    output = _run(driver, tmp_path, "device", "matmul", **fault)
    result, other = output.results["device"], output.results["matmul"]
    assert (result["status"], result["cause"]) == ("failed", "found") and words in result["reason"]
    assert (other["status"], other["reason"]) == ("not run", "NVIDIA's driver does not work: see the check `device`")
    assert _run(driver, tmp_path / "other", "matmul", **fault).results["matmul"]["status"] == "failed"


def test_neither_a_driver_nor_a_gpu_is_no_gpu(driver: dict[str, str], tmp_path: Path) -> None:
    if list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    requested: dict[str, Any] = suite.make_request("device", device="cuda")
    output = suite.run(Path(sys.executable), requested, tmp_path / "run", environ={"LD_LIBRARY_PATH": ""})
    assert (output.status, output.document) == (6, {})
    assert "NVIDIA's driver is not installed (libcuda.so.1" in output.stderr
