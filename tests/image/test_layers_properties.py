"""Whatever the entries are: the tar holds them, its gzip form is that tar, and how they came packed leaves no trace."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envspec.image.layers.gzip import BadArchive
from envspec.image.layers.store import LayerStore
from envspec.image.layers.types import Compression, Data, Entry, InMemory, Layer, OnDisk, ZipMember
from envspec.structs import replace
from tests.support.builders.entries import Listed, folders_of, zipped

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NAMES = st.text(st.sampled_from("ab0_-. äß\u6570"), min_size=1, max_size=60).filter(lambda name: name.strip("."))
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)
NOISE = hashlib.shake_128(b"noise").digest(400_000)


@dataclass(frozen=True)
class Content:
    """Small or large, of one letter or of noise: below and above what is spliced, read and unpacked at once."""

    size: int
    letter: int | None

    def __bytes__(self) -> bytes:
        return NOISE[: self.size] if self.letter is None else bytes([self.letter]) * self.size


CONTENTS = st.one_of(
    st.builds(Content, st.integers(0, 3000), st.none()),
    st.builds(Content, st.integers(0, len(NOISE)), st.none()),
    st.builds(Content, st.integers(0, 1_500_000), st.integers(0, 255)),
)
#: Files are written here, on machines with other work to do.
few = settings(max_examples=25, deadline=None)
LEVELS = st.sampled_from([None, 0, 1, 6, 9])


@dataclass(frozen=True)
class Packed:
    """The same content as a wheel has it, as a file of this machine and as bytes that were made here."""

    path: str
    made: Content
    level: int | None
    mode: int

    @property
    def content(self) -> bytes:
        return bytes(self.made)


def files_below_each_other(files: list[Packed]) -> bool:
    """A file can't be the folder of another."""
    paths = {file.path for file in files}
    return not any(parent.as_posix() in paths for path in paths for parent in Path(path).parents)


FILES = st.lists(
    st.builds(Packed, PATHS, CONTENTS, LEVELS, st.sampled_from([0o644, 0o755])),
    max_size=4,
    unique_by=lambda file: file.path,
).filter(files_below_each_other)


@contextmanager
def somewhere() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def source(files: list[Packed], data: dict[str, Data], name: str) -> Listed:
    entries = [Entry(file.path, file.mode, data=data[file.path]) for file in files]
    return Listed((*folders_of(file.path for file in files), *entries), name=name)


def bytes_of(store: LayerStore, layer: Layer, start: int = 0) -> bytes:
    return b"".join(store.open(layer).chunks(start))


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@few
@given(FILES, st.data())
def test_a_layer_is_its_entries(files: list[Packed], data: st.DataObject) -> None:
    with somewhere() as cache:
        members = zipped(cache / "a.zip", [(str(n), file.content, file.level) for n, file in enumerate(files)])
        store = LayerStore(cache)
        layer = store.write(
            source(files, {file.path: members[str(n)] for n, file in enumerate(files)}, ""), Compression.GZIP
        )
        blob, tar = bytes_of(store, layer), b"".join(store.tar(layer))
        assert (sha256(blob), len(blob)) == (layer.blob.digest, layer.blob.size_bytes)
        assert gzip.decompress(blob) == tar
        assert sha256(tar) == layer.diff_id
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as opened:
            found = {
                member.name: (member.mode, reader.read())
                for member in opened
                if (reader := opened.extractfile(member)) is not None
            }
        assert found == {file.path: (file.mode, file.content) for file in files}
        plain = store.cached(source(files, {file.path: InMemory(b"") for file in files}, "").key, Compression.NONE)
        assert plain is not None
        for _ in range(3):
            start = data.draw(st.integers(0, len(blob)))
            assert bytes_of(store, layer, start) == blob[start:]
            start = data.draw(st.integers(0, len(tar)))
            assert bytes_of(store, plain, start) == tar[start:]


@few
@given(FILES)
@example([Packed("0", Content(524_289, 0), None, 0o644)])
def test_how_the_bytes_came_leaves_no_trace(files: list[Packed]) -> None:
    with somewhere() as cache:
        store = LayerStore(cache)
        members = zipped(cache / "a.zip", [(str(n), file.content, file.level) for n, file in enumerate(files)])
        for number, file in enumerate(files):
            (cache / str(number)).write_bytes(file.content)
        ways: list[dict[str, Data]] = [
            {file.path: members[str(n)] for n, file in enumerate(files)},
            {file.path: OnDisk(cache / str(n), len(file.content)) for n, file in enumerate(files)},
            {file.path: InMemory(file.content) for file in files},
        ]
        forms = [
            store.write(source(files, way, str(number)), compression)
            for number, way in enumerate(ways)
            for compression in Compression
        ]
        assert len({layer.diff_id for layer in forms}) == 1
        tars = {bytes_of(store, layer) for layer in forms if layer.blob.media_type.endswith("tar")}
        assert len(tars) == 1
        for layer in forms:
            if layer.blob.media_type.endswith("zstd"):
                assert zstd.decompress(bytes_of(store, layer)) in tars
        # Files of this machine are read in pieces, what was made here comes as a whole: the blob is the same.
        assert forms[3:6] == [replace(layer, created_by="a test") for layer in forms[6:9]]


def whole(cache: Path, member: ZipMember) -> Listed:
    return Listed((Entry("a", 0o644, data=member),))


@few
@given(st.integers(1, 4000), st.sampled_from([None, 1, 9]), st.data())
def test_a_byte_that_is_another_is_found(size: int, level: int | None, data: st.DataObject) -> None:
    content = NOISE[:size]
    with somewhere() as cache:
        member = zipped(cache / "a.zip", [("a", content, level)])["a"]
        raw = bytearray((cache / "a.zip").read_bytes())
        raw[member.offset + data.draw(st.integers(0, member.packed_bytes - 1))] ^= data.draw(st.integers(1, 255))
        (cache / "a.zip").write_bytes(raw)
        packed = bytes(raw[member.offset : member.offset + member.packed_bytes])
        if level is not None and unpacked(packed) == content:
            return  # a bit of the padding at the stream's end means nothing
        with pytest.raises(BadArchive, match=r"a\.zip"):
            LayerStore(cache).write(whole(cache, member), Compression.GZIP)
        assert not [path for path in cache.rglob("*") if path.is_file() and path.name != "a.zip"]


def unpacked(packed: bytes) -> bytes | None:
    inflate = zlib.decompressobj(-15)
    try:
        data = inflate.decompress(packed)
    except zlib.error:
        return None
    return data if inflate.eof and not inflate.unused_data else None


@few
@given(CONTENTS, LEVELS, st.sampled_from(["size_bytes", "packed_bytes", "crc32"]), st.sampled_from([-1, 1, 100]))
def test_a_directory_that_lies(content: Content, level: int | None, what: str, by: int) -> None:
    with somewhere() as cache:
        member = zipped(cache / "a.zip", [("a", bytes(content), level)])["a"]
        lying = replace(member, **{what: (getattr(member, what) + by) % 2**32})
        with pytest.raises(BadArchive):
            LayerStore(cache).write(whole(cache, lying), Compression.GZIP)


class Watch:
    """Sees every byte. seen: content by path, once it was correct."""

    def __init__(self) -> None:
        self.shown = 0
        self.seen: dict[str, bytes] = {}

    def __call__(self, entry: Entry) -> Sink:
        return Sink(self, entry.path)

    def found(self) -> tuple[()]:
        return ()


class Sink:
    def __init__(self, watch: Watch, path: str) -> None:
        self.watch, self.path = watch, path
        self.data = b""

    def write(self, data: bytes) -> None:
        assert len(data) <= 1 << 20
        self.data += data
        self.watch.shown += len(data)

    def close(self) -> None:
        self.watch.seen[self.path] = self.data


@few
@given(st.integers(1, 8), st.integers(0, 5000))
def test_a_bomb_is_stopped_at_the_size_that_its_directory_tells(megabytes: int, message: int) -> None:
    watch = Watch()
    with somewhere() as cache:
        member = zipped(cache / "a.zip", [("a", bytes(megabytes << 20), 9)])["a"]
        with pytest.raises(BadArchive, match="unpacks to more"):
            LayerStore(cache).write(whole(cache, replace(member, size_bytes=message)), Compression.GZIP, watch)
    assert watch.shown <= message and not watch.seen


@few
@given(FILES)
def test_a_watcher_sees_every_byte(files: list[Packed]) -> None:
    watch = Watch()
    with somewhere() as cache:
        members = zipped(cache / "a.zip", [(str(n), file.content, file.level) for n, file in enumerate(files)])
        listed = source(files, {file.path: members[str(n)] for n, file in enumerate(files)}, "")
        LayerStore(cache).write(listed, Compression.GZIP, watch)
    assert watch.seen == {file.path: file.content for file in files}
