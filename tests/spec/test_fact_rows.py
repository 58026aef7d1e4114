"""`[facts]` takes the rows that envspec's own data is made of, and hands them on as the facts take them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
import tomlkit

from envspec import documents
from envspec.data import DATA
from envspec.facts import load_facts
from envspec.spec import parse_spec
from envspec.spec.fact_rows import AddedFacts

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SMALL = '[env]\nname = "small"\npython = "3.11"\n'
DOCUMENTS = [documents.parse_toml(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.toml"))]


@pytest.mark.parametrize("table", sorted(AddedFacts.model_fields))
def test_rows_of_the_data_are_rows_of_a_spec(table: str) -> None:
    rows = [row for document in DOCUMENTS for row in document.get(table, [])]
    assert rows
    spec = parse_spec(SMALL + tomlkit.dumps({"facts": {table: rows}}), "spec.toml", NOW)
    assert len(spec.facts.tables()[table]) == len(rows)
    load_facts(spec.facts.tables())
