"""The check `device` on GPUs that are none: a driver made here, with its two libraries, and a torch that calls it.

What the two say is given by variables; the check, ctypes and the libraries' calls are real. It says nothing of a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.machines import driver as made_driver
from tests.support.machines import suite

pytestmark = pytest.mark.skipif(not made_driver.CAN, reason="a driver is made with gcc")

_TORCH: Final = """
import os
from types import SimpleNamespace as _Space

__version__ = "2.9.1"
version = _Space(cuda="12.8")
_name, _capability = os.environ["TORCH_GPU"].split(", ")
_card = _Space(name=_name, major=int(_capability[:-1]), minor=int(_capability[-1]), total_memory=85_000_000_000)
cuda = _Space(
    is_available=lambda: True,
    is_initialized=lambda: False,
    device_count=lambda: int(os.environ["TORCH_GPUS"]),
    get_device_properties=lambda index: _card,
    get_arch_list=lambda: os.environ["TORCH_CODE"].split(),
)


def arange(count, device):
    return _Space(sum=lambda: _Space(item=lambda: int(os.environ["TORCH_SUM"])))
"""
_RIGHT: Final = {
    **made_driver.says(gpus=2),
    "TORCH_GPUS": "2",
    "TORCH_GPU": "NVIDIA H100 80GB HBM3, 90",
    "TORCH_CODE": "sm_80 sm_90 compute_90",
    "TORCH_SUM": "499500",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which the driver and torch are found."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(_TORCH, encoding="utf-8")
    return {**made_driver.made(folder), "PYTHONPATH": str(folder)}


def _run(driver: Mapping[str, str], folder: Path, **more: str) -> suite.SuiteOutput:
    code = {"package": "torch", "version": "2.9.1", "sm": ["sm_80", "sm_90"], "ptx": []}
    libraries = {"package": "nvidia-nvshmem-cu12", "version": "3.3.20", "sm": ["sm_100"], "ptx": []}
    locked = {"name": "x", "packages": {}, "code": [code, libraries], "minimum_driver": "525.60.13"}
    requested = suite.make_request("device", device="cuda", locked=locked)
    return suite.run(Path(sys.executable), requested, folder / "run", environ={**driver, **_RIGHT, **more})


def test_what_fits_passes(driver: Mapping[str, str], tmp_path: Path) -> None:
    output = _run(driver, tmp_path)
    result = output.results["device"]
    assert result["status"] == "passed", result
    assert result["ran"]["driver"] == "570.124.06"
    findings = output.findings("device")
    exact = {name for name, each in findings.items() if each["kind"] == "exact"}
    assert exact == {
        "GPUs",
        "GPU 0 is one of NVML's",
        "GPU 1 is one of NVML's",
        "every GPU",
        "driver",
        "GPU code for sm_90 of the installed torch",
        "GPU code for sm_90 of torch 2.9.1 of the lock",
        "first kernel on GPU 0",
        "first kernel on GPU 1",
    }
    # A part of NVIDIA's own that lacks the card judges nothing.
    assert findings["GPU code for sm_90 of nvidia-nvshmem-cu12 3.3.20 of the lock"]["kind"] == "informing"
    assert output.document["machine"]["topology"] == {"0-1": "NV4"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"TORCH_GPUS": "1"}, "GPUs: torch sees 1, CUDA shows 2"),
        ({"NVML_GPUS": "3"}, "every GPU: torch sees 2 of NVML's 3"),
        ({"TORCH_GPU": "NVIDIA A100-SXM4-80GB, 80"}, "GPU 0 is one of NVML's: NVIDIA A100-SXM4-80GB"),
        ({"DRIVER": "470.57.02"}, "driver: driver 470.57.02; the lock requires 525.60.13 or newer"),
        (
            {"TORCH_CODE": "sm_80 sm_100"},
            "GPU code for sm_90 of the installed torch: the installed torch has sm_80 sm_100",
        ),
        ({"TORCH_SUM": "0"}, "first kernel on GPU 0: 0 + 1 + ... + 999 = 0"),
    ],
)
def test_what_does_not_fit_fails(driver: Mapping[str, str], tmp_path: Path, fault: dict[str, str], words: str) -> None:
    result = _run(driver, tmp_path, **fault).results["device"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert words in result["reason"]


def test_a_slice_of_a_gpu_is_one_of_its_machine(driver: Mapping[str, str], tmp_path: Path) -> None:
    mig = {"TORCH_GPU": "NVIDIA H100 80GB HBM3 MIG 1g.10gb, 90", "NVML_GPUS": "1"}
    output = _run(driver, tmp_path, **mig)
    assert output.results["device"]["status"] == "passed"
    assert "every GPU" not in output.findings("device")


@pytest.mark.parametrize(
    ("fault", "words"), [({"CUDA_SAYS": "100"}, "no CUDA-capable device"), ({"GPUS": "0"}, "no GPU")]
)
def test_without_a_gpu_the_suite_ends_with_the_drivers_words(
    driver: Mapping[str, str], tmp_path: Path, fault: dict[str, str], words: str
) -> None:
    output = _run(driver, tmp_path, **fault)
    assert output.status == 6 and words in output.stderr and not output.document
