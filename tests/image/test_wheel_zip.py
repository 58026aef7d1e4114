"""Zips of wheels: what is refused, with which words, and that the rest is read as it is."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import pytest

from envspec.image.layers.types import ZipMember, ZipMethod
from envspec.image.layers.wheel_zip import BadWheel, read_member, unpack_member, wheel_members
from tests.support.builders.zips import FILE, PROGRAM, SYMLINK, patched, zipped

_DIRECTORY = b"PK\1\2"
_LOCAL = b"PK\3\4"
_ONE = [("a.py", b"a = 1\n" * 99, FILE)]


def _path(folder: Path, data: bytes) -> Path:
    path = folder / "thing-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


def _quoting() -> bytes:
    """A first file whose header tells of an extra field that is the second one's header: both have one stream."""

    second = zipped([("b.py", b"b" * 99, FILE)])
    both = zipped([("a.py", b"b" * 99, FILE), ("b.py", b"b" * 99, FILE)])
    packed = second.index(_DIRECTORY) - 34
    # The first member's data goes, and its extra field reaches over the header that now comes right after its name.
    quoted = both[:34] + both[34 + packed :]
    quoted = patched(quoted, _LOCAL, 0, 28, "<H", 34)
    quoted = patched(quoted, _DIRECTORY, 1, 42, "<I", 34)

    return patched(quoted, b"PK\5\6", 0, 16, "<I", quoted.index(_DIRECTORY))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zipped([("a/b", b"c" * 5000, SYMLINK)]), "symlink of 5000 bytes"),
        (_quoting(), "'a.py' overlaps what follows it"),
        (patched(zipped(_ONE), _LOCAL, 0, 0, "<I", 7), "no header at the offset"),
    ],
    ids=["a long symlink", "a header in another's extra field", "no header"],
)
def test_a_wheel_that_must_not_be_unpacked(data: bytes, message: str, tmp_path: Path) -> None:
    """More cases: `tests/security/test_hostile_wheels.py`."""
    with pytest.raises(BadWheel, match=message) as caught:
        wheel_members(_path(tmp_path, data))
    assert caught.value.message.startswith("thing-1.0-py3-none-any.whl: ") and caught.value.exit_code == 5


def test_members_are_told_as_they_lie_in_the_archive(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    data = zipped(
        [("folder/", b"", FILE), ("a/b.py", content, FILE), ("bin/run", b"#!", PROGRAM), ("l", b"a/b.py", SYMLINK)]
    )
    path = _path(tmp_path, data)
    found = {member.path: member for member in wheel_members(path)}
    assert list(found) == ["a/b.py", "bin/run", "l"]
    assert [member.is_executable for member in found.values()] == [False, True, False]
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("a/b.py")
    text = found["a/b.py"].data
    assert (text.packed_bytes, text.size_bytes, text.crc32, text.method) == (
        info.compress_size,
        len(content),
        info.CRC,
        ZipMethod.DEFLATED,
    )
    packed = data[text.offset : text.offset + text.packed_bytes]
    assert zlib.decompress(packed, -15) == content
    assert read_member(text) == content
    assert max(map(len, unpack_member(text))) <= 1 << 20


def test_headers_written_to_a_pipe_are_read(tmp_path: Path) -> None:
    """Sizes stand behind the data then, and zeros in the local header."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", b"a = 1\n" * 50)
        archive.writestr("b.py", b"b = 2\n" * 50)
    path = _path(tmp_path, pipe.getvalue())
    assert [read_member(member.data) for member in wheel_members(path)] == [b"a = 1\n" * 50, b"b = 2\n" * 50]


def test_a_file_that_ends_early_is_found_while_unpacking(tmp_path: Path) -> None:
    path = _path(tmp_path, b"abc")
    with pytest.raises(BadWheel, match="differs from the zip's directory"):
        read_member(ZipMember(path, 1, 10, 10, 0, ZipMethod.STORED))
