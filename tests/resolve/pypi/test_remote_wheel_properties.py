"""METADATA read by ranges is what zipfile reads from the whole wheel, or the wheel is refused."""

from __future__ import annotations

import asyncio
import io
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.resolve.pypi.index.file_metadata import (
    TAIL_BYTES,
    BadRemoteWheel,
    FilePart,
    read_member,
    read_metadata,
)
from tests.support.builders.zips import patched

PATH = "tiny-1.0.dist-info/METADATA"


@dataclass
class Server:
    """Serves parts of one file, and keeps what is requested."""

    data: bytes
    asked: list[tuple[int | None, int]] = field(default_factory=list)

    async def read(self, start: int | None, end: int) -> FilePart:
        self.asked.append((start, end))
        if start is None:
            start, end = max(0, len(self.data) - end), len(self.data)
        assert 0 <= start < end <= len(self.data) or not self.data, (start, end, len(self.data))
        return FilePart(start, len(self.data), self.data[start:end])


def read(data: bytes) -> tuple[bytes, Server]:
    server = Server(data)
    body, total, _ = asyncio.run(read_metadata(server.read))
    assert total == len(data)
    return body, server


@st.composite
def wheels(draw: st.DrawFn) -> bytes:
    """Zips of every kind that build tools write: METADATA first or last, packed or not, in zip64, with a comment."""
    compression = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    metadata = draw(st.binary(min_size=1, max_size=2000)) * draw(st.integers(1, 30))
    others = draw(st.lists(st.sampled_from(["tiny/a.py", "tiny/METADATA", "x/tiny-1.0.dist-info/METADATA", "z.bin"])))
    sizes = st.sampled_from([0, 10, 3000, TAIL_BYTES, 3 * TAIL_BYTES])
    content = {path: bytes(draw(sizes)) for path in dict.fromkeys(others)}
    names = draw(st.permutations([*content, PATH]))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            member = zipfile.ZipInfo(name)
            # Blanks that do not shrink: large wheels stay large.
            member.compress_type = compression if name == PATH else zipfile.ZIP_STORED
            member.extra = draw(st.sampled_from([b"", b"\xfe\xca\x00\x00", b"\xfe\xca\x00\x08" + bytes(2048)]))
            with archive.open(member, "w", force_zip64=draw(st.booleans())) as file:
                file.write(metadata if name == PATH else content[name])
        archive.comment = draw(st.sampled_from([b"", b"built by hand", b"PK\x01\x02 " * 100]))
    return buffer.getvalue()


def metadata_of(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(PATH)


@given(wheels())
def test_the_same_as_zipfile(data: bytes) -> None:
    body, server = read(data)
    assert body == metadata_of(data)
    assert len(server.asked) <= 4
    if len(data) <= TAIL_BYTES:
        assert len(server.asked) == 1


@given(wheels(), st.data())
def test_damaged_wheels_are_refused_or_right(data: bytes, draw: st.DataObject) -> None:
    broken = bytearray(data[: draw.draw(st.integers(0, len(data)))] if draw.draw(st.booleans()) else data)
    near_end = st.integers(max(0, len(broken) - 400), max(0, len(broken) - 1))
    for place in draw.draw(st.lists(near_end, max_size=4)):
        if place < len(broken):
            broken[place] = draw.draw(st.integers(0, 255))
    with suppress(BadRemoteWheel):
        assert read(bytes(broken))[0] == metadata_of(data)


@given(wheels(), st.integers(-5, 5), st.integers(0, 5))
def test_a_server_that_answers_other_bytes(data: bytes, shift: int, less: int) -> None:
    async def shifted(start: int | None, end: int) -> FilePart:
        if start is None:
            start, end = max(0, len(data) - end), len(data)
        elif shift or less:
            start, end = max(0, start + shift), max(0, end + shift - less)
        return FilePart(start, len(data), data[start:end])

    with suppress(BadRemoteWheel):
        assert asyncio.run(read_metadata(shifted))[0] == metadata_of(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no end of a zip"),
        (b"<html>not found</html>", "no end of a zip"),
        (b"PK\x05\x06" + bytes(18), "0 METADATA files"),
        (b"PK\x05\x06" + b"\xff" * 18, "has an offset beyond its end"),
        (b"PK\x06\x07" + b"\xff" * 16 + b"PK\x05\x06" + b"\xff" * 18, "has an offset beyond its end"),
    ],
)
def test_what_is_no_wheel(data: bytes, message: str) -> None:
    with pytest.raises(BadRemoteWheel, match=message):
        read(data)


def zipped(*files: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (zipped((PATH, b""), compression=zipfile.ZIP_STORED), "METADATA is empty"),
        (zipped((PATH, b"a"), ("other-1.0.dist-info/METADATA", b"b")), "2 METADATA files"),
        (zipped((PATH, b"a" * 100), compression=zipfile.ZIP_BZIP2), "has compression method"),
        (zipped((PATH, b"a" * 100), compression=zipfile.ZIP_LZMA), "has compression method"),
    ],
)
def test_a_wheel_that_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadRemoteWheel, match=message):
        read(data)


def test_what_unpacks_to_more_than_it_says_is_refused() -> None:
    data = zipped((PATH, bytes(10_000_000)))
    size = (10_000_000).to_bytes(4, "little")
    lying = data.replace(size, (100).to_bytes(4, "little"))
    assert lying != data
    with pytest.raises(BadRemoteWheel, match="does not match its checksum"):
        read(lying)
    with pytest.raises(BadRemoteWheel, match="larger than"):
        read(data.replace(size, (0xFFFFFFF0).to_bytes(4, "little")))


def member_of(data: bytes, most_bytes: int = 100) -> bytes:
    return asyncio.run(read_member(Server(data).read, {"space/__init__.py"}, most_bytes))


@given(wheels())
def test_a_file_by_its_path(data: bytes) -> None:
    assert asyncio.run(read_member(Server(data).read, {PATH}, 100_000)) == metadata_of(data)


@pytest.mark.parametrize(
    "data",
    [
        zipped(("space/__init__.py", bytes(101))),
        zipped(("space/__init__.py", b"1"), ("spice/__init__.py", b"2")).replace(b"spice", b"space"),
        zipped(("other/space/__init__.py", b"1")),
        # It states another size than it has, another checksum, or that it is encrypted.
        patched(zipped(("space/__init__.py", bytes(1000))), b"PK\x01\x02", 0, 24, "<I", 100),
        patched(zipped(("space/__init__.py", b"1")), b"PK\x01\x02", 0, 16, "<I", 1),
        patched(zipped(("space/__init__.py", b"1")), b"PK\x01\x02", 0, 8, "<H", 1),
        patched(zipped(("space/__init__.py", b"1")), b"PK\x01\x02", 0, 42, "<I", 1 << 30),
        b"no zip",
    ],
)
def test_a_file_that_is_too_large_or_not_one_is_not_read(data: bytes) -> None:
    with pytest.raises(BadRemoteWheel):
        member_of(data)
