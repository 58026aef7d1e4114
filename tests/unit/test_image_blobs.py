"""Blobs that were fetched once: checked before they have a name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envspec.image.blobs import BlobStore, CannotKeep, WrongBlob
from envspec.registry.blob import Descriptor

CONTENT = b"a layer" * 1000


def described(content: bytes, algorithm: str = "sha256") -> Descriptor:
    return Descriptor("some/type", f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}", len(content))


def files(cache: Path) -> list[str]:
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_blob_is_there_when_it_is_whole(tmp_path: Path, algorithm: str) -> None:
    store, wanted = BlobStore(tmp_path), described(CONTENT, algorithm)
    with store.writer(wanted) as write:
        write(CONTENT[:10])
        assert not store.has(wanted)
        write(CONTENT[10:])
    assert store.has(wanted)
    assert files(tmp_path) == [f"blobs/{wanted.digest.replace(':', '/')}"]
    assert b"".join(store.open(wanted).chunks()) == CONTENT
    assert b"".join(store.open(wanted).chunks(6990)) == CONTENT[6990:]
    assert b"".join(store.open(wanted).chunks(len(CONTENT))) == b""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1], "has 6999 bytes, where 7000 were told of"),
        (CONTENT + b"x", "has 7001 bytes, where 7000 were told of"),
        (CONTENT[:-1] + b"x", "their hash is "),
    ],
)
def test_other_bytes_leave_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    store, wanted = BlobStore(tmp_path), described(CONTENT)
    with pytest.raises(WrongBlob, match=message), store.writer(wanted) as write:
        write(content)
    assert not files(tmp_path)


def test_a_fetch_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    store, wanted = BlobStore(tmp_path), described(CONTENT)
    with pytest.raises(ConnectionError), store.writer(wanted) as write:
        write(CONTENT[:100])
        raise ConnectionError
    assert not files(tmp_path)


def test_small_documents(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    assert store.put(CONTENT, "some/type") == store.put(CONTENT, "some/type") == described(CONTENT)
    assert store.path(described(CONTENT).digest).read_bytes() == CONTENT


def test_a_file_that_was_fetched_beside(tmp_path: Path) -> None:
    store, wanted = BlobStore(tmp_path / "cache"), described(CONTENT)
    beside = tmp_path / "unfinished"
    beside.write_bytes(CONTENT[:-1])
    with pytest.raises(WrongBlob, match="6999 bytes"):
        store.adopt(wanted, beside)
    assert beside.exists()
    beside.write_bytes(CONTENT)
    assert b"".join(store.adopt(wanted, beside).chunks()) == CONTENT
    assert not beside.exists()
    assert store.has(wanted)


@pytest.mark.parametrize("damaged", [CONTENT[:10], CONTENT + b"x", CONTENT[:-1] + b"x"])
def test_a_blob_that_was_damaged_later_goes(tmp_path: Path, damaged: bytes) -> None:
    store = BlobStore(tmp_path)
    kept = store.put(CONTENT, "some/type")
    store.path(kept.digest).write_bytes(damaged)
    assert store.has(kept) is (len(damaged) == len(CONTENT))
    assert store.read(kept.digest) is None
    with pytest.raises(WrongBlob, match="was damaged after it had been fetched"):
        list(store.open(kept).chunks())
    assert not files(tmp_path)
    assert store.put(CONTENT, "some/type") == kept
    assert store.read(kept.digest) == CONTENT


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../x", "../x:abc", "sha256:" + "A" * 64])
def test_what_is_no_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        BlobStore(tmp_path).read(digest)


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(CannotKeep, match="can't be used") as refused:
        BlobStore(tmp_path / "cache").put(CONTENT, "some/type")
    assert "ENVSPEC_CACHE_DIR" in str(refused.value)
    assert refused.value.exit_code == 6
