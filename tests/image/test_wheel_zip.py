"""Zips of wheels: what is refused, with which words, and that the rest is read as it is."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from envspec.image.layers.types import ZipMember, ZipMethod
from envspec.image.layers.wheel_zip import BadWheel, read_member, unpack_member, wheel_members
from tests.support.builders.zips import FILE, PROGRAM, SYMLINK, patched, zipped

_DIRECTORY = b"PK\1\2"
_LOCAL = b"PK\3\4"
_ONE = [("a.py", b"a = 1\n" * 99, FILE)]
_TWO = [*_ONE, ("b.py", b"b = 2\n" * 99, FILE)]


def _path(folder: Path, data: bytes) -> Path:
    path = folder / "thing-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


def _same_place() -> bytes:
    """Two entries of the directory for one stream."""
    data = zipped([("a.py", b"a" * 99, FILE), ("b.py", b"a" * 99, FILE)])
    return patched(data, _DIRECTORY, 1, 42, "<I", 0)


def _overlapping() -> bytes:
    """A first file whose packed bytes reach over the second one's header."""
    data = zipped(_TWO, zipfile.ZIP_STORED)
    for signature, offset in ((_DIRECTORY, 20), (_DIRECTORY, 24), (_LOCAL, 18), (_LOCAL, 22)):
        data = patched(data, signature, 0, offset, "<I", 99 * 6 + 40)
    return data


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


def _other_size(size: int) -> bytes:
    data = patched(zipped(_ONE), _DIRECTORY, 0, 24, "<I", size)
    return patched(data, _LOCAL, 0, 22, "<I", size)


def _bomb() -> bytes:
    return zipped([("zeros", bytes(100 << 20), FILE)])


def _bzip2() -> bytes:
    return zipped(_ONE, zipfile.ZIP_BZIP2)


_REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a parent folder": (lambda: zipped([("a/../../b.py", b"", FILE)]), "'a/../../b.py' would be put outside"),
    "an absolute path": (lambda: zipped([("/etc/passwd", b"", FILE)]), "'/etc/passwd' would be put outside"),
    "a drive": (lambda: zipped([("c:/b.py", b"", FILE)]), "would be put outside"),
    "a backslash": (lambda: zipped([("..\\b.py", b"", FILE)]), "would be put outside"),
    "a symlink out": (lambda: zipped([("a/b", b"../../c", SYMLINK)]), r"symlink out of .*'../../c'"),
    "a symlink to the root": (lambda: zipped([("a/b", b"/etc/passwd", SYMLINK)]), "symlink out of"),
    "a long symlink": (lambda: zipped([("a/b", b"c" * 5000, SYMLINK)]), "symlink of 5000 bytes"),
    "twice": (lambda: zipped([*_ONE, *_ONE]), "'a.py' is in it twice"),
    "twice in two spellings": (lambda: zipped([*_ONE, (".//a.py", b"", FILE)]), "'.//a.py' is in it twice"),
    "a file that is a folder": (lambda: zipped([("a", b"", FILE), ("a/b", b"", FILE)]), "'a' is a file and a folder"),
    "encrypted": (lambda: patched(zipped(_ONE), _DIRECTORY, 0, 8, "<H", 1), "'a.py' is encrypted"),
    "another method": (_bzip2, "packed by method 12"),
    "one place for two": (_same_place, "the header of 'b.py' and the zip's directory disagree"),
    "overlapping": (_overlapping, "'a.py' overlaps what follows it"),
    "a header in another's extra field": (_quoting, "'a.py' overlaps what follows it"),
    "more than deflate can": (lambda: _other_size(1 << 30), f"'a.py' can't have {1 << 30} bytes"),
    "other size here and there": (
        lambda: patched(zipped(_ONE), _DIRECTORY, 0, 24, "<I", 600),
        "the header of 'a.py' and the zip's directory disagree",
    ),
    "another name here and there": (
        lambda: zipped(_ONE).replace(b"a.py", b"x.py", 1),
        "the header of 'a.py' and the zip's directory disagree",
    ),
    "no header": (lambda: patched(zipped(_ONE), _LOCAL, 0, 0, "<I", 7), "no header at the offset"),
    "a bomb": (_bomb, "a zip bomb: .* that unpack to 104857600"),
    "no zip": (lambda: b"not a zip", "not a readable zip"),
    "half a zip": (lambda: zipped(_ONE)[:-30], "not a readable zip"),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_what_must_not_be_unpacked_is_refused(case: str, tmp_path: Path) -> None:
    data, message = _REFUSED[case]
    with pytest.raises(BadWheel, match=message) as caught:
        wheel_members(_path(tmp_path, data()))
    assert caught.value.message.startswith("thing-1.0-py3-none-any.whl: ")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_other_size(700), "594|differs from the zip's directory"),
        (_other_size(500), "differs from the zip's directory"),
    ],
)
def test_a_size_that_is_not_the_stream_s_is_found_while_unpacking(data: bytes, message: str, tmp_path: Path) -> None:
    (member,) = wheel_members(_path(tmp_path, data))
    with pytest.raises(BadWheel, match=message):
        read_member(member.data)


def test_a_checksum_that_is_not_the_stream_s_is_found_while_unpacking(tmp_path: Path) -> None:
    data = patched(patched(zipped(_ONE), _DIRECTORY, 0, 16, "<I", 7), _LOCAL, 0, 14, "<I", 7)
    (member,) = wheel_members(_path(tmp_path, data))
    with pytest.raises(BadWheel, match=r"differs from the zip.s directory"):
        read_member(member.data)


def test_a_stream_that_is_no_deflate_is_told_in_words(tmp_path: Path) -> None:
    data = zipped(_ONE)
    at = data.index(b"a.py") + 4
    (member,) = wheel_members(_path(tmp_path, data[:at] + b"\xff\xff\xff" + data[at + 3 :]))
    with pytest.raises(BadWheel, match="be unpacked"):
        read_member(member.data)


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
    told = found["a/b.py"].data
    assert (told.packed_bytes, told.size_bytes, told.crc32, told.method) == (
        info.compress_size,
        len(content),
        info.CRC,
        ZipMethod.DEFLATED,
    )
    packed = data[told.offset : told.offset + told.packed_bytes]
    assert zlib.decompress(packed, -15) == content
    assert read_member(told) == content
    assert max(map(len, unpack_member(told))) <= 1 << 20


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
