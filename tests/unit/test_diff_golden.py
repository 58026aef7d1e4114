"""Every folder of tests/golden/diff: see the README there."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.lock.diff import LockDiff, diff_locks
from envspec.lock.diff_text import as_json, as_markdown, as_text
from envspec.lock.document import load
from tests.support.locks import sealed

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden" / "diff").glob("*/old.toml"))


def difference(case: Path) -> LockDiff:
    old, new = (load(sealed((case / name).read_text(encoding="utf-8")), name) for name in ("old.toml", "new.toml"))
    return diff_locks(old, new)


def test_there_are_cases() -> None:
    assert CASES


@pytest.mark.parametrize(
    ("render", "expected"), [(as_text, "expected.txt"), (as_json, "expected.json"), (as_markdown, "expected.md")]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path, render: object, expected: str) -> None:
    assert callable(render)
    assert render(difference(case)) == (case / expected).read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lines_are_clean(case: Path) -> None:
    """No trailing blanks, and nothing that a terminal of 120 columns breaks but for what is one long word."""
    for line in as_text(difference(case)).splitlines():
        assert line == line.rstrip()
