"""What goes to a registry, whatever breaks off; and what a registry may say of where an upload goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from envspec.io.http_settings import is_loopback
from envspec.io.http_types import Response
from envspec.registry.auth import RepositoryAccess
from envspec.registry.errors import RegistryError
from envspec.registry.push import UploadStream, next_location, read_ahead, received_bytes
from envspec.registry.reference import endpoint_of, parse
from envspec.registry.types import Descriptor

BODY = bytes(range(256)) * 8


@dataclass(frozen=True)
class Cut:
    """A blob in pieces of given sizes, again and again."""

    sizes: tuple[int, ...]
    body: bytes = BODY

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor("", "sha256:", len(BODY))

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        while start < len(self.body):
            for size in self.sizes:
                yield self.body[start : start + size]
                start += size


ranges = st.tuples(st.integers(0, len(BODY)), st.integers(0, len(BODY))).map(lambda pair: (min(pair), max(pair)))


@settings(deadline=None)  # threads of a busy machine
@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=4).map(tuple),
    st.lists(st.tuples(ranges, st.integers(0, 5)), max_size=6),
)
def test_what_is_taken_is_what_was_asked_for(sizes: tuple[int, ...], takes: list[tuple[tuple[int, int], int]]) -> None:
    """Each request may stop reading after some pieces; the next one begins anywhere."""

    async def run() -> None:
        blob = Cut(sizes)
        cursor = UploadStream(blob.descriptor, partial(read_ahead, blob))
        for (start, end), timeouts in takes:
            got, left = bytearray(), timeouts
            async with aclosing(cursor.read(start, end)) as pieces:
                async for piece in pieces:
                    got += piece
                    left -= 1
                    if left == 0:
                        break
            assert got == BODY[start:end][: len(got)]
            assert left == 0 or len(got) == end - start
        await cursor.close()

    asyncio.run(run())


def test_a_read_that_was_broken_off_is_begun_anew() -> None:
    """Broken off while it waits for bytes, the stream has ended; what comes next begins where that one stood."""

    async def slow(start: int) -> AsyncGenerator[bytes, None]:
        yield BODY[start : start + 100]
        await asyncio.sleep(waits.pop() if waits else 0)
        yield BODY[start + 100 :]

    async def run() -> None:
        cursor = UploadStream(Cut((1,)).descriptor, slow)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(whole(cursor, 0), 0.05)
        assert await whole(cursor, 100) == BODY[100:]
        await cursor.close()

    waits = [60.0]
    asyncio.run(run())


async def whole(cursor: UploadStream, start: int) -> bytes:
    async with aclosing(cursor.read(start, len(BODY))) as pieces:
        return b"".join([bytes(piece) async for piece in pieces])


def says(**headers: str) -> Response:
    given_ = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response("https://registry.corp/v2/a/blobs/uploads/", 202, CIMultiDictProxy(CIMultiDict(given_)), b"")


PLACE = RepositoryAccess(endpoint_of(parse("registry.corp/a/b")))


@given(st.text(max_size=60) | st.from_regex(r"(https?:)?//[\[\]:@./a-z0-9%?#-]{0,30}", fullmatch=True))
def test_an_upload_goes_on_over_tls_or_not_at_all(location: str) -> None:
    try:
        target = next_location(says(Location=location), PLACE)
    except RegistryError:
        return
    parts = urlsplit(target)
    assert parts.hostname
    assert parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/v2/a/blobs/uploads/1?state=x%3D", "https://registry.corp/v2/a/blobs/uploads/1?state=x%3D"),
        ("1", "https://registry.corp/v2/a/blobs/uploads/1"),
        ("https://store.corp/put?sig=a%2Fb", "https://store.corp/put?sig=a%2Fb"),
    ],
)
def test_locations(location: str, target: str) -> None:
    assert next_location(says(Location=location), PLACE) == target


@pytest.mark.parametrize(
    ("header", "held"),
    [("0-9", 10), ("bytes=0-9", 10), ("0-0", 0), ("", None), ("5-9", None), ("0--1", None), ("0-1e9", None)],
)
def test_how_much_a_registry_has(header: str, held: int | None) -> None:
    assert received_bytes(says(Range=header)) == held
