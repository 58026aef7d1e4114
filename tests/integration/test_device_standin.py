"""The check `device` on GPUs that are none: a driver made here, with its two libraries, and a torch that calls it.

What the two say is given by variables; the check, ctypes and the libraries' calls are real. It says nothing of a GPU.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support import suite

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a driver is made with gcc")

_CUDA: Final = """
#include <stdlib.h>
int cuInit(unsigned flags) { return atoi(getenv("CUDA_SAYS")); }
int cuDeviceGetCount(int *count) { *count = atoi(getenv("GPUS")); return 0; }
int cuGetErrorString(int status, const char **text) { *text = "no CUDA-capable device is detected"; return 0; }
"""
_NVML: Final = """
#include <stdlib.h>
#include <string.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return "Not Supported"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, getenv("DRIVER"), size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = atoi(getenv("NVML_GPUS")); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *h, char *text, unsigned size) { strncpy(text, "NVIDIA H100 80GB HBM3", size); return 0; }
int nvmlDeviceGetUUID(void *h, char *text, unsigned size) { strncpy(text, "GPU-1", size); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *sizes) { sizes[0] = 85899345920ull; return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, Pci *pci) { memset(pci, 0, sizeof *pci); *pci->bus_id = '0' + (long)h; return 0; }
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *on) { *on = link < 4; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, Pci *pci) { memset(pci, 0, sizeof *pci); return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level) { *level = 30; return 0; }
"""
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
    "CUDA_SAYS": "0",
    "GPUS": "2",
    "NVML_GPUS": "2",
    "DRIVER": "570.124.06",
    "TORCH_GPUS": "2",
    "TORCH_GPU": "NVIDIA H100 80GB HBM3, 90",
    "TORCH_CODE": "sm_80 sm_90 compute_90",
    "TORCH_SUM": "499500",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which the driver and torch are found."""
    folder = tmp_path_factory.mktemp("driver")
    for name, source in (("libcuda.so.1", _CUDA), ("libnvidia-ml.so.1", _NVML)):
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name)]
        subprocess.run(command, input=source, text=True, check=True, timeout=120)
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(_TORCH, encoding="utf-8")
    return {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}


def _run(driver: Mapping[str, str], folder: Path, **more: str) -> suite.Told:
    code = {"package": "torch", "version": "2.9.1", "sm": ["sm_80", "sm_90"], "ptx": []}
    libraries = {"package": "nvidia-nvshmem-cu12", "version": "3.3.20", "sm": ["sm_100"], "ptx": []}
    locked = {"name": "x", "packages": {}, "code": [code, libraries], "minimum_driver": "525.60.13"}
    asked = suite.order("device", device="cuda", locked=locked)
    return suite.run(Path(sys.executable), asked, folder / "run", environ={**driver, **_RIGHT, **more})


def test_what_fits_passes(driver: Mapping[str, str], tmp_path: Path) -> None:
    told = _run(driver, tmp_path)
    result = told.results["device"]
    assert result["status"] == "passed", result
    assert result["ran"]["driver"] == "570.124.06"
    findings = told.findings("device")
    exact = {name for name, each in findings.items() if each["kind"] == "exact"}
    assert exact == {
        "GPUs",
        "GPU 0 is one of NVML's",
        "GPU 1 is one of NVML's",
        "every GPU",
        "driver",
        "GPU code for sm_90 of torch here",
        "GPU code for sm_90 of torch 2.9.1 of the lock",
        "first kernel on GPU 0",
        "first kernel on GPU 1",
    }
    # A part of NVIDIA's own that lacks the card judges nothing.
    assert findings["GPU code for sm_90 of nvidia-nvshmem-cu12 3.3.20 of the lock"]["kind"] == "informing"
    assert told.document["machine"]["topology"] == {"0-1": "NV4"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"TORCH_GPUS": "1"}, "GPUs: torch sees 1, CUDA shows 2"),
        ({"NVML_GPUS": "3"}, "every GPU: torch sees 2 of NVML's 3"),
        ({"TORCH_GPU": "NVIDIA A100-SXM4-80GB, 80"}, "GPU 0 is one of NVML's: NVIDIA A100-SXM4-80GB"),
        ({"DRIVER": "470.57.02"}, "driver: driver 470.57.02; the lock asks for 525.60.13 or newer"),
        ({"TORCH_CODE": "sm_80 sm_100"}, "GPU code for sm_90 of torch here: torch here has sm_80 sm_100"),
        ({"TORCH_SUM": "0"}, "first kernel on GPU 0: 0 + 1 + ... + 999 = 0"),
    ],
)
def test_what_does_not_fit_fails(driver: Mapping[str, str], tmp_path: Path, fault: dict[str, str], words: str) -> None:
    result = _run(driver, tmp_path, **fault).results["device"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert words in result["reason"]


def test_a_slice_of_a_gpu_is_one_of_its_machine(driver: Mapping[str, str], tmp_path: Path) -> None:
    mig = {"TORCH_GPU": "NVIDIA H100 80GB HBM3 MIG 1g.10gb, 90", "NVML_GPUS": "1"}
    told = _run(driver, tmp_path, **mig)
    assert told.results["device"]["status"] == "passed"
    assert "every GPU" not in told.findings("device")


@pytest.mark.parametrize(
    ("fault", "words"), [({"CUDA_SAYS": "100"}, "no CUDA-capable device"), ({"GPUS": "0"}, "no GPU")]
)
def test_without_a_gpu_the_suite_ends_with_the_drivers_words(
    driver: Mapping[str, str], tmp_path: Path, fault: dict[str, str], words: str
) -> None:
    told = _run(driver, tmp_path, **fault)
    assert told.status == 6 and words in told.stderr and not told.document
