"""Each case under golden/spec is a spec, in spec.toml or else in pyproject.toml, and what reading it gives:
`expected.txt` for one that is refused, in whole, `expected.json` for one that is read. Each case under golden/targets
is a spec and the targets that it means, or why it means none: `expected.txt`.

`conda.toml`, if there is one, has the Python of the solved conda packages on each platform. The facts are the few rows
beside the cases, not envspec's data, whose next refresh would change the results.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec import documents
from envspec.errors import EnvspecError
from envspec.facts import Facts
from envspec.facts.tables import PythonRow, SeriesRow, SystemRow
from envspec.models import Decision, Platform, Target
from envspec.reasons import words
from envspec.spec import SpecError, load_spec
from envspec.spec.targets import targets_of
from tests.support.golden import GoldenCase, read_cases

CASES = read_cases(Path(__file__).parent / "golden" / "spec")
TARGETS = Path(__file__).parent / "golden" / "targets"
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
REFUSED = [case for case in CASES if "expected.txt" in case.parts]
READ = [case for case in CASES if "expected.json" in case.parts]


def spec_file(case: GoldenCase, folder: Path) -> Path:
    case.unpack(folder / case.name)
    path = folder / case.name / "spec.toml"
    return path if path.exists() else path.with_name("pyproject.toml")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused(case: GoldenCase, tmp_path: Path) -> None:
    path = spec_file(case, tmp_path)
    with pytest.raises(SpecError) as caught:
        load_spec(path, NOW, path.name)
    case.check(str(caught.value) + "\n")
    assert caught.value.exit_code == 2
    assert caught.value.problems


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_read(case: GoldenCase, tmp_path: Path) -> None:
    spec = load_spec(spec_file(case, tmp_path), NOW)
    data = {**spec.model_dump(exclude={"facts"}), "facts": spec.facts.tables()}
    text = json.dumps(_text_keys(data), default=str, indent=1, ensure_ascii=False)
    case.check(text + "\n", "expected.json")


def _text_keys(value: Any) -> Any:
    """The same value, with the names of platforms as keys of tables."""
    if not isinstance(value, dict):
        return value
    return {key.value if isinstance(key, Platform) else key: _text_keys(inner) for key, inner in value.items()}


def test_every_case_has_one_outcome() -> None:
    assert len(REFUSED) > 50 and READ
    assert len(REFUSED) + len(READ) == len(CASES)


def _target(target: Target) -> str:
    python = target.python
    bound = "".join(f" {name} {value}" for name, value in (("glibc", target.glibc), ("macos", target.macos)) if value)
    return f"{target.platform.value}: {python.version} {python.source} {python.url} {python.sha256}{bound}"


def _decision(decision: Decision) -> str:
    assert decision.platform is not None
    return f"{decision.platform.value} {decision.what} = {decision.value}\n  {words(decision.why)}\n  {decision.source}"


def _targets(case: GoldenCase, folder: Path) -> str:
    facts, rows = Facts({}), documents.parse_toml((TARGETS / "facts.toml").read_text(encoding="utf-8"))
    facts.pythons = tuple(PythonRow(**row) for row in rows["python"])
    facts.systems = tuple(SystemRow(**row) for row in rows["system"])
    facts.python_series = {row["series"]: SeriesRow(**row) for row in rows["python_series"]}
    conda_pythons = {Platform(name): version for name, version in case.table("conda.toml").items()}
    try:
        spec = load_spec(spec_file(case, folder), NOW, "spec.toml")
        targets, decisions = targets_of(spec, facts, conda_pythons=conda_pythons)
    except EnvspecError as error:
        return f"exit {error.exit_code}\n{error}\n"
    return "\n".join([*map(_target, targets), "", *map(_decision, decisions)]) + "\n"


@pytest.mark.parametrize("case", read_cases(TARGETS), ids=lambda case: case.name)
def test_targets(case: GoldenCase, tmp_path: Path) -> None:
    case.check(_targets(case, tmp_path))
