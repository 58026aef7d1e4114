"""What is read of a layer's tar: any compression, the kinds of entries, and layers that were made to do harm."""

from __future__ import annotations

import gzip
import io
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import convert, to_builtins

from envspec.image.layers.contents import FILE, LINK, BadLayer, Kept, LayerContents, Pattern, merged, read_layer, text
from envspec.io.cache import JsonCache
from tests.support.builders.base_packages import Link, layer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PATTERNS = (
    Pattern(re.compile(r"(?:[^/]+/)*METADATA"), text),
    Pattern(re.compile(r"(?:[^/]+/)*(?:lib|bin)"), None, folders=True),
)
BLOB = layer({"a/METADATA": b"Name: a\n", "lib": Link("usr/lib"), "big": bytes(3 << 20), "b/METADATA": b"x" * 5000})


def read(blob: bytes, step: int = 1 << 16, size: int | None = None) -> LayerContents:
    pieces = (blob[at : at + step] for at in range(0, len(blob), step))
    return read_layer(pieces, len(blob) if size is None else size, PATTERNS)


PACKED = {
    "plain": BLOB,
    "gzip": gzip.compress(BLOB),
    "members": gzip.compress(BLOB[:700]) + gzip.compress(BLOB[700:]),
    "zstd": zstd.compress(BLOB),
    "frames": zstd.compress(BLOB[:700]) + zstd.compress(BLOB[700:]),
}


@pytest.mark.parametrize("step", [1000, 1 << 24])
@pytest.mark.parametrize("form", PACKED)
def test_every_compression(form: str, step: int) -> None:
    found = read(PACKED[form], step)
    assert found.entries == {
        "a/METADATA": Kept(FILE, "Name: a\n"),
        "lib": Kept(LINK, "usr/lib"),
        "b/METADATA": Kept(FILE, "x" * 5000),
    }
    assert convert(to_builtins(found), LayerContents) == found


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_what_ends_early(form: str) -> None:
    with pytest.raises(BadLayer, match="ended before"):
        read(PACKED[form][:-20])


@pytest.mark.parametrize(
    "damaged", ["{}", '{"entries": {}}', '{"entries": {"lib": []}, "removed": [], "emptied": []}', "[]"]
)
def test_what_was_damaged_counts_as_missing(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(damaged)
    assert JsonCache(tmp_path).read_as("key", LayerContents) is None


def bombs() -> Iterator[tuple[str, bytes, str]]:
    yield "zeros", gzip.compress(bytes(80 << 20)), "which is a bomb"
    header = tarfile.TarInfo("a/METADATA")
    header.size = 40 << 20
    yield "metadata", gzip.compress(header.tobuf() + bytes(header.size), 1), "it has more than"
    header.type = tarfile.XHDTYPE
    yield "pax", header.tobuf(), "are accepted"
    header.type = tarfile.GNUTYPE_LONGNAME
    yield "long name", header.tobuf(), "are accepted"
    negative = bytearray(tarfile.TarInfo("other").tobuf())
    negative[124:136] = b"\xff" * 10 + b"\xec\x00"
    negative[148:156] = b"%06o\0 " % (256 + sum(negative[:148]) + sum(negative[156:512]))
    yield "negative size", bytes(negative) + bytes(2048), "negative size"
    yield "garbage", b"\x1f\x8b" + b"\xff" * 500, "."


@pytest.mark.parametrize(("blob", "expected"), [pytest.param(b, e, id=name) for name, b, e in bombs()])
def test_hostile_layers(blob: bytes, expected: str) -> None:
    with pytest.raises(BadLayer, match=expected):
        read(blob)


def test_odd_names() -> None:
    """A name leads nowhere: nothing is written. What can't be printed is no package."""
    members = {"../../a/METADATA": b"1", "/b/METADATA": b"2", "c\x1b[2J/METADATA": b"3", "d/./METADATA": b"4"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert read(buffer.getvalue()).entries.keys() == {"a/METADATA", "b/METADATA", "d/METADATA"}


def test_layers_hide_what_is_below() -> None:
    files = dict.fromkeys(("x/1/METADATA", "x/2/METADATA", "y/METADATA"), Kept(FILE))
    below = LayerContents({**files, "lib": Kept(LINK, "z")}, [], [])
    assert merged([below, LayerContents({}, ["x/1"], [])]).keys() == {"x/2/METADATA", "y/METADATA", "lib"}
    assert merged([below, LayerContents({}, [], ["x"])]).keys() == {"y/METADATA", "lib"}
    # A whiteout is about lower layers, not its own.
    own = LayerContents({"x/1/METADATA": Kept(FILE, "new")}, ["x/1"], [])
    assert merged([below, own])["x/1/METADATA"] == Kept(FILE, "new")
    # A file in the place of a folder.
    assert merged([below, LayerContents({"x": Kept(FILE)}, [], [])]).keys() == {"x", "y/METADATA", "lib"}


def test_whiteouts_of_a_layer() -> None:
    found = read(layer({"a/.wh.old": b"", "b/.wh..wh..opq": b"", ".wh.top": b""}))
    assert (found.removed, found.emptied) == (["a/old", "top"], ["b"])
