"""The versions that run against the lock: as the libraries in memory report them. GPUs need a machine with one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import copied, site_packages

pytestmark = pytest.mark.stack


def _locked(**packages: str) -> dict[str, Any]:
    return {
        "name": "a lock",
        "packages": {name.replace("_", "-"): version for name, version in packages.items()},
        "code": [],
    }


_RIGHT = {"nvidia_cuda_runtime_cu12": "12.8.90", "nvidia_cudnn_cu12": "9.10.2.21", "nvidia_nccl_cu12": "2.27.5"}


def test_without_a_gpu_it_is_not_run_and_reports_what_is_loaded(torch_29: Path, tmp_path: Path) -> None:
    output = suite.run(torch_29, suite.make_request("device", locked=_locked(**_RIGHT)), tmp_path)
    result = output.results["device"]
    assert (result["status"], result["reason"]) == ("not run", "no GPU is requested")
    assert {name: result["ran"][name] for name in ("CUDA runtime", "cuDNN", "NCCL", "CUDA of torch's build")} == {
        "CUDA runtime": "12.8",
        "cuDNN": "9.10.2",
        "NCCL": "2.27.5",
        "CUDA of torch's build": "12.8",
    }
    assert [each["ok"] for each in result["findings"]] == [True, True, True]


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [
        ("nvidia_cuda_runtime_cu12", "12.6.77", "CUDA runtime = locked: 12.8 runs"),
        ("nvidia_cudnn_cu12", "9.1.0.70", "cuDNN = locked: 9.10.2 runs"),
        ("nvidia_nccl_cu12", "2.21.5", "NCCL = locked: 2.27.5 runs"),
    ],
)
def test_a_library_that_is_not_the_locked_one_fails(
    torch_29: Path, tmp_path: Path, package: str, version: str, words: str
) -> None:
    requested = suite.make_request("device", locked=_locked(**{**_RIGHT, package: version}))
    result = suite.run(torch_29, requested, tmp_path).results["device"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert words in result["reason"] and f"locked is {version}" in result["reason"]


def test_another_nccl_in_the_place_of_the_locked_one_is_found(torch_29: Path, torch_26: Path, tmp_path: Path) -> None:
    """torch's own `nccl.version()` would still say what it was built with."""
    python = copied(torch_29, tmp_path / "stack")
    name = "nvidia/nccl/lib/libnccl.so.2"
    there = site_packages(python) / name
    there.unlink()
    shutil.copyfile(site_packages(torch_26) / name, there)
    result = suite.run(python, suite.make_request("device", locked=_locked(**_RIGHT)), tmp_path / "run").results[
        "device"
    ]
    # 2.9.1 calls what 2.21.5 does not have: whichever comes first, the stack does not pass.
    assert result["status"] == "failed"
    assert "NCCL = locked: 2.21.5 runs" in result["reason"] or "undefined symbol: nccl" in result["reason"]


def test_gpus_requested_where_there_are_none_end_the_suite(torch_29: Path, tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    output = suite.run(torch_29, suite.make_request("device", device="cuda"), tmp_path)
    assert output.status == 6
    assert "driver" in output.stderr or "CUDA" in output.stderr
