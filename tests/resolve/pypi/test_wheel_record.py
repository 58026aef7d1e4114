"""RECORD compared with the zip directory of its wheel, read by ranges."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.models import WrongRow
from envspec.resolve.pypi.index.file_metadata import BadRemoteWheel, WheelRecord, read_metadata, read_record
from tests.resolve.pypi.test_remote_wheel_properties import Server
from tests.support.builders.wheels import padding
from tests.support.builders.zips import patched, record_digest

INFO = "tiny-1.0.dist-info"
LARGE = 20 << 20


def wheel_of(files: Mapping[str, bytes], record: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A wheel with its dist-info last."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{INFO}/METADATA", "Name: tiny\n")
        archive.writestr(f"{INFO}/RECORD", record)
    return buffer.getvalue()


def row(path: str, content: bytes, size: int | str) -> str:
    return f"{path},{record_digest(content)},{size}\n"


def rest() -> str:
    return row(f"{INFO}/METADATA", b"Name: tiny\n", 11) + f"{INFO}/RECORD,,\n"


def record_of(data: bytes) -> WheelRecord:
    return asyncio.run(read_record(Server(data).read))


def wrong(path: str, content: bytes) -> WrongRow:
    return WrongRow(path, hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("content", [b"", b"some", bytes(LARGE), padding(LARGE)], ids=["empty", "small", "0", "large"])
def test_a_hash_is_that_of_the_content(content: bytes, method: int) -> None:
    data = wheel_of({"tiny.so": content}, row("tiny.so", b"other", 5) + rest(), method)
    assert record_of(data).wrong == (wrong("tiny.so", content),)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (row("tiny.py", b"x = 1", 5), ()),
        (row("./tiny.py", b"x = 1", 5), ()),
        (row("tiny.py", b"x = 1", ""), ()),
        # Wrong sizes beside right hashes change nothing; and a directory does not show a wrong hash.
        (row("tiny.py", b"x = 1", 6), ()),
        (row("tiny.py", b"x = 2", 5), ()),
        (row("tiny.py", b"x = 20", 6), (wrong("tiny.py", b"x = 1"),)),
        ("tiny.py,,\n", (wrong("tiny.py", b"x = 1"),)),
        ("tiny.py,md5=eHg,5\n", (wrong("tiny.py", b"x = 1"),)),
        ("", (wrong("tiny.py", b"x = 1"),)),
        (row("tiny.py", b"x = 1", 5) + row("old.py", b"", 0), (WrongRow("old.py"),)),
        (row("tiny.py", b"x = 1", 5) + "x.pyc,,\n../../../bin/x,,\n/x,,\n", ()),
    ],
)
def test_rows_that_contradict_the_directory(listed: str, expected: tuple[WrongRow, ...]) -> None:
    others = {"tiny/": b"", "tiny.pyc": b"1", "tiny-1.0.data/scripts/tiny": b"#!python\n"}
    data = wheel_of({"tiny.py": b"x = 1", **others}, listed + rest())
    assert record_of(data).wrong == expected


_Time = tuple[int, int, int, int, int, int]
RECORDED = (2026, 5, 25, 6, 24, 54)
LATER = (2026, 5, 25, 6, 24, 56)


@pytest.mark.parametrize(
    ("recorded", "changed", "count", "is_found"),
    [
        (RECORDED, LATER, 1, True),
        (RECORDED, LATER, 20, True),
        (RECORDED, LATER, 21, False),
        (RECORDED, RECORDED, 1, False),
        (RECORDED, (2026, 5, 24, 23, 59, 58), 1, False),
        # Times that some build tools write.
        ((2016, 1, 1, 0, 0, 0), RECORDED, 1, False),
        ((1980, 1, 1, 0, 0, 0), RECORDED, 1, False),
    ],
)
def test_a_file_that_was_changed_later_is_hashed(recorded: _Time, changed: _Time, count: int, is_found: bool) -> None:
    names = [f"tiny{number:02}.so" for number in range(count)]
    rows = "".join(row(name, b"x = 1", 5) for name in names)
    members = {**dict.fromkeys(names, b"x = 2"), "right.so": b"x = 1", f"{INFO}/METADATA": b"Name: tiny\n"}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in members.items():
            archive.writestr(zipfile.ZipInfo(path, changed if path in names else recorded), content)
        archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD", recorded), rows + row("right.so", b"x = 1", 5) + rest())
    found = record_of(buffer.getvalue()).wrong
    assert found == (tuple(wrong(name, b"x = 2") for name in names) if is_found else ())


def test_of_many_such_files_none_is_read() -> None:
    files = {f"tiny/{number}.py": b"" for number in range(101)}
    server = Server(wheel_of({"large": padding(100_000), **files}, rest()))
    assert asyncio.run(read_record(server.read)).wrong == ()
    assert len(server.asked) == 1


def test_what_needs_another_request_is_left_to_a_later_one() -> None:
    content = padding(100_000)
    data = wheel_of(
        {"tiny.so": content, "more": content}, row("tiny.so", b"", 0) + row("more", content, 10**5) + rest()
    )
    server = Server(data)
    assert asyncio.run(read_metadata(server.read))[2] is None
    assert len(server.asked) == 1
    assert record_of(data).wrong == (wrong("tiny.so", content),)


@pytest.mark.parametrize(("offset", "form"), [(16, "<I"), (20, "<I"), (24, "<I"), (42, "<I"), (10, "<H")])
@pytest.mark.parametrize("value", [0, 3, 9, 60_000])
def test_a_file_that_is_not_as_its_directory_says_has_no_hash(offset: int, form: str, value: int) -> None:
    """Of its CRC, its sizes, its offset and its compression."""
    data = wheel_of({"tiny.so": b"content"}, row("tiny.so", b"", 1) + rest())
    broken = patched(data, b"PK\1\2", 0, offset, form, value)
    if broken != data:
        with pytest.raises(BadRemoteWheel):
            record_of(broken)


USUAL = ["a.py", "a/b.so", "a/c.so", "d", "e.txt"]
ODD = ["a", "a/", "./a.py", "e//f", "a.pyc", "x.data/scripts/a", "\xfc", "\ufffd"]
CHANGES = ["", "size", "left out", "only listed", "later"]
ODD_CHANGES = ["", "hash", "md5", "none", "twice"]
MEMBERS = st.lists(st.tuples(st.sampled_from(USUAL), st.sampled_from(CHANGES)), max_size=4)
ODD_MEMBERS = st.lists(st.tuples(st.sampled_from(USUAL + ODD), st.sampled_from(CHANGES + ODD_CHANGES)), max_size=4)


@given(MEMBERS | ODD_MEMBERS, st.booleans(), st.sampled_from(["\n", "\r\n"]))
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_both_ways_to_compare_agree(members: list[tuple[str, str]], has_time: bool, end: str) -> None:
    """A quote in RECORD, which changes nothing, keeps it from the fast reader."""
    time = RECORDED if has_time else (2026, 5, 25, 0, 0, 0)
    rows = ""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, change in members:
            content = path.encode()
            if change != "only listed":
                archive.writestr(zipfile.ZipInfo(path, LATER if change == "later" else time), content)
            # A wrong size beside a right hash changes nothing.
            wrong_hash = record_digest(b"other")
            digests = {**dict.fromkeys(["hash", "size", "later"], wrong_hash), "md5": "md5=aa", "none": ""}
            listed = f"{path},{digests.get(change, record_digest(content))},{len(content) + (change == 'size')}{end}"
            if not path.endswith("/"):
                rows += {"left out": "", "twice": 2 * listed}.get(change, listed)
        archive.writestr(zipfile.ZipInfo(f"{INFO}/METADATA", time), "Name: tiny\n")
    found = []
    for own in (f"{INFO}/RECORD,,", f'"{INFO}/RECORD",,'):
        whole = io.BytesIO(buffer.getvalue())
        with zipfile.ZipFile(whole, "a") as archive:
            record = rows + row(f"{INFO}/METADATA", b"Name: tiny\n", 11) + own + end
            archive.writestr(zipfile.ZipInfo(f"{INFO}/RECORD", time), record)
        found.append(record_of(whole.getvalue()).wrong)
    assert found[0] == found[1]
