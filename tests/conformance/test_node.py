"""`--node` of the suite's single file: whether a node may take a job, by an NVML made here and by receipts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.operations.fleet import write_suite_file
from envspec.receipts.model import dump
from tests.receipts.test_fleet import run
from tests.support.machines import driver as made_driver
from tests.support.machines.suite import PATIENCE_S

pytestmark = pytest.mark.skipif(not made_driver.CAN, reason="a driver is made with gcc")

Node = Callable[..., tuple[int, str]]
_UUIDS: Final = ("GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The suite's file, and the variables under which NVML is found."""
    folder = tmp_path_factory.mktemp("node")
    return write_suite_file(folder / "suite.pyz"), made_driver.made(folder / "driver")


@pytest.fixture
def node(parts: tuple[Path, dict[str, str]]) -> Node:
    def ask(*words: str | Path, **more: str) -> tuple[int, str]:
        environ = {**os.environ, **parts[1], **made_driver.says(gpus=2), "VALUES": "busy=0", **more}
        command = [sys.executable, parts[0], *(words if words[0] == "--node" else ("--node-receipt", *words))]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.stdout.count("\n") == 1 and done.stderr == "", done
        return done.returncode, done.stdout.strip()

    return ask


def written(folder: Path, **more: Any) -> Path:
    """The receipt of a node with two GPUs. more: of the document."""
    status = "failed" if more.get("verdict") == "failed" else "passed"
    document = json.loads(dump(run(status=status)))
    for gpu, uuid in zip(document["machine"]["gpus"], _UUIDS, strict=True):
        gpu["uuid"] = uuid
    document["made_at"] = datetime.now(timezone.utc).isoformat()
    folder.mkdir(parents=True)
    (folder / "receipt.json").write_text(json.dumps({**document, **more}), encoding="utf-8")
    return folder


def compared(folder: Path, verdict: str, *reasons: str) -> None:
    nodes = [{"name": folder.name, "verdict": verdict, "reasons": reasons}]
    (folder.parent / "fleet.json").write_text(json.dumps({"nodes": nodes}), encoding="utf-8")


def test_a_node_that_passed_is_well(node: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "node1")
    assert node(folder) == (0, "OK: receipt of 0 h ago; 2 GPUs without a fault")
    assert node(folder / "receipt.json") == node(folder)
    assert node("--node") == (0, "OK: 2 GPUs without a fault")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"VALUES": "uncorrected@1=2"}, "GPU 1: no uncorrected errors: 2"),
        ({"VALUES": "recovery@0=1"}, "GPU 0: no recovery is due: reset the GPU"),
        ({"FAULTS": "nvmlDeviceGetName@1=15"}, "GPU 1: name: GPU is lost (error 15)"),
        ({"FAULTS": "nvmlInit_v2=9"}, "NVML cannot be initialised: Driver Not Loaded (error 9)"),
        ({"FAULTS": "nvmlDeviceGetUUID@1=crash"}, "NVML does not work: crashed in the phase 'GPU 1 by NVML'"),
        ({"NVML_GPUS": "1"}, "1 of 2 GPUs of the receipt are gone (NVIDIA H100 80GB HBM3)"),
        ({"LD_LIBRARY_PATH": ""}, "NVML is not installed (libnvidia-ml.so.1"),
    ],
    ids=str,
)
def test_a_fault_takes_the_node_out_of_use(node: Node, tmp_path: Path, more: dict[str, str], words: str) -> None:
    status, line = node(written(tmp_path / "node1"), **more)
    assert status == 2 and line.startswith("CRITICAL: ") and words in line


def test_a_run_that_is_not_known_is_a_warning(node: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "node1", verdict="not known", reasons=["amp ran out of time"])
    status, line = node(folder)
    assert status == 1 and line.startswith("WARNING: not known since the suite of ") and "amp ran out of time" in line


def test_the_comparison_of_the_nodes_decides(node: Node, tmp_path: Path) -> None:
    """What fails on all nodes is no fault of one: a prolog would drain them all."""
    folder = written(tmp_path / "node1", verdict="failed", reasons=["health failed"])
    status, line = node(folder)
    assert status == 2 and "the suite failed on 20" in line and "health failed" in line
    compared(folder, "ok")
    assert node(folder)[0] == 0
    compared(folder, "watch", "matmul: bf16 is 20 % below the median")
    assert node(folder) == (
        1,
        "WARNING: matmul: bf16 is 20 % below the median; receipt of 0 h ago; 2 GPUs without a fault",
    )
    compared(folder, "drain", "lost", "b", "c", "d")
    assert node(folder) == (2, "CRITICAL: lost; b; c; and 1 more")
    (tmp_path / "fleet.json").write_text("[" * 99_999, encoding="utf-8")
    assert node(folder)[0] == 2


def test_the_comparison_is_beside_a_folder_without_a_name(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "node1")
    compared(folder, "drain", "lost")
    monkeypatch.chdir(folder)
    assert node(".") == node("receipt.json") == (2, "CRITICAL: lost")


def test_the_comparison_names_a_node_by_its_link(node: Node, tmp_path: Path) -> None:
    link = tmp_path / "fleet" / "node1"
    link.parent.mkdir()
    link.symlink_to(written(tmp_path / "store" / "a"))
    compared(link, "drain", "lost")
    assert node(link) == node(link / "receipt.json") == (2, "CRITICAL: lost")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"made_at": 3}', '{"made_at": "yesterday"}', "[" * 99_999])
def test_without_a_receipt_nothing_is_known(node: Node, tmp_path: Path, text: str) -> None:
    assert node(tmp_path / "none")[0] == 3
    (tmp_path / "receipt.json").write_text(text, encoding="utf-8")
    status, line = node(tmp_path)
    assert status == 3 and "is no receipt" in line
    # What NVML says now counts all the same.
    assert node(tmp_path, VALUES="pending@1=1")[0] == 2


def test_an_old_receipt_says_little(node: Node, tmp_path: Path) -> None:
    made_at = (datetime.now(timezone.utc) - timedelta(days=8)).isoformat()
    folder = written(tmp_path / "node1", made_at=made_at)
    assert node(folder, "--max-age", "7")[0] == node(folder, "--max-age", "0")[0] == 3
    assert node(folder) == (0, "OK: receipt of 8 days ago; 2 GPUs without a fault")


def test_a_node_without_gpus(node: Node, tmp_path: Path) -> None:
    folder = written(tmp_path / "node1")
    document = json.loads((folder / "receipt.json").read_text())
    document["machine"]["gpus"] = []
    (folder / "receipt.json").write_text(json.dumps(document))
    assert node(folder, LD_LIBRARY_PATH="") == (0, "OK: receipt of 0 h ago")
    assert node("--node", LD_LIBRARY_PATH="")[0] == 3
