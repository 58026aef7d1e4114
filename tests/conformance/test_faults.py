"""Faults in real stacks, each of which a check has to find: the rows of faults.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.documents import parse_toml
from tests.support.machines.stack import at_loss, spoiled, spoiled_ddp, spoiled_product
from tests.support.machines.suite import make_request, run

pytestmark = pytest.mark.stack

_ROWS: Final = parse_toml(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
FAULTS: Final = {each["name"]: each for each in _ROWS["fault"]}
CASES: Final = [
    pytest.param(name, stack, id=f"{each['check']}: {name}-{stack}")
    for name, each in FAULTS.items()
    for stack in each.get("stacks", ["torch_29"])
]


def environ(fault: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The variables that bring a fault."""
    where, body = fault["where"], fault.get("body", "")
    if where == "compiler":
        folder.mkdir()
        if body:
            (folder / "g++").write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            (folder / "g++").chmod(0o755)
        return {"OMP_NUM_THREADS": "1", "PATH": str(folder)}
    made: dict[str, str] = {}
    if where in ("product", "rank", "ddp"):
        made = {"product": spoiled_product, "rank": at_loss, "ddp": spoiled_ddp}[where](folder, body)
    elif where != "none":
        made = spoiled(folder, body, where)
    return {**fault.get("environ", {}), **made}


@pytest.mark.parametrize(("name", "stack"), CASES)
def test_a_fault_is_found(name: str, stack: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fault = FAULTS[name]
    check, wrong = fault["check"], set(fault.get("wrong", []))
    output = run(
        request.getfixturevalue(stack),
        make_request(check, **fault.get("request", {})),
        tmp_path / "run",
        environ=environ(fault, tmp_path / "fault"),
        before=("/usr/bin/env", "-u", "CC", "-u", "CXX") if fault["where"] == "compiler" else (),
    )
    result, found = output.results[check], output.wrong(check)
    assert (output.status, result["status"], result["cause"]) == (0, "failed", fault.get("cause", "found")), result
    assert sorted(wrong - found) == [], f"findings that did not fail; these did: {sorted(found)}"
    assert not fault.get("is_exact") or sorted(found - wrong) == [], "further findings failed"
    assert not found & set(fault.get("right", []))
    text = json.dumps(result, ensure_ascii=False)
    assert [words for words in fault.get("words", []) if words not in text] == []
