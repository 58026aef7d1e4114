"""The index's cache on disk: pages, views' selections from them, metadata, resolutions.

A page is valid for every `as_of` up to the time of its request, unless upload times may still be added to it
(`selection.py`); all else is named by a hash of its inputs and always valid: nothing that follows from a page that may
change is cached. One SQLite file: a stack has 400 entries, and as many files would cost more than fetching them again.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import threading
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final

from isal import isal_zlib
from msgspec import Struct

from envspec.structs import replace
from envspec.verifier.owned import contents_of, wheel_summary
from envspec.verifier.record import BadRecord, PlainRow

#: Changes with the format; files of others are ignored.
LAYOUT: Final = "v5"

# A body that is there already, such as that of a page that has not changed, is not written again.
_INSERT: Final = """
INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, key, name) DO UPDATE SET checksum = excluded.checksum, value = excluded.value, body = excluded.body
"""
#: How long a transaction waits for more to write.
_LINGER_S: Final = 0.02
#: Bodies have 10 kB to 1 MB. Measured with four stacks: twice as fast to read as with 4 KiB; larger pages gain nothing.
_PAGE_BYTES: Final = 16 * 1024
#: How much is written before it is copied from the log into the database.
_LOG_PAGES: Final = 128
# Rows have IDs: in a table without, each comparison of keys would read a whole row.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS entry (
    kind TEXT, key TEXT, name TEXT, checksum INTEGER, value TEXT, body BLOB, PRIMARY KEY (kind, key, name)
);
"""


class StoredPage(Struct, frozen=True):
    """One response of an index. status: 200 or 404. asked: when the request was sent (UTC).

    gzipped: the body as it was sent, if that was with gzip; it is stored instead: the pages of a stack have 40 MB.
    no_store: whether the index forbids to store it.
    """

    status: int
    asked: datetime
    url: str
    content_type: str
    etag: str | None
    body: bytes
    gzipped: bytes | None = None
    no_store: bool = False

    def packed(self) -> StoredPage:
        """The page without its body, if `gzipped` has it too: to be kept in memory."""
        return self if self.gzipped is None else replace(self, body=b"")

    def unpacked(self) -> StoredPage:
        """The page with its body."""
        if self.body or self.gzipped is None:
            return self
        return replace(self, body=gzip.decompress(self.gzipped))


class StoredMetadata(Struct, frozen=True):
    """A wheel's METADATA file. size_bytes: the wheel's, None if unknown."""

    body: bytes
    size_bytes: int | None


class Store:
    """The cache in `<root>/index/`, which processes may share.

    Unreadable entries count as absent, failed writes are ignored, and a damaged database is renamed. A thread writes:
    pages arrive while resolvers and the network are waited for. `save` waits for it.

    is_settled: whether every later run will give the same result; set to False by code that finds otherwise, and the
    lock is then not cached. reuses_pages: whether pages of earlier runs are used without a request.
    """

    reuses_pages: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        self.is_settled = True
        self._path = root / "index" / LAYOUT / "store.sqlite"
        self._opened: sqlite3.Connection | None = None
        #: What is read again soon: metadata, and RECORDs.
        self._kept: dict[tuple[str, str], tuple[Any, bytes]] = {}
        self._files: dict[str, dict[str, str]] = {}
        self._writer: _StoreWriter | None = None

    def page(self, index_key: str, name: str) -> StoredPage | None:
        entry = self._get("page", index_key, name)
        with suppress(ValueError, TypeError, EOFError, OSError, zlib.error):
            if entry is not None:
                (status, asked, url, content_type, etag, is_gzipped), body = entry
                gzipped = None
                if is_gzipped:
                    gzipped, body = body, gzip.decompress(body)
                return StoredPage(status, datetime.fromisoformat(asked), url, content_type, etag, body, gzipped)
        return None

    def put_page(self, index_key: str, name: str, page: StoredPage) -> None:
        is_gzipped = page.gzipped is not None
        value = (page.status, page.asked.isoformat(), page.url, page.content_type, page.etag, is_gzipped)
        self._put("page", index_key, name, value, page.body if page.gzipped is None else page.gzipped)

    def metadata(self, key: str) -> StoredMetadata | None:
        found = self._read_once("metadata", key)
        return StoredMetadata(found[1], found[0]) if found else None

    def put_metadata(self, key: str, metadata: StoredMetadata) -> None:
        self._kept["metadata", key] = (metadata.size_bytes, metadata.body)
        self._put("metadata", key, "", metadata.size_bytes, metadata.body)

    def contents(self, wheel: str) -> str | None:
        """The digest of a wheel's contents (`envspec.verifier.record`), by its SHA-256.

        Empty if it has none, None if it is not cached.
        """
        found = self._read_once("record", wheel)
        return str(found[0][0]) if found else None

    def wrong_rows(self, wheel: str) -> list[tuple[str, str | None]]:
        """Files that a wheel's RECORD does not list as they are, and their SHA-256 (`envspec.models.WrongRow`)."""
        found = self._read_once("record", wheel)
        return [(path, sha256) for path, sha256 in found[0][1]] if found else []

    def wheel_tops(self, wheel: str) -> list[str]:
        """The first parts of the paths in a wheel (`envspec.verifier.owned`); empty if they are not cached."""
        found = self._read_once("record", wheel)
        return found[0][2] if found else []

    def wheel_files(self, wheel: str) -> dict[str, str]:
        """The files in a wheel (`envspec.verifier.owned`); empty if they are not cached."""
        found = self._read_once("record", wheel)
        if found and wheel not in self._files:
            self._files[wheel] = {}
            with suppress(BadRecord, zlib.error):
                self._files[wheel] = contents_of(zlib.decompress(found[1]), found[0][1])
        return self._files.get(wheel, {})

    def _read_once(self, kind: str, key: str) -> tuple[Any, bytes] | None:
        found = self._kept.get((kind, key)) or self._get(kind, key)
        if found is not None:
            self._kept[kind, key] = found
        return found

    def put_record(
        self,
        wheel: str,
        record: bytes | None,
        wrong: Sequence[tuple[str, str | None]] = (),
        rows: Sequence[PlainRow] | None = None,
    ) -> None:
        """Store the digest of a wheel's contents, and its files.

        record: None for a wheel without a readable one.
        wrong: see `wrong_rows`.
        rows: see `plain_rows`, if they were read already.
        """
        contents, tops = None, set[str]()
        try:
            if record is not None:
                contents, tops = wheel_summary(record, wrong, rows)
        except BadRecord:
            record = None
        value, body = [contents or "", [*wrong], sorted(tops)], isal_zlib.compress(record or b"", 1)
        self._kept["record", wheel] = (value, body)
        self._files.pop(wheel, None)
        self._put("record", wheel, "", value, body)

    def selection(self, view_key: str, name: str) -> bytes:
        """A view's selection from a project's page, in the form of `index/selection.py`; empty if it is not cached."""
        found = self._get("selection", view_key, name)
        return found[1] if found else b""

    def put_selection(self, view_key: str, name: str, selection: bytes) -> None:
        self._put("selection", view_key, name, "", selection)

    def answer(self, key: str) -> dict[str, Any] | None:
        """A cached result: a JSON object."""
        return _object(self._get("result", key))

    def put_answer(self, key: str, value: dict[str, Any]) -> None:
        self._put("result", key, "", value)

    def save(self) -> None:
        """Wait until all is written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.finish()

    def close(self) -> None:
        # The last connection copies the log into the database; the writer's does not wait for the disk.
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self.save()

    def _put(self, kind: str, key: str, name: str, value: object, body: bytes = b"") -> None:
        if self._writer is None:
            self._writer = _StoreWriter(self._path)
        text = json.dumps(value, separators=(",", ":"), default=datetime.isoformat)
        self._writer.write((kind, key, name, _checksum(text, body), text, body))

    def _get(self, kind: str, key: str, name: str = "") -> tuple[Any, bytes] | None:
        if self._opened is None and not self._path.exists():
            return None
        query = "SELECT checksum, value, body FROM entry WHERE kind = ? AND key = ? AND name = ?"
        try:
            # A caller's event loop and ours are in two threads, of which one waits: see `io.tasks`.
            self._opened = self._opened or sqlite3.connect(self._path, timeout=0.5, check_same_thread=False)
            row = self._opened.execute(query, (kind, key, name)).fetchone()
            if row is None:
                return None
            checksum, text, body = row
            return (json.loads(text), body) if checksum == _checksum(text, body) else None
        except (sqlite3.OperationalError, ValueError):
            # Locked for long, without a table, or no JSON.
            return None
        except sqlite3.DatabaseError:
            self._rename_damaged()
            return None

    def _rename_damaged(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        with suppress(OSError):
            self._path.replace(self._path.with_suffix(".damaged"))
            # Their contents must not be read into a new file.
            for kind in ("-wal", "-shm"):
                self._path.with_name(self._path.name + kind).unlink(missing_ok=True)


def _checksum(text: str, body: bytes) -> int:
    """A power cut can leave old and new pages of the database beside each other, which SQLite does not see."""
    return int(isal_zlib.crc32(body, isal_zlib.crc32(text.encode("utf-8", "surrogateescape"))))


def _object(entry: tuple[Any, bytes] | None) -> dict[str, Any] | None:
    return entry[0] if entry and isinstance(entry[0], dict) else None


class _StoreWriter:
    """A thread that writes, in short transactions: another run, or a build of this one, does not wait for its end.

    On a full or read-only disk nothing is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[tuple[object, ...] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="envspec store", daemon=True)
        self._thread.start()

    def write(self, entry: tuple[object, ...]) -> None:
        self._queue.put(entry)

    def finish(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        with suppress(sqlite3.DatabaseError, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._path, timeout=20)
            try:
                # Of a new file.
                database.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                # Readers must never wait for a writer.
                database.execute("PRAGMA journal_mode = WAL")
                # A power cut costs a download; waiting for the disk would cost every run.
                database.execute("PRAGMA synchronous = OFF")
                # Little is left for the end of a run.
                database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
                database.execute(_TABLE)
                for entry in iter(self._queue.get, None):
                    with database:
                        database.execute(_INSERT, entry)
                        # What comes in a burst is written at once.
                        with suppress(Empty):
                            for more in iter(partial(self._queue.get, timeout=_LINGER_S), None):
                                database.execute(_INSERT, more)
                            return
            finally:
                database.close()
