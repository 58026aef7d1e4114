"""Receipts as CTRF against its published schema.

ctrf.schema.json: the schema of ctrf-io/ctrf at commit 84ddec55811b6a9bf9db3bf9638c9568cde88bb5, without its
descriptions. MIT License, Copyright (c) 2024 Matthew Poulton-White. According to its changelog, version 0.1.0 changes
no part of it that a receipt uses. Read 2026-11.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from envspec.receipts.build import receipt
from envspec.receipts.model import Receipt, read
from envspec.report import RECEIPT
from tests.support.builders.receipts import check, eight_gpus, known, made
from tests.support.schema import refusals

SCHEMA = json.loads((Path(__file__).parent / "ctrf.schema.json").read_text(encoding="utf-8"))
GOLDEN = Path(__file__).parent / "golden" / "receipt"
CASES = sorted(path.parent for path in GOLDEN.glob("*/receipt.json"))


def as_ctrf(found: Receipt) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECEIPT.render("ctrf", found))
    return document


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_schema_accepts_every_receipt(case: Path) -> None:
    found = as_ctrf(read(case))
    assert list(refusals(SCHEMA, found)) == []
    counts = {key: found["results"]["summary"][key] for key in ("passed", "failed", "skipped", "pending", "other")}
    assert sum(counts.values()) == found["results"]["summary"]["tests"] == len(found["results"]["tests"])


@pytest.mark.parametrize(
    ("place", "value", "refusal"),
    [
        (("specVersion",), "1", ".specVersion: does not match"),
        (("results", "summary", "other"), None, ".results.summary.other: not integer"),
        (("results", "more"), {}, ".results.more: not allowed"),
        (("results", "tests", 0, "status"), "not run", ".results.tests[0].status: not in enum"),
        (("results", "tests", 0, "name"), "", ".results.tests[0].name: length"),
        (("results", "tests", 0, "suite"), [], ".results.tests[0].suite: length"),
        (("results", "tests", 0, "duration"), 1.5, ".results.tests[0].duration: not integer"),
    ],
)
def test_the_schema_refuses_a_fault(place: tuple[str | int, ...], value: object, refusal: str) -> None:
    found: Any = copy.deepcopy(as_ctrf(receipt(eight_gpus(), known())))
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert list(refusals(SCHEMA, found)) == [refusal]


def test_a_failed_receipt_has_a_failed_test() -> None:
    """A required check that was not requested fails the run, though none of its checks failed."""
    found = as_ctrf(made(check("matmul"), required=("fsdp",)))
    tests = {each["name"]: each for each in found["results"]["tests"]}
    assert tests["fsdp"]["status"] == "failed"
    assert found["results"]["extra"]["envspec.receipt"]["verdict"] == "failed"
