"""What the index remembers on disk: pages as they were answered, and the metadata of wheels.

A page is good for every `as_of` up to the moment when it was asked for; metadata is kept by the wheel's SHA-256 and good for ever.
Every file carries the SHA-256 of its body, so that one cut short by a crash or a full disk counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

#: Changes whenever the form of what is stored changes; older folders are then not read any more.
LAYOUT: Final = "v1"


@dataclass(frozen=True, slots=True)
class StoredPage:
    """One answer of an index. status: 200 or 404. asked: when the request was sent (UTC)."""

    status: int
    asked: datetime
    url: str
    content_type: str
    etag: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """A wheel's METADATA file. size_bytes: the wheel's, None where it was never told."""

    body: bytes
    size_bytes: int | None


class Store:
    """Pages and metadata in one folder; many processes may share it.

    A file that cannot be written is not remembered and nothing more: the memory only saves time.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "index" / LAYOUT

    def page(self, index_key: str, name: str) -> StoredPage | None:
        found = self._read(self._page_path(index_key, name))
        if found is None:
            return None
        head, body = found
        head["asked"] = datetime.fromisoformat(head["asked"])
        return StoredPage(body=body, **head)

    def remember_page(self, index_key: str, name: str, page: StoredPage) -> None:
        head = {key: value for key, value in asdict(page).items() if key != "body"}
        head["asked"] = page.asked.isoformat()
        self._write(self._page_path(index_key, name), head, page.body)

    def metadata(self, key: str) -> StoredMetadata | None:
        found = self._read(self._metadata_path(key))
        return StoredMetadata(found[1], found[0]["size_bytes"]) if found else None

    def remember_metadata(self, key: str, metadata: StoredMetadata) -> None:
        self._write(self._metadata_path(key), {"size_bytes": metadata.size_bytes}, metadata.body)

    def _page_path(self, index_key: str, name: str) -> Path:
        return self._root / "pages" / index_key / name

    def _metadata_path(self, key: str) -> Path:
        return self._root / "metadata" / key[:2] / key[2:]

    @staticmethod
    def _read(path: Path) -> tuple[dict[str, Any], bytes] | None:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        head, _, body = content.partition(b"\n")
        try:
            values: dict[str, Any] = json.loads(head)
            sound = values.pop("sha256") == hashlib.sha256(body).hexdigest()
        except (ValueError, KeyError, AttributeError):
            return None
        return (values, body) if sound else None

    @staticmethod
    def _write(path: Path, head: dict[str, Any], body: bytes) -> None:
        line = json.dumps(head | {"sha256": hashlib.sha256(body).hexdigest()}).encode()
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(line + b"\n")
                file.write(body)
            Path(temporary).replace(path)
        except OSError:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


def cache_root() -> Path:
    """The folder of envspec's caches: `ENVSPEC_CACHE_DIR`, else the system's own place for caches."""
    named = os.environ.get("ENVSPEC_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs  # here, not above: 20 ms that most commands need not spend

    return Path(platformdirs.user_cache_dir("envspec", appauthor=False))
