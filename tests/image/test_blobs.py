"""Blobs that were fetched once: checked before they have a name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envspec.image.layers.store import BlobStore, WrongBlob
from envspec.io.cache import DamagedCache
from envspec.registry.types import Descriptor

CONTENT = b"a layer" * 1000


def described(content: bytes, algorithm: str = "sha256") -> Descriptor:
    return Descriptor("some/type", f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}", len(content))


def files(cache: Path) -> list[str]:
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_what_was_kept_is_there(tmp_path: Path, algorithm: str) -> None:
    store, wanted = BlobStore(tmp_path), described(CONTENT, algorithm)
    assert not store.has(wanted)
    for _ in range(2):
        store.write(wanted.digest, CONTENT)
        assert store.has(wanted)
    assert files(tmp_path) == [f"blobs/{wanted.digest.replace(':', '/')}"]
    assert b"".join(store.open(wanted).chunks()) == CONTENT
    assert b"".join(store.open(wanted).chunks(6990)) == CONTENT[6990:]
    assert b"".join(store.open(wanted).chunks(len(CONTENT))) == b""


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x"])
def test_other_bytes_leave_nothing(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(WrongBlob, match="their hash is "):
        BlobStore(tmp_path).write(described(CONTENT).digest, content)
    assert not files(tmp_path)


@pytest.mark.parametrize("damaged", [CONTENT[:10], CONTENT + b"x", CONTENT[:-1] + b"x"])
def test_a_blob_that_was_damaged_later_goes(tmp_path: Path, damaged: bytes) -> None:
    store = BlobStore(tmp_path)
    kept = described(CONTENT)
    store.write(kept.digest, CONTENT)
    store.path(kept.digest).write_bytes(damaged)
    assert store.has(kept) is (len(damaged) == len(CONTENT))
    assert store.read(kept.digest) is None
    with pytest.raises(DamagedCache, match="was damaged after it was written"):
        list(store.open(kept).chunks())
    assert not files(tmp_path)
    store.write(kept.digest, CONTENT)
    assert store.read(kept.digest) == CONTENT


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../x", "../x:abc", "sha256:" + "A" * 64])
def test_what_is_no_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        BlobStore(tmp_path).read(digest)
