"""Every folder of tests/golden/explain: see the README there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envspec.base_image.cuda import SharedLibrary
from envspec.errors import UsageError
from envspec.explain.explanation import explain_lock, explain_package
from envspec.explain.image import Seen
from envspec.explain.package_text import package_text
from envspec.explain.text import as_json, lock_text
from envspec.lock.document import load
from envspec.models import GpuCodeFound, Lock, Platform
from tests.support.locks import sealed

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "golden" / "explain").glob("*/lock.toml"))
PACKAGES = [path for case in CASES for path in sorted(case.glob("package.*.txt"))]
ERRORS = [path for case in CASES for path in sorted(case.glob("error.*.txt"))]


def name_of(path: Path) -> str:
    return path.name.split(".", 1)[1].rsplit(".", 1)[0]


def case_id(path: Path) -> str:
    return f"{path.parent.name}/{name_of(path)}"


def seen_of(case: Path) -> Seen:
    """What the wheels of the case were seen to hold: SHA-256 -> GPU code."""
    listed = case / "seen.json"
    rows = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    found = {sha256: GpuCodeFound(tuple(row["sm"]), tuple(row["ptx"])) for sha256, row in rows.items()}
    return found.get


def read(case: Path) -> Lock:
    return load(sealed((case / "lock.toml").read_text(encoding="utf-8")), "lock.toml")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lock(case: Path) -> None:
    listed = case / "shared.json"
    rows = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    shared = {Platform(name): [SharedLibrary(**row) for row in found] for name, found in rows.items()}
    told = explain_lock(read(case), shared, seen_of(case))
    assert lock_text(told) == (case / "lock.txt").read_text(encoding="utf-8")
    assert as_json(told) == (case / "lock.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("expected", PACKAGES, ids=case_id)
def test_package(expected: Path) -> None:
    told = explain_package(read(expected.parent), name_of(expected), seen_of(expected.parent))
    assert package_text(told) == expected.read_text(encoding="utf-8")
    assert as_json(told) == expected.with_suffix(".json").read_text(encoding="utf-8")


@pytest.mark.parametrize("expected", ERRORS, ids=case_id)
def test_unknown_package(expected: Path) -> None:
    with pytest.raises(UsageError) as caught:
        explain_package(read(expected.parent), name_of(expected))
    assert f"{caught.value}\n" == expected.read_text(encoding="utf-8")
    assert caught.value.exit_code == 2


def test_there_are_cases_of_every_kind() -> None:
    assert CASES
    assert PACKAGES
    assert ERRORS
