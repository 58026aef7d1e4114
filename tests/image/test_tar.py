"""The tar that layers are: read by Python's reader and by the system's own, refused where it would not be sound."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from envspec.image.layers.tar import END, EPOCH_S, BadEntry, EntryCheck, header, padding
from envspec.image.layers.types import Entry, EntryKind, InMemory, OnDisk
from tests.support.builders.entries import file, folder


def written(*entries: Entry) -> bytes:
    parts = []
    for entry in entries:
        parts.append(header(entry))
        if isinstance(entry.data, InMemory):
            parts += [entry.data.content, padding(len(entry.data.content))]
    return b"".join(parts) + END


def read(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as opened:
        return opened.getmembers()


LONG = "/".join(["opt/env", *["folder-of-forty-letters-that-is-a-long-one"] * 2, "file.py"])
TOO_LONG = "/".join(["opt/env", *["folder-of-forty-letters-that-is-a-long-one"] * 7, "file.py"])


@pytest.mark.parametrize(
    ("path", "blocks"),
    [
        ("opt", 1),
        ("a" * 100, 1),
        ("a" * 101, 3),
        (f"{'a' * 155}/{'b' * 100}", 1),
        (f"{'a' * 156}/{'b' * 100}", 3),
        (f"{'a' * 100}/{'b' * 101}", 3),
        (LONG, 1),
        (TOO_LONG, 3),
        ("opt/env/größe", 3),
        ("opt/env/\u6570\u636e", 3),
        ("opt/a line's end\n in it", 1),
        (f"opt/\u00e4\n{'x' * 900}", 4),
    ],
)
@pytest.mark.parametrize("kind", [EntryKind.FILE, EntryKind.FOLDER])
def test_names(path: str, blocks: int, kind: EntryKind) -> None:
    entry = file(path, b"some") if kind is EntryKind.FILE else folder(path)
    (member,) = read(written(entry))
    assert member.name == path
    assert (member.isfile(), member.isdir()) == (kind is EntryKind.FILE, kind is EntryKind.FOLDER)
    # A folder's name has a slash at its end, which may be one letter too many.
    if kind is EntryKind.FILE:
        assert len(header(entry)) == blocks * 512


def test_a_pax_record_counts_its_own_length() -> None:
    for length in range(80, 130):
        path = f"ä{'x' * length}"
        assert [member.name for member in read(written(file(path, b"")))] == [path]


def test_what_a_header_says() -> None:
    entry = Entry("opt/env/bin/python", 0o4755, data=InMemory(b"#!"), uid=1000, gid=2000)
    (member,) = read(written(entry))
    assert (member.mode, member.uid, member.gid, member.size) == (0o4755, 1000, 2000, 2)
    assert (member.uname, member.gname, member.mtime, member.type) == ("", "", EPOCH_S, tarfile.REGTYPE)
    assert member.offset_data == 512


def test_links() -> None:
    target = "../" * 50 + "größe"
    members = read(
        written(
            file("a", b"1"),
            Entry("b", 0o644, EntryKind.HARDLINK, target="a"),
            Entry("c", 0o600, EntryKind.SYMLINK, target="/usr/bin/python3.11"),
            Entry("d", 0o777, EntryKind.SYMLINK, target=target),
        )
    )
    assert [(member.name, member.linkname) for member in members] == [
        ("a", ""),
        ("b", "a"),
        ("c", "/usr/bin/python3.11"),
        ("d", target),
    ]
    assert [member.type for member in members[1:]] == [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE]
    assert {member.mode for member in members[2:]} == {0o777}


@pytest.mark.parametrize("size", [8 * 2**30 - 1, 8 * 2**30, 40 * 2**30])
def test_sizes_of_many_gigabytes(size: int) -> None:
    entry = Entry("big", 0o644, data=OnDisk(Path("big"), size))
    data = header(entry)
    assert len(data) == (512 if size < 8 * 2**30 else 3 * 512)
    assert tarfile.TarInfo.frombuf(data[:512], "utf-8", "strict").type == (b"0" if size < 8 * 2**30 else b"x")
    with tarfile.open(fileobj=io.BytesIO(data + END), mode="r:") as opened:
        member = opened.next()
    assert member is not None
    assert member.size == size


def test_owners_with_high_numbers() -> None:
    (member,) = read(written(Entry("a", 0o644, data=InMemory(b""), uid=2**31, gid=2**21)))
    assert (member.uid, member.gid) == (2**31, 2**21)


def test_the_systems_own_tar_reads_it(tmp_path: Path) -> None:
    program = shutil.which("tar")
    if program is None:
        pytest.skip("not run: this system has no tar")
    files = {LONG: b"long", TOO_LONG: b"too long", "opt/größe": b"x" * 1000}
    (tmp_path / "layer.tar").write_bytes(written(*(file(path, content) for path, content in files.items())))
    subprocess.run([program, "-xf", "layer.tar"], cwd=tmp_path, check=True)
    for path, content in files.items():
        assert (tmp_path / path).read_bytes() == content
        assert (tmp_path / path).stat().st_mtime == EPOCH_S


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([file("a", b""), file("a", b"")], "is a duplicate"),
        ([folder("a"), file("a", b"")], "is a duplicate"),
        ([file("a/b", b"")], "comes before its folder"),
        ([file("a", b""), file("a/b", b"")], "comes before its folder"),
        ([folder("a"), file("a/../b", b"")], "comes before its folder"),
        ([folder("..")], "is not a path below the root"),
        ([file("/etc", b"")], "is not a path below the root"),
        ([folder("a/")], "is not a path below the root"),
        ([file("", b"")], "is not a path below the root"),
        ([file("a\0b", b"")], "is not a path below the root"),
        ([Entry("a", 0o777, EntryKind.SYMLINK, target="b\0")], "is not a path below the root"),
        ([Entry("a", 0o644)], "is a file without data"),
        ([Entry("a", 0o755, EntryKind.FOLDER, InMemory(b""))], "is a folder with data"),
    ],
)
def test_listings_that_are_refused(entries: list[Entry], why: str) -> None:
    listing = EntryCheck("numpy 2.2.6")
    for entry in entries[:-1]:
        listing.add(entry)
    with pytest.raises(BadEntry) as refused:
        listing.add(entries[-1])
    assert refused.value.message == f"internal error: layer `numpy 2.2.6`: {entries[-1].path!r} {why}"


def test_a_name_that_is_not_utf8() -> None:
    with pytest.raises(BadEntry, match="not UTF-8"):
        header(file("opt/\udcff", b""))
