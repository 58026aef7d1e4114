"""The layer store under fire: many at once, killed at any moment, on a full disk, with archives that go or change."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from envspec.image.layers.gzip import ArchiveMissing, BadArchive
from envspec.image.layers.store import LayerStore, UnknownLayer
from envspec.image.layers.threads import Cancelled
from envspec.image.layers.types import Compression, Entry, Layer, OnDisk
from envspec.io.cache import CacheError, DamagedCache
from envspec.models import GpuCodeFound, Library, WheelContent
from tests.support.builders.entries import Listed, file, folder, wheel_like
from tests.support.tries import tries

SEED: Final = 20261120
MOMENTS: Final = tries(50)
NOISE: Final = hashlib.shake_128(b"a library").digest(300_000)
FORK: Final = multiprocessing.get_context("fork")


def wheels(folder: Path, begun: Callable[[], object] = lambda: None) -> list[Listed]:
    """Four wheels in an archives folder, as the cache has them."""
    made = []
    for number in range(4):
        archive = folder / "archives" / str(number) / f"wheel-{number}.whl"
        archive.parent.mkdir(parents=True, exist_ok=True)
        files = [(f"lib/{part}.so", NOISE[part * 900 : 100_000] * 3, 6) for part in range(3)]
        files += [(f"lib/{part}.py", b"x = 1\n" * part * number, 9) for part in range(20)]
        listed = wheel_like(archive, files)
        made.append(Listed(listed.listed, listed.title, begun=begun))
    return made


def bytes_of(store: LayerStore, layer: Layer) -> bytes:
    return b"".join(store.open(layer).chunks())


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def kept(cache: Path) -> list[str]:
    """Names of the files in the store, the random part left out."""
    files = (path for path in (cache / "image-layers").rglob("*") if path.is_file())
    return sorted(".".join(part for part in path.name.split(".") if len(part) != 16) for path in files)


@pytest.fixture
def source(tmp_path: Path) -> Listed:
    return wheels(tmp_path)[0]


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path)


@pytest.mark.parametrize("compression", Compression)
def test_what_was_made_once_is_known(tmp_path: Path, compression: Compression) -> None:
    asked: list[int] = []
    source = wheels(tmp_path, lambda: asked.append(1))[3]
    store = LayerStore(tmp_path)
    assert store.cached(source.key, compression) is None
    layer = store.write(source, compression)
    assert digest(bytes_of(store, layer)) == layer.blob.digest
    assert digest(b"".join(store.tar(layer))) == layer.diff_id
    assert (layer.created_by, layer.blob.media_type) == (source.title, compression.media_type)
    again = LayerStore(tmp_path)
    assert again.cached(source.key, compression) == again.write(source, compression) == layer
    assert bytes_of(again, layer) == bytes_of(store, layer)
    assert len(asked) == 1


def test_one_recipe_serves_every_compression(tmp_path: Path) -> None:
    asked: list[int] = []
    source = wheels(tmp_path, lambda: asked.append(1))[3]
    store = LayerStore(tmp_path)
    by_gzip = store.write(source, Compression.GZIP)
    assert store.cached(source.key, Compression.ZSTD) is None
    plain = store.write(source, Compression.NONE)
    assert (plain.diff_id, plain.blob.digest) == (by_gzip.diff_id, by_gzip.diff_id)
    late = store.write(source, Compression.ZSTD)
    assert len(asked) == 1
    shutil.rmtree(tmp_path / "image-layers")
    assert store.write(source, Compression.ZSTD) == late
    assert kept(tmp_path) == ["4.json", "4.side", "4.zst", "4.zstd.json"]


def test_a_zstd_form_is_cancelled(tmp_path: Path, source: Listed, store: LayerStore) -> None:
    store.write(source, Compression.GZIP)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        store.write(source, Compression.ZSTD, cancel=cancel)
    assert kept(tmp_path) == ["4.json", "4.side"]


def test_processes_at_once_make_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()

    def begun() -> None:
        with log.open("a") as file:
            file.write("x")
        time.sleep(0.05)

    sources = wheels(tmp_path, begun)
    children = [FORK.Process(target=_make_all, args=(tmp_path, sources)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert log.read_text() == "x" * len(sources)


def _make_all(cache: Path, sources: list[Listed], compression: Compression = Compression.GZIP) -> None:
    store = LayerStore(cache)
    for source in sources:
        store.write(source, compression)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_killed_at_any_moment(tmp_path: Path, compression: Compression) -> None:
    sources = wheels(tmp_path)
    begin = time.monotonic()
    _make_all(tmp_path, sources, compression)
    longest_s = time.monotonic() - begin
    store = LayerStore(tmp_path)
    expected = [store.cached(source.key, compression) for source in sources]
    assert None not in expected
    blobs = [bytes_of(store, layer) for layer in expected if layer]
    moments = random.Random(SEED)
    outcomes = {"cut short": 0, "done": 0}
    for _ in range(MOMENTS):
        shutil.rmtree(tmp_path / "image-layers")
        child = FORK.Process(target=_make_all, args=(tmp_path, sources, compression))
        child.start()
        heads = moments.randint(0, len(sources))
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("image-layers/*/*/4.json"))) < heads:
            assert time.monotonic() < until, child.exitcode
        time.sleep(moments.uniform(0, longest_s / len(sources)))
        child.kill()
        child.join()
        store = LayerStore(tmp_path)
        found = [store.cached(source.key, compression) for source in sources]
        outcomes["cut short" if None in found else "done"] += 1
        for layer, whole, blob in zip(found, expected, blobs, strict=True):
            if layer is not None:
                assert layer == whole
                assert bytes_of(store, layer) == blob
        # The folder is free at once, and what the killed run left is gone after the next.
        assert [store.write(source, compression) for source in sources] == expected
        each = ["4.json", "4.side"] if compression is Compression.GZIP else ["4.json", "4.side", "4.zst", "4.zstd.json"]
        assert kept(tmp_path) == sorted(each * len(sources))
    assert all(outcomes.values()), outcomes


def _on_a_full_disk(cache: Path, source: Listed, compression: Compression, limit: int, message: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        LayerStore(cache).write(source, compression)
    except CacheError as fault:
        os.write(os.open(message, os.O_WRONLY), str(fault).encode()[:limit])
        os._exit(fault.exit_code)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_no_space_left(tmp_path: Path, compression: Compression) -> None:
    """The system's limit on a file's size stands for the disk's end; faults and places are the same."""
    contents = [file(f"opt/{number}", NOISE[number:200_000]) for number in range(3)]
    source = Listed((folder("opt"), *contents), "generated")
    expected = LayerStore(tmp_path / "whole").write(source, compression)
    message = tmp_path / "message"
    message.touch()
    for limit in (1000, 100_000, 300_000, expected.blob.size_bytes - 1):
        child = FORK.Process(target=_on_a_full_disk, args=(tmp_path / "cache", source, compression, limit, message))
        child.start()
        child.join()
        assert child.exitcode == 6
        assert message.read_text().startswith("no space left in envspec's cache, ")
        assert not kept(tmp_path / "cache")
    store = LayerStore(tmp_path / "cache")
    assert store.write(source, compression) == expected


def test_an_archive_that_has_gone(tmp_path: Path, source: Listed, store: LayerStore) -> None:
    layer, small = store.write(source, Compression.GZIP), store.write(source, Compression.ZSTD)
    archive = tmp_path / "archives/0/wheel-0.whl"
    whole = archive.read_bytes()
    blob, packed = bytes_of(store, layer), bytes_of(store, small)
    archive.unlink()
    # What it is stays known; a form that is a file of its own can still be read.
    assert store.cached(source.key, Compression.GZIP) == layer
    assert bytes_of(store, small) == packed
    with pytest.raises(ArchiveMissing) as gone:
        store.open(layer)
    assert (gone.value.archive, gone.value.exit_code) == (archive, 5)
    archive.write_bytes(whole[:-1])
    with pytest.raises(ArchiveMissing):
        store.tar(layer)
    archive.write_bytes(whole)
    assert bytes_of(store, layer) == blob
    archive.unlink()
    shutil.rmtree(tmp_path / "image-layers")
    with pytest.raises(ArchiveMissing):
        store.write(source, Compression.GZIP)


@pytest.mark.parametrize("what", ["archive", "side file", "table"])
@pytest.mark.parametrize("form", [Compression.GZIP, Compression.NONE])
def test_damage_is_found_when_it_is_read(
    tmp_path: Path, source: Listed, store: LayerStore, what: str, form: Compression
) -> None:
    layer = store.write(source, form)
    (side,) = (tmp_path / "image-layers").rglob("*.side")
    path = tmp_path / "archives/0/wheel-0.whl" if what == "archive" else side
    whole = path.read_bytes()
    at = {"archive": 50_000, "side file": 30, "table": len(whole) - 20}[what]
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DamagedCache, match="damaged in envspec's cache"):
        bytes_of(store, layer)
    assert store.cached(source.key, form) is None
    if what == "archive":
        with pytest.raises(BadArchive, match=r"wheel-0\.whl"):
            store.write(source, form)
        path.write_bytes(whole)
    assert digest(bytes_of(store, store.write(source, form))) == layer.blob.digest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"found": 1}'])
def test_a_head_that_is_broken_is_none(tmp_path: Path, source: Listed, store: LayerStore, content: bytes) -> None:
    layer = store.write(source, Compression.ZSTD)
    for head in (tmp_path / "image-layers").rglob("*.json"):
        head.write_bytes(content)
    assert store.cached(source.key, Compression.ZSTD) is None
    assert store.write(source, Compression.ZSTD) == layer
    assert kept(tmp_path) == ["4.json", "4.side", "4.zst", "4.zstd.json"]


def test_a_damaged_zstd_form_is_found_and_written_again(tmp_path: Path, source: Listed, store: LayerStore) -> None:
    layer = store.write(source, Compression.ZSTD)
    (form,) = (tmp_path / "image-layers").rglob("*.zst")
    packed = bytearray(form.read_bytes())
    packed[len(packed) // 2] ^= 1
    form.write_bytes(packed)
    with pytest.raises(DamagedCache, match="was damaged"):
        bytes_of(store, layer)
    assert store.cached(source.key, Compression.ZSTD) is None
    assert digest(bytes_of(store, store.write(source, Compression.ZSTD))) == layer.blob.digest


def test_what_a_watcher_found_is_kept(tmp_path: Path) -> None:
    content = WheelContent(GpuCodeFound(("sm_80", "sm_90"), ("compute_90",)), (Library("x.so", "", ("libc.so.6",)),))
    code = (("0" * 64, content),)

    class Watch:
        def __call__(self, entry: Entry) -> None:
            return None

        def found(self) -> tuple[tuple[str, WheelContent], ...]:
            return code

    source = wheels(tmp_path)[0]
    assert LayerStore(tmp_path).write(source, Compression.GZIP, Watch()).wheels == code
    known = LayerStore(tmp_path).cached(source.key, Compression.NONE)
    assert known is not None
    assert known.wheels == code


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.write_bytes(b"longer than it was")
    for message in (3, 300):
        source = Listed((file("a", NOISE), Entry("b", 0o644, data=OnDisk(changed, message))), "two files")
        with pytest.raises(BadArchive, match="it changed while it was read"):
            LayerStore(tmp_path).write(source, Compression.ZSTD)
        assert not kept(tmp_path)


def test_memory_does_not_grow_with_the_layer(tmp_path: Path) -> None:
    """200 MB of a wheel unpacked, in a process of its own whose memory is bounded."""
    source = wheel_like(tmp_path / "big.whl", [("lib.so", NOISE[:1000] * 200_000, 1)])

    def bounded() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        # Threads bring stacks and arenas: address space, not memory.
        resource.setrlimit(resource.RLIMIT_AS, (used + 160_000_000,) * 2)
        store = LayerStore(tmp_path)
        layer = store.write(source, Compression.NONE)
        assert sum(map(len, store.open(layer).chunks())) == layer.blob.size_bytes > 200_000_000

    child = FORK.Process(target=bounded)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_small_cache_that_was_moved(tmp_path: Path) -> None:
    """No second copy of the wheels is in it, and no path of this machine."""
    source = wheels(tmp_path / "old")[0]
    layer = LayerStore(tmp_path / "old").write(source, Compression.GZIP)
    files = [path for path in (tmp_path / "old/image-layers").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < layer.blob.size_bytes / 100
    (tmp_path / "old").rename(tmp_path / "new")
    store = LayerStore(tmp_path / "new")
    with pytest.raises(UnknownLayer):
        store.open(layer)
    assert store.cached(source.key, Compression.GZIP) == layer
    assert digest(bytes_of(store, layer)) == layer.blob.digest
