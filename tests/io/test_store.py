"""The index's cache on disk only saves time: whatever is wrong with it, nothing is wrong with a lock."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.io.store import Store, StoredMetadata, StoredPage

AT = datetime(2026, 3, 1, 12, 30, 15, 250000, tzinfo=timezone.utc)
PAGE = StoredPage(200, AT, "https://example.org/simple/lib/", "text/html", '"tag"', b"<html>" + bytes(range(256)))
METADATA = StoredMetadata(b"Name: lib\n", 1234)
Open = Callable[[], Store]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the store; each is closed at the end."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Store(tmp_path)))


@pytest.fixture
def file(opened: Open, tmp_path: Path) -> Path:
    """The file of a store with one entry of each kind."""
    fill(opened())
    (path,) = tmp_path.rglob("*.sqlite")
    return path


def fill(store: Store) -> None:
    store.put_page("index", "lib", PAGE)
    store.put_metadata("wheel", METADATA)
    store.put_selection("view", "lib", b"files")
    store.put_answer("question", {"packages": [], "at": AT})
    store.close()


@pytest.mark.usefixtures("file")
def test_another_process_reads_what_was_stored(opened: Open) -> None:
    store = opened()
    assert store.page("index", "lib") == PAGE
    assert store.metadata("wheel") == METADATA
    assert store.selection("view", "lib") == b"files"
    assert store.selection("other", "lib") == b""
    assert store.answer("question") == {"packages": [], "at": AT.isoformat()}
    for found in (store.page("index", "other"), store.page("other", "lib"), store.metadata("x"), store.answer("x")):
        assert found is None
    gone = StoredPage(404, AT, PAGE.url, "text/html", None, b"")
    store.put_page("index", "lib", gone)
    store.save()
    assert store.page("index", "lib") == gone


def test_metadata_is_read_before_it_is_saved(opened: Open) -> None:
    store = opened()
    store.put_metadata("wheel", METADATA)
    assert store.metadata("wheel") == METADATA
    store.close()
    assert opened().metadata("wheel") == METADATA


def test_a_record_that_is_read_again_replaces_its_files(opened: Open) -> None:
    store = opened()
    for first in "ab":
        store.put_record("wheel", f"lib/x.py,sha256={first * 43},1\n".encode())
        assert store.wheel_files("wheel") == {"lib/x.py": first * 8}


def test_a_read_creates_nothing(opened: Open, tmp_path: Path) -> None:
    assert opened().page("index", "lib") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [b"", b"no database, but as long as a header: " + bytes(200), b"SQLite format 3\0" + b"\xff" * 5000],
)
def test_a_damaged_file_is_renamed(opened: Open, file: Path, damage: bytes) -> None:
    file.write_bytes(damage)
    store = opened()
    assert store.page("index", "lib") is None
    store.put_page("index", "lib", PAGE)
    store.close()
    assert opened().page("index", "lib") == PAGE


def test_a_truncated_file_gives_nothing_or_what_was_stored(opened: Open, file: Path) -> None:
    store = opened()
    for number in range(200):
        store.put_metadata(f"wheel-{number}", StoredMetadata(bytes([number]) * 500, number))
    store.close()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    store = opened()
    for number in range(200):
        assert store.metadata(f"wheel-{number}") in (None, StoredMetadata(bytes([number]) * 500, number))
    store.put_page("index", "lib", PAGE)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("value = 'cut sho'", "result"),
        ("value = '[200, \"once\", 1, 2, 3]'", "page"),
        ("body = zeroblob(length(body))", "page"),
        ("body = zeroblob(length(body))", "metadata"),
    ],
)
def test_an_entry_that_was_changed_counts_as_absent(opened: Open, file: Path, change: str, kind: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(f"UPDATE entry SET {change} WHERE kind = '{kind}'")
    store = opened()
    found = {
        "result": store.answer("question"),
        "page": store.page("index", "lib"),
        "metadata": store.metadata("wheel"),
    }
    assert [name for name, value in found.items() if value is None] == [kind]


def test_an_unwritable_folder_stores_nothing(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"a file instead of a folder")
    fill(opened())
    assert opened().page("index", "lib") is None


def test_a_writer_does_not_block_readers(opened: Open, file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM entry")
        assert opened().page("index", "lib") == PAGE
        other.execute("ROLLBACK")


def _fill(root: str, first: int) -> None:
    store = Store(Path(root))
    for number in range(first, first + 150):
        store.put_metadata(str(number), StoredMetadata(str(number).encode() * 50, number))
        if number % 50 == 0:
            store.save()
    store.close()


def test_two_processes_at_once(opened: Open, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_fill, args=(str(tmp_path), first)) for first in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    store = opened()
    for number in range(250):
        assert store.metadata(str(number)) == StoredMetadata(str(number).encode() * 50, number)
