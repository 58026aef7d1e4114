"""Receipts as CTRF: keys, kinds and values that its specification requires and allows.

Source: ctrf.io, specification and `ctrf.schema.json`, version 0.1.0, read 2026-11; here as much as a receipt uses.
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

TEXT = {"type": "string"}
COUNT = {"type": "integer"}
STATUSES = ("passed", "failed", "skipped", "pending", "other")


def closed(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    """An object with these keys and no others."""
    keys = {**required, **optional}
    return {"type": "object", "required": list(required), "properties": keys, "additionalProperties": False}


_NAME = {"type": "string", "minLength": 1}
_TEST = closed(
    {"name": _NAME, "status": {"enum": list(STATUSES)}, "duration": COUNT},
    {
        **dict.fromkeys(("message", "trace", "rawStatus"), TEXT),
        "suite": {"type": "array", "minItems": 1, "items": TEXT},
        "stdout": {"type": "array", "items": TEXT},
    },
)
_RESULTS = closed(
    {
        "tool": closed({"name": _NAME}, {"version": TEXT}),
        "summary": closed(dict.fromkeys(("tests", *STATUSES, "start", "stop"), COUNT), {}),
        "tests": {"type": "array", "items": _TEST},
    },
    {"extra": {"type": "object"}},
)
SCHEMA = closed(
    {
        "reportFormat": {"const": "CTRF"},
        "specVersion": {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"},
        "results": _RESULTS,
    },
    {"timestamp": TEXT, "generatedBy": TEXT},
)
GOLDEN = Path(__file__).parent / "golden" / "receipt"
CASES = sorted(path.parent for path in GOLDEN.glob("*/receipt.json"))


def as_ctrf(found: Receipt) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RECEIPT.render("ctrf", found))
    return document


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_receipt_has_what_is_required(case: Path) -> None:
    found = as_ctrf(read(case))
    assert list(refusals(SCHEMA, found)) == []
    counts = {key: found["results"]["summary"][key] for key in STATUSES}
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
def test_a_fault_is_refused(place: tuple[str | int, ...], value: object, refusal: str) -> None:
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
