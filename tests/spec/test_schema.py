"""The JSON schema: every key described, nothing else allowed, and never stricter than the parser; rows of `[facts]`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from jsonschema import Draft7Validator, validators

from envspec import documents
from envspec.data import DATA
from envspec.facts import load_facts
from envspec.spec import json_schema, parse_spec
from envspec.spec.document import read_spec
from envspec.spec.fact_rows import AddedFacts
from envspec.spec.sections import Spec
from tests.spec.test_golden import READ, spec_file
from tests.support.golden import GoldenCase, read_case

Schema = dict[str, Any]
SCHEMA: Schema = json_schema()
# To the editors' extensions, a time or a date of TOML is text with a format. kubernetes-validate requires jsonschema.
TYPES = Draft7Validator.TYPE_CHECKER.redefine("string", lambda _, value: isinstance(value, (str, date, datetime)))
VALIDATOR = validators.extend(Draft7Validator, type_checker=TYPES)(SCHEMA)
CASES = Path(__file__).parent / "golden" / "spec"


def _tables(node: Any) -> Iterator[Schema]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    yield from [node] if isinstance(node, dict) else []
    for each in inner:
        yield from _tables(each)


OBJECTS = [node for node in _tables(SCHEMA) if "properties" in node and node.get("type") == "object"]


def test_every_key_is_described() -> None:
    keys = [(key, value) for node in OBJECTS for key, value in node["properties"].items()]
    assert len(keys) > 100
    assert [key for key, value in keys if not _resolved(value).get("description")] == []


def _resolved(value: Schema) -> Schema:
    return SCHEMA["definitions"][value["$ref"].rpartition("/")[2]] if "$ref" in value else value


def test_no_table_takes_other_keys() -> None:
    assert [node for node in OBJECTS if node.get("additionalProperties") is not False] == []


def test_it_is_draft_7_and_knows_no_null() -> None:
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["title"]
    assert "null" not in repr(SCHEMA) and "$defs" not in repr(SCHEMA)
    assert set(SCHEMA["properties"]) == {field.alias or name for name, field in Spec.model_fields.items()}


def test_nothing_stands_beside_a_reference() -> None:
    """Draft 7 ignores it: a section's description would be lost."""
    found = [node for node in _tables(SCHEMA) if "$ref" in node]
    assert len(found) > 15
    assert [node for node in found if len(node) > 1] == []


def test_choices_are_listed() -> None:
    env, cuda = SCHEMA["definitions"]["Env"]["properties"], SCHEMA["definitions"]["Cuda"]["properties"]
    assert env["platforms"]["items"]["enum"] == ["linux-64", "linux-aarch64", "osx-arm64", "win-64"]
    assert env["platforms"]["default"] == ["linux-64"]
    assert "cudnn-runtime" in cuda["flavor"]["enum"] and cuda["flavor"]["default"] == "auto"
    assert "ubuntu24.04" in cuda["os"]["enum"]


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_it_takes_what_the_parser_takes(case: GoldenCase, tmp_path: Path) -> None:
    data = read_spec(spec_file(case, tmp_path))
    assert list(VALIDATOR.iter_errors(data)) == []


@pytest.mark.parametrize(
    "case",
    [
        *("unknown-key-near", "missing-keys", "platforms-unknown", "cuda-version-number", "name-characters"),
        *("services-true", "conda-forms", "conda-names", "conda-platforms", "conda-virtual-packages"),
    ],
)
def test_it_refuses_what_an_editor_can_see(case: str) -> None:
    data = read_case(CASES / f"{case}.txtar").table("spec.toml")
    assert list(VALIDATOR.iter_errors(data))


_IN_VARIANTS = """\
[env]
name = "small"
python = "3.11"
platforms = ["linux-64", "linux-aarch64"]
[cuda]
driver = "570"
[cuda.platform.linux-aarch64]
version = "13.0"
[image.env]
MODE = "a"
[services.ssh]
port = 2222
[variants.other]
"""


@pytest.mark.parametrize(
    "lines",
    [
        *("cuda = false", "cuda.driver = false", "cuda.platform.linux-aarch64 = false", "services.ssh = false"),
        *("cuda.platform.linux-aarch64.version = false", "image.env.MODE = false", "services.ssh.port = false"),
    ],
)
def test_false_removes_a_key_of_the_spec_in_a_variant(lines: str) -> None:
    text = f"{_IN_VARIANTS}{lines}\n"
    assert parse_spec(text, "spec.toml", datetime(2026, 11, 20, 12, tzinfo=timezone.utc)).variants
    assert list(VALIDATOR.iter_errors(documents.parse_toml(text))) == []


@pytest.mark.parametrize("lines", ["cuda.driver = true", "cuda.other = false", "pip.build.sandbox = 1"])
def test_a_variant_takes_nothing_else(lines: str) -> None:
    assert list(VALIDATOR.iter_errors(documents.parse_toml(f"{_IN_VARIANTS}{lines}\n")))


DOCUMENTS = [documents.parse_toml(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.toml"))]


@pytest.mark.parametrize("table", sorted(AddedFacts.model_fields))
def test_rows_of_the_data_are_rows_of_a_spec(table: str) -> None:
    rows = [row for document in DOCUMENTS for row in document.get(table, [])]
    assert rows
    text = '[env]\nname = "small"\npython = "3.11"\n' + tomlkit.dumps({"facts": {table: rows}})
    spec = parse_spec(text, "spec.toml", datetime(2026, 11, 20, 12, tzinfo=timezone.utc))
    assert len(spec.facts.tables()[table]) == len(rows)
    assert load_facts(spec.facts.tables()).torch
