"""receipt.json: written, read, refused; and its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envspec.receipt.build import receipt
from envspec.receipt.files import BadReceipt, NewerReceipt, dump, json_schema, load, read
from envspec.receipt.values import FORMAT, Receipt
from tests.support.command import ROOT, envspec
from tests.support.receipts import check, eight_gpus, known, made

WHOLE = receipt(eight_gpus(), known("coldstart", "lost", baseline=receipt(eight_gpus(1.3), known())))


def test_a_receipt_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "receipt.json").write_text(dump(WHOLE), encoding="utf-8")
    assert read(tmp_path) == WHOLE
    assert read(tmp_path / "receipt.json") == WHOLE
    assert dump(read(tmp_path)) == dump(WHOLE)


def changed(**keys: Any) -> str:
    return json.dumps({**json.loads(dump(WHOLE)), **keys})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "one.json is no JSON"),
        ("[" * 100_000, "one.json is no JSON"),
        ("[]", "one.json is no receipt"),
        ('{"format": 1}', "one.json is no receipt"),
        ('{"format": true, "checks": "none"}', "checks: "),
        (changed(seed="many"), r"one.json is no whole receipt: seed: "),
        (changed(colour="red"), "colour: is not known"),
        (changed(format=0), "format: "),
        (changed(made_at="2026-11-22T10:00:00"), "made_at: .*timezone"),
        (changed(checks=[{"status": "passed"}]), r"checks\[0\].check: is missing"),
        (changed(verdict="perhaps", seed=None), r"verdict: .*; seed: "),
    ],
)
def test_what_is_no_receipt(text: str, said: str) -> None:
    with pytest.raises(BadReceipt, match=said):
        load(text, "one.json")


def test_a_moment_of_another_zone_is_one_of_utc() -> None:
    found = load(changed(made_at="2026-11-22T10:00:00+09:00"), "one.json").made_at
    assert found.isoformat() == "2026-11-22T01:00:00+00:00"


@pytest.mark.parametrize("more", [{"something_new": 1}, {"checks": None}])
def test_a_newer_receipt_is_refused_and_named(more: dict[str, Any]) -> None:
    document = json.loads(changed(format=FORMAT + 1, envspec="9.0", **more))
    text = json.dumps({key: value for key, value in document.items() if value is not None})
    with pytest.raises(NewerReceipt, match=f"of format {FORMAT + 1}, this envspec reads up to {FORMAT}") as refused:
        load(text, "one.json")
    assert refused.value.hint == "envspec 9.0 wrote it: update envspec"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadReceipt, match=r"receipt.json can't be read: No such file"):
        read(tmp_path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b"\xff\xfe")
    with pytest.raises(BadReceipt, match="not UTF-8"):
        read(tmp_path / "r.json")


def test_the_committed_schema_is_the_receipts(tmp_path: Path) -> None:
    ran = envspec(tmp_path, "schema", "receipt")
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout == (ROOT / "envspec-receipt.schema.json").read_text(encoding="utf-8"), (
        "envspec schema receipt > envspec-receipt.schema.json"
    )


@pytest.mark.parametrize("found", [WHOLE, made(check("matmul"))], ids=["whole", "small"])
def test_the_schema_knows_every_key_of_a_receipt(found: Receipt) -> None:
    schema = json_schema()
    assert list(_faults(json.loads(dump(found)), schema, schema, "")) == []


def test_the_schema_refuses_what_is_not_in_it() -> None:
    schema = json_schema()
    told = {**json.loads(dump(WHOLE)), "colour": "red"}
    del told["seed"]
    assert sorted(_faults(told, schema, schema, "")) == [".colour", ".seed"]


def _faults(value: Any, schema: dict[str, Any], root: dict[str, Any], where: str) -> list[str]:
    """Keys of a document that its schema does not have, and those that it asks for and are not there."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if options and value is not None:
        return _faults(value, options[0], root, where)
    if isinstance(value, list):
        items = schema["items"]
        return [fault for place, each in enumerate(value) for fault in _faults(each, items, root, f"{where}[{place}]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known_keys = schema["properties"]
    odd = (value.keys() - known_keys.keys()) | (set(schema.get("required", [])) - value.keys())
    wrong = [f"{where}.{key}" for key in sorted(odd)]
    return wrong + [
        fault
        for key, each in value.items()
        if key in known_keys
        for fault in _faults(each, known_keys[key], root, f"{where}.{key}")
    ]
