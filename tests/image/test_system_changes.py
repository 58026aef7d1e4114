"""What an installation has changed, read from its container's tar: pure but for the folder that it is kept in."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

from envspec.image.layers.types import Entry, EntryKind, InMemory, ZipMember, ZipMethod
from envspec.image.sources.system import (
    BadChange,
    SystemSource,
    read_changes,
    read_entries,
    write_entries,
)
from envspec.image.sources.system_container import tar_files

Row = tuple[str, bytes, str | bytes]


def _member(path: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type, member.linkname, member.mode = kind, target, mode
    return member


@dataclass(slots=True)
class Given:
    """A container's output. idle: folders that are there for what is below them alone."""

    idle: Sequence[str] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    others: Sequence[tarfile.TarInfo] = ()
    gone: Sequence[str] = ()

    def stream(self) -> io.BytesIO:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in self.idle:
                tar.addfile(_member(f"/{path}", tarfile.DIRTYPE, mode=0o755))
            for path, content in self.files.items():
                member = _member(f"/{path}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            for member in self.others:
                tar.addfile(member)
        changed = [*self.files, *(member.name.strip("/") for member in self.others)]
        texts = {
            "layer.tar": layer.getvalue(),
            "changed": "".join(f"/{path}\0" for path in changed).encode(),
            "gone": "".join(f"/{path}\0" for path in self.gone).encode(),
            "packages.before": b"base=1\n",
            "packages.after": b"base=1\ngcc=12\n",
            "undated": b"https://packages.example.com/corp\n",
        }
        outer = io.BytesIO()
        with tarfile.open(fileobj=outer, mode="w") as tar:
            for name, content in texts.items():
                member = tarfile.TarInfo(f"out/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        outer.seek(0)
        return outer


def _kept(given: Given, folder: Path) -> tuple[SystemSource, list[str]]:
    warnings: list[str] = []
    folder.mkdir()
    changes, packages, undated = read_changes(tar_files(given.stream()), folder, warnings.append)
    assert (packages, undated) == (("gcc=12",), ("https://packages.example.com/corp",))
    return SystemSource(folder, write_entries(folder, changes, "apt: gcc"), ("gcc",)), warnings


def _content(entry: Entry) -> bytes:
    """As the layer's maker reads it: from the archive, at the offset that the entry names."""
    if isinstance(entry.data, InMemory):
        return entry.data.content
    assert isinstance(entry.data, ZipMember)
    with entry.data.archive.open("rb") as file:
        file.seek(entry.data.offset)
        packed = file.read(entry.data.packed_bytes)
    assert entry.data.method is ZipMethod.DEFLATED
    content = zlib.decompress(packed, -15)
    assert (len(content), zlib.crc32(content)) == (entry.data.size_bytes, entry.data.crc32)
    return content


def test_contents_come_back_as_they_were(tmp_path: Path) -> None:
    noise = random.Random(4).randbytes(3 << 20)
    files = {"usr/bin/gcc": noise, "usr/share/empty": b"", "usr/share/ü name": b"text\n" * 1000}
    source, warnings = _kept(Given(("usr", "usr/bin", "usr/share"), files), tmp_path / "kept")
    entries = {entry.path: entry for entry in source.entries()}
    assert {path: _content(entry) for path, entry in entries.items() if entry.kind is EntryKind.FILE} == files
    assert not warnings
    listed = {change.path: change.sha256 for change in read_entries(source.folder)}
    assert listed["usr/bin/gcc"] == hashlib.sha256(noise).hexdigest()


def test_entries_are_in_order_with_the_folders_above_them(tmp_path: Path) -> None:
    files = {"usr/share/a/b": b"1", "usr/share/a-b": b"2", "usr/share/a": b""}
    files.pop("usr/share/a")
    source, _ = _kept(Given(("usr", "usr/share", "usr/share/a"), files), tmp_path / "kept")
    paths = [entry.path for entry in source.entries()]
    assert paths == ["usr", "usr/share", "usr/share/a", "usr/share/a/b", "usr/share/a-b"]
    for place, path in enumerate(paths):
        assert {str(above) for above in PurePosixPath(path).parents} - {"."} <= set(paths[:place])


def test_modes_and_owners_are_the_containers(tmp_path: Path) -> None:
    member = _member("/usr/bin/agent", mode=0o2755)
    member.gid = 101
    source, _ = _kept(Given(("usr", "usr/bin"), {}, [member]), tmp_path / "kept")
    entry = list(source.entries())[-1]
    assert (entry.mode, entry.uid, entry.gid) == (0o2755, 0, 101)


def test_of_one_file_with_many_names_the_first_has_the_content(tmp_path: Path) -> None:
    links = [_member("/b/a", tarfile.LNKTYPE, "/b/m"), _member("/b/z", tarfile.LNKTYPE, "/b/m")]
    source, _ = _kept(Given(("b",), {"b/m": b"once"}, links), tmp_path / "kept")
    entries = {entry.path: entry for entry in source.entries()}
    assert _content(entries["b/a"]) == b"once"
    assert entries["b/a"].target == ""
    assert [(entries[path].kind, entries[path].target) for path in ("b/m", "b/z")] == [(EntryKind.HARDLINK, "b/a")] * 2


def test_a_link_to_a_file_that_stays_out_is_an_error(tmp_path: Path) -> None:
    links = [_member("/usr/x", tarfile.LNKTYPE, "/tmp/x")]
    with pytest.raises(BadChange, match="/usr/x is the same file as /tmp/x") as caught:
        _kept(Given(("tmp", "usr"), {"tmp/x": b"1"}, links), tmp_path / "kept")
    assert caught.value.exit_code == 4


def test_what_is_gone_is_marked_once_and_where_its_folder_still_is(tmp_path: Path) -> None:
    gone = ["usr/old", "usr/old/a", "usr/old/a/b", "etc/x", "tmp/x", "var/log/x"]
    given = Given(("usr", "etc"), {"usr/new": b"1"}, gone=gone)
    source, _ = _kept(given, tmp_path / "kept")
    entries = {entry.path: entry for entry in source.entries()}
    marks = {path for path in entries if ".wh." in path}
    assert marks == {"usr/.wh.old", "etc/.wh.x"}
    assert all(_content(entries[path]) == b"" for path in marks)
    assert "etc" in entries


def test_folders_that_are_only_above_what_is_left_out_are_left_out(tmp_path: Path) -> None:
    given = Given(("tmp", "root", "usr"), {"tmp/x": b"1", "root/.x": b"2", "usr/x": b"3"})
    source, _ = _kept(given, tmp_path / "kept")
    assert [entry.path for entry in source.entries()] == ["usr", "usr/x"]


def test_what_a_layer_cannot_hold_is_told(tmp_path: Path) -> None:
    capable = _member("/usr/ping")
    capable.pax_headers = {"SCHILY.xattr.security.capability": "x"}
    pipe = _member("/usr/pipe", tarfile.FIFOTYPE)
    source, warnings = _kept(Given(("usr",), {}, [capable, pipe]), tmp_path / "kept")
    assert [entry.path for entry in source.entries()] == ["usr", "usr/ping"]
    assert ["security.capability" in warnings[0], "/usr/pipe is excluded: a device or a pipe" in warnings[1]] == [
        True,
        True,
    ]


def test_the_key_is_that_of_the_list_and_not_of_the_moment(tmp_path: Path) -> None:
    first, _ = _kept(Given(("usr",), {"usr/a": b"1", "usr/b": b"2"}), tmp_path / "first")
    again, _ = _kept(Given(("usr",), {"usr/b": b"2", "usr/a": b"1"}), tmp_path / "again")
    other, _ = _kept(Given(("usr",), {"usr/a": b"1", "usr/b": b"3", "usr/c": b""}), tmp_path / "other")
    assert first.key == again.key != other.key


def test_an_output_that_is_not_whole_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadChange, match=r"returned no changed, gone, packages\.after, packages\.before"):
        empty = io.BytesIO()
        with tarfile.open(fileobj=empty, mode="w"):
            pass
        empty.seek(0)
        read_changes(tar_files(empty), tmp_path, lambda _: None)
