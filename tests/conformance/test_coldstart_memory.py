"""The checks `coldstart` and `memory` on real stacks: a wrong first kernel and a greedy optimiser are found."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import spoiled, spoiled_product

pytestmark = pytest.mark.stack


def test_the_parts_of_a_start_add_up(torch_any: Path, tmp_path: Path) -> None:
    began = time.time()
    output = suite.run(torch_any, suite.make_request("coldstart"), tmp_path)
    seconds = time.time() - began
    assert output.results["coldstart"]["status"] == "passed", output.results["coldstart"]["reason"]
    findings = output.findings("coldstart")
    parts = ("Python's start", "import torch", "the device's start", "the first kernel")
    whole = findings["in all"]["value"]
    assert sum(findings[part]["value"] for part in parts) == pytest.approx(whole, abs=0.05)
    assert 0 < whole < seconds
    assert findings["the container's start"]["kind"] == "not run"


def test_a_wrong_first_kernel_fails(torch_29: Path, tmp_path: Path) -> None:
    environ = spoiled_product(tmp_path / "fault", "return product(left, right) + 1")
    output = suite.run(torch_29, suite.make_request("coldstart"), tmp_path / "run", environ=environ)
    result = output.results["coldstart"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "the first kernel's result" in result["reason"]


def test_a_parameter_takes_sixteen_bytes_in_training(torch_any: Path, tmp_path: Path) -> None:
    output = suite.run(torch_any, suite.make_request("coldstart", "memory"), tmp_path)
    assert output.results["memory"]["status"] == "passed", output.results["memory"]["reason"]
    findings = output.findings("memory")
    # A process that has imported torch holds some 100 MB at least, and this machine has less than a terabyte.
    assert 1e8 < findings["peak of coldstart on the host"]["value"] < os.sysconf("SC_PHYS_PAGES") * 4096
    assert findings["models against the card"]["kind"] == "not run"


def test_an_optimiser_that_keeps_more_fails(torch_29: Path, tmp_path: Path) -> None:
    body = """
        made = adamw.AdamW.__init__
        def greedy(optimizer, *given, **named):
            made(optimizer, *given, amsgrad=True, **named)
        adamw.AdamW.__init__ = greedy
    """
    environ = spoiled(tmp_path / "fault", body, "torch.optim.adamw")
    output = suite.run(torch_29, suite.make_request("memory"), tmp_path / "run", environ=environ)
    result = output.results["memory"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "bytes for each parameter in training: 20" in result["reason"]
