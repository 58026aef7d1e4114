"""Every folder of tests/lockfile/golden: see the README there."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import StaleLock
from envspec.lockfile.document import dump, load
from envspec.lockfile.header import LOCK_FILE, verify_checksum
from envspec.operations.lock.complete import lock_files
from tests.support.golden import assert_golden

CASES = sorted(path.parent for path in (Path(__file__).parent / "golden").glob("*/envspec.lock"))
WHERE = "locks/case/envspec.lock"


def test_there_are_cases_of_both_kinds() -> None:
    broken = [case for case in CASES if (case / "error.txt").exists()]
    assert broken
    assert len(broken) < len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Path) -> None:
    data = (case / "envspec.lock").read_bytes()
    error = case / "error.txt"
    if error.exists():
        with pytest.raises(StaleLock) as caught:
            load(data.decode(), WHERE)
        assert f"{caught.value}\n" == error.read_text(encoding="utf-8").replace("{where}", WHERE)
        assert caught.value.exit_code == 3
        return
    lock = load(data.decode(), WHERE)
    head, _ = verify_checksum(data, WHERE)
    files = lock_files(lock)
    for name, content in files.items():
        assert_golden(content.decode(), case / name)
    assert sorted(files) == sorted(path.name for path in case.iterdir())
    assert dump(lock, head.files).encode() == files[LOCK_FILE]
