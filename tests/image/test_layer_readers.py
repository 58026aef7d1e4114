"""Layers as other programs read them: the real engine and skopeo, every name, kind and compression that they take."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from docker import DockerClient

from envspec.image.config import canonical, image_of
from envspec.image.layers.store import LayerStore
from envspec.image.layers.tar import EPOCH_S
from envspec.image.layers.types import Compression, Entry, EntryKind, Image, InMemory, Layer
from envspec.image.outputs import files_of, tar_of
from envspec.models import Platform
from tests.support.builders.entries import Listed, file, folders_of, zipped
from tests.support.machines.engine import created, removed

pytestmark = pytest.mark.engine

NOISE = hashlib.shake_128(b"a library").digest(100_000)
DEEP = "/".join(["opt/env", *["a-folder-with-a-name-of-forty-letters-okay"] * 3])
DEEPER = "/".join(["opt/env", *["a-folder-with-a-name-of-forty-letters-okay"] * 8])
CONTENTS = {
    "opt/env/lib/spliced.so": NOISE * 3,
    "opt/env/lib/stored.bin": NOISE[:5000],
    "opt/env/lib/empty.py": b"",
    "opt/env/lib/größe-\u6570\u636e.txt": b"names",
    f"{DEEP}/file.py": b"ustar's prefix",
    f"{DEEPER}/file.py": b"pax",
}
SETUID = Entry("opt/env/setuid", 0o4755, data=InMemory(b"#!/bin/sh\n"), uid=1000, gid=1000)
SYMLINK = Entry("opt/env/link", 0o777, EntryKind.SYMLINK, target="lib/spliced.so")
HARDLINK = Entry("opt/env/same", 0o644, EntryKind.HARDLINK, target="opt/env/lib/stored.bin")


def source(cache: Path, run: str) -> Listed:
    """run: of its content, so that no engine has the layer already."""
    levels = {"opt/env/lib/stored.bin": None}
    members = zipped(cache / "a.whl", [(path, data, levels.get(path, 6)) for path, data in CONTENTS.items()])
    entries = [Entry(path, 0o644, data=member) for path, member in members.items()]
    extra = file("opt/env/run", run.encode())
    return Listed((*folders_of(CONTENTS), *entries, SETUID, SYMLINK, HARDLINK, extra), "a layer")


def image(layer: Layer) -> Image:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/none"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created_by": layer.created_by}],
    }
    return image_of(Platform.LINUX_64, canonical(config), (layer,), {})


def check(tar: tarfile.TarFile) -> None:
    """Everything came out as it went in. Engines add folders of their own."""
    for path, content in CONTENTS.items():
        member = tar.getmember(path)
        reader = tar.extractfile(member)
        assert reader is not None
        assert reader.read() == content
        # Docker's export has the file's type in the mode.
        assert (member.mode & 0o7777, member.uid, member.gid, member.mtime) == (0o644, 0, 0, EPOCH_S)
    assert (tar.getmember(DEEPER).isdir(), tar.getmember(DEEPER).mode & 0o7777) == (True, 0o755)
    setuid = tar.getmember(SETUID.path)
    assert (setuid.mode & 0o7777, setuid.uid, setuid.gid) == (0o4755, 1000, 1000)
    assert tar.getmember(SYMLINK.path).linkname == SYMLINK.target
    # Whoever packs a folder again may name either of the two as the link.
    same = tar.extractfile(HARDLINK.path)
    assert same is not None
    assert same.read() == CONTENTS["opt/env/lib/stored.bin"]


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.NONE])
def test_the_engine_unpacks_it(tmp_path: Path, engine: DockerClient, compression: Compression) -> None:
    """Docker 20.10 refuses zstd (moby#40866)."""
    store = LayerStore(tmp_path)
    layer = store.write(source(tmp_path, os.urandom(8).hex()), compression)
    made = image(layer)
    with removed(engine, made.id):
        chunks = tar_of(files_of([made], None, []), lambda _: store.open(layer), lambda _: None)
        engine.images.load(b"".join(chunks))
        assert engine.images.get(made.id).id == made.id
        with created(engine, made.id) as container:
            # The SDK's types have it as text.
            exported = b"".join(cast("Iterator[bytes]", container.export()))
    with tarfile.open(fileobj=io.BytesIO(exported)) as tar:
        check(tar)
