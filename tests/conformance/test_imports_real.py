"""Imports before a check's turn, of a real stack: what comes of the checks is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import copied, install

pytestmark = pytest.mark.stack


def test_checks_that_preimport_pass(torch_any: Path, tmp_path: Path) -> None:
    output = suite.run(
        torch_any, suite.make_request("coldstart", "matmul", "dataloader", "memory", preimports=2), tmp_path
    )
    ahead = {name: {each["name"] for each in result["preimports"]} for name, result in output.results.items()}
    assert {name: each["status"] for name, each in output.results.items()} == dict.fromkeys(ahead, "passed")
    assert not ahead["coldstart"] | ahead["matmul"]
    assert "import torch" in ahead["dataloader"]
    assert {"import torch", "import torch._dynamo"} == ahead["memory"]
    for result in output.results.values():
        assert sum(each["seconds"] for each in result["phases"]) <= result["seconds"]
    # Those of the checks before it are told in its turn.
    assert "peak of dataloader on the host" in output.findings("memory")


def test_a_crash_in_a_preimport_is_reported_as_in_the_turn(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    install(python, "torchvision==0.23.0")
    output = suite.run(python, suite.make_request("device", "family", preimports=1), tmp_path / "run")
    assert output.results["device"]["status"] == "not run"
    result = output.results["family"]
    assert result["cause"] == "crashed"
    assert result["reason"].startswith("crashed in the phase 'import torchvision', by signal ")
    assert "torchvision/extension.py" in result["log"]
    assert "from one lock" in result["hint"]
