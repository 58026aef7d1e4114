"""Each folder under golden/targets is a spec and the targets that it means, or why it means none: `expected.txt`.

`conda.toml`, where there is one, says which Python the conda half has on each platform. The facts are the few rows
beside the cases, not envspec's data, whose next refresh would change the answers.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import pytest

from envspec import documents
from envspec.errors import EnvspecError
from envspec.facts import Facts
from envspec.facts.tables import PythonRow, SystemRow
from envspec.models import Decision, Platform, Target
from envspec.spec import load_spec
from envspec.spec.targets import targets_of

CASES = Path(__file__).parent / "golden" / "targets"
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
ROWS = documents.parse_toml((CASES / "facts.toml").read_text(encoding="utf-8"))


def _pythons(_: Facts) -> tuple[PythonRow, ...]:
    return tuple(PythonRow(**row) for row in ROWS["python"])


def _systems(_: Facts) -> tuple[SystemRow, ...]:
    return tuple(SystemRow(**row) for row in ROWS["system"])


class FewFacts(Facts):
    """Facts of a handful of rows."""

    pythons = cached_property(_pythons)
    systems = cached_property(_systems)


def _told(target: Target) -> str:
    python = target.python
    bound = "".join(f" {name} {value}" for name, value in (("glibc", target.glibc), ("macos", target.macos)) if value)
    return f"{target.platform.value}: {python.version} {python.source} {python.url} {python.sha256}{bound}"


def _decided(decision: Decision) -> str:
    assert decision.platform is not None
    return f"{decision.platform.value} {decision.what} = {decision.value}\n  {decision.why}\n  {decision.source}"


def _outcome(case: Path) -> str:
    solved = case / "conda.toml"
    pythons = documents.parse_toml(solved.read_text(encoding="utf-8")) if solved.exists() else {}
    try:
        targets, decisions = targets_of(
            load_spec(case / "spec.toml", NOW, "spec.toml"),
            FewFacts({}),
            conda_pythons={Platform(name): version for name, version in pythons.items()},
        )
    except EnvspecError as error:
        return f"exit {error.exit_code}\n{error}\n"
    return "\n".join([*map(_told, targets), "", *map(_decided, decisions)]) + "\n"


@pytest.mark.parametrize("case", sorted(path.parent.name for path in CASES.glob("*/spec.toml")))
def test_targets(case: str) -> None:
    assert _outcome(CASES / case) == (CASES / case / "expected.txt").read_text(encoding="utf-8")
