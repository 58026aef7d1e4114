"""Whether a folder takes a receipt, asked before there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import UsageError
from envspec.report import try_folder


def test_nothing_of_the_trial_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "receipt.json").write_text("{}")
    try_folder(tmp_path / "there" / "new" / "deep")
    try_folder(tmp_path / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "receipt.json"]


def test_a_file_on_the_way_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/receipts can't be written: Not a directory"):
        try_folder(tmp_path / "file" / "receipts")
