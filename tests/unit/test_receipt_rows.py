"""The suite's values and the receipt's tables are two definitions of one form: neither grows alone."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from envspec.conformance import hardware, request
from envspec.conformance import results as suite
from envspec.receipt import values as receipt


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (suite.CheckOutcome, receipt.CheckRow),
        (suite.CheckFinding, receipt.FindingRow),
        (suite.Fingerprint, receipt.FingerprintRow),
        (suite.Peak, receipt.PeakRow),
        (hardware.NvmlGpu, receipt.Gpu),
        (request.Nodes, receipt.Nodes),
    ],
)
def test_what_the_suite_tells_is_what_the_receipt_has(inside: Any, outside: type[BaseModel]) -> None:
    renamed = {"preimports": "ahead", "detail": "told"}
    assert {renamed.get(each.name, each.name) for each in fields(inside)} == set(outside.model_fields)


@pytest.mark.skipif(sys.platform != "linux", reason="the suite runs on Linux only")
def test_a_machine_is_described_in_the_receipts_words() -> None:
    told = hardware.describe()
    of_a_gpu = {"driver", "gpus", "topology"}
    assert set(told) <= set(receipt.Machine.model_fields) - {"toolkit"}
    assert set(told) >= set(receipt.Machine.model_fields) - {"toolkit", *of_a_gpu, "cpu"}
    assert receipt.Machine.model_validate(told).kernel == told["kernel"]
