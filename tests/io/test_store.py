"""The memory on disk: it only saves time, so whatever is wrong with it, nothing is wrong with a lock."""

from __future__ import annotations

import multiprocessing
import sqlite3
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.io.store import Store, StoredMetadata, StoredPage

AT = datetime(2026, 3, 1, 12, 30, 15, 250000, tzinfo=timezone.utc)
PAGE = StoredPage(200, AT, "https://example.org/simple/lib/", "text/html", '"tag"', b"<html>" + bytes(range(256)))
METADATA = StoredMetadata(b"Name: lib\n", 1234)


def filled(root: Path) -> Store:
    store = Store(root)
    store.put_page("place", "lib", PAGE)
    store.put_metadata("wheel", METADATA)
    store.put_selection("view", "lib", {"files": [["a", None, 3]]})
    store.put_answer("question", {"packages": [], "at": AT})
    store.save()
    return store


def file_of(root: Path) -> Path:
    [path] = (root / "index").glob("*.sqlite")
    return path


def test_what_is_remembered_is_read_again_by_another_process(tmp_path: Path) -> None:
    filled(tmp_path).close()
    store = Store(tmp_path)
    assert store.page("place", "lib") == PAGE
    assert store.metadata("wheel") == METADATA
    assert store.selection("view", "lib") == {"files": [["a", None, 3]]}
    assert store.answer("question") == {"packages": [], "at": AT.isoformat()}
    for found in (store.page("place", "other"), store.page("elsewhere", "lib"), store.metadata("x"), store.answer("x")):
        assert found is None
    store.close()


def test_the_last_one_counts(tmp_path: Path) -> None:
    store = filled(tmp_path)
    gone = StoredPage(404, AT, PAGE.url, "text/html", None, b"")
    store.put_page("place", "lib", gone)
    store.save()
    assert store.page("place", "lib") == gone
    store.close()


def test_metadata_is_there_before_it_is_saved(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put_metadata("wheel", METADATA)
    assert store.metadata("wheel") == METADATA
    store.close()
    assert Store(tmp_path).metadata("wheel") == METADATA


def test_looking_makes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    assert store.page("place", "lib") is None
    store.close()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"no database at all, but long enough to be read as a header of one: " + bytes(200),
        b"SQLite format 3\0" + b"\xff" * 5000,
    ],
    ids=["empty", "text", "header-and-noise"],
)
def test_a_damaged_file_is_put_aside(tmp_path: Path, damage: bytes) -> None:
    filled(tmp_path).close()
    path = file_of(tmp_path)
    path.write_bytes(damage)
    store = Store(tmp_path)
    assert store.page("place", "lib") is None
    store.put_page("place", "lib", PAGE)
    store.close()
    store = Store(tmp_path)
    assert store.page("place", "lib") == PAGE
    store.close()


def test_a_file_that_is_damaged_in_the_middle_gives_nothing_or_what_was_stored(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for number in range(200):
        store.put_metadata(f"wheel-{number}", StoredMetadata(bytes([number]) * 500, number))
    store.close()
    path = file_of(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    store = Store(tmp_path)
    for number in range(200):
        found = store.metadata(f"wheel-{number}")
        assert found in (None, StoredMetadata(bytes([number]) * 500, number))
    store.put_page("place", "lib", PAGE)
    store.close()


@pytest.mark.parametrize(
    ("change", "kind"),
    [("value = 'cut sho'", "result"), ("value = '[]'", "selection"), ("value = '[200, \"once\", 1, 2, 3]'", "page")],
)
def test_an_entry_of_another_form_counts_as_absent(tmp_path: Path, change: str, kind: str) -> None:
    filled(tmp_path).close()
    database = sqlite3.connect(file_of(tmp_path))
    with database:
        database.execute(f"UPDATE entry SET {change} WHERE kind = '{kind}'")
    database.close()
    store = Store(tmp_path)
    found = {
        "result": store.answer("question"),
        "selection": store.selection("view", "lib"),
        "page": store.page("place", "lib"),
    }
    assert [name for name, value in found.items() if value is None] == [kind]
    store.close()


def test_a_place_that_can_not_be_written_remembers_nothing(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"a file, where a folder should be")
    store = filled(tmp_path)
    assert store.page("place", "lib") is None
    store.close()


def test_a_writer_that_holds_the_file_keeps_nobody_from_reading(tmp_path: Path) -> None:
    filled(tmp_path).close()
    other = sqlite3.connect(file_of(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM entry")
    store = Store(tmp_path)
    assert store.page("place", "lib") == PAGE
    other.execute("ROLLBACK")
    other.close()
    store.close()


def _fill(root: str, first: int) -> None:
    store = Store(Path(root))
    for number in range(first, first + 150):
        store.put_metadata(str(number), StoredMetadata(str(number).encode() * 50, number))
        if number % 50 == 0:
            store.save()
    store.close()


def test_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_fill, args=(str(tmp_path), first)) for first in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    store = Store(tmp_path)
    for number in range(250):
        assert store.metadata(str(number)) == StoredMetadata(str(number).encode() * 50, number)
    store.close()
