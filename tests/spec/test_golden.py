"""Each folder under golden/spec is a spec and what reading it says: `expected.txt` for one that is refused, in whole,
`expected.json` for one that is read."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.models import Platform
from envspec.spec import SpecError, load_spec

CASES = Path(__file__).parent / "golden" / "spec"
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
REFUSED = sorted(path.parent.name for path in CASES.glob("*/expected.txt"))
READ = sorted(path.parent.name for path in CASES.glob("*/expected.json"))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(CASES / case / "spec.toml", NOW, "spec.toml")
    assert str(caught.value) + "\n" == (CASES / case / "expected.txt").read_text(encoding="utf-8")
    assert caught.value.exit_code == 2
    assert caught.value.problems


@pytest.mark.parametrize("case", READ)
def test_read(case: str) -> None:
    spec = load_spec(CASES / case / "spec.toml", NOW)
    data = {**spec.model_dump(exclude={"facts"}), "facts": spec.facts.tables()}
    told = json.dumps(_text_keys(data), default=str, indent=1, ensure_ascii=False)
    assert told + "\n" == (CASES / case / "expected.json").read_text(encoding="utf-8")


def _text_keys(value: Any) -> Any:
    """The same value, with platforms as keys of tables told by name."""
    if not isinstance(value, dict):
        return value
    return {key.value if isinstance(key, Platform) else key: _text_keys(inner) for key, inner in value.items()}


def test_every_case_has_one_outcome() -> None:
    assert len(REFUSED) > 50 and READ
    assert sorted([*REFUSED, *READ]) == sorted(path.name for path in CASES.iterdir())
