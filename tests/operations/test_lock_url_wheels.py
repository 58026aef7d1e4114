"""Wheels that a spec names by their URL: fetched once, hashed, and refused where they are not what they should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import ecosystem
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import core_metadata, wheel
from tests.support.builders.zips import FILE, zipped
from tests.support.servers.faults import Body, Corrupt, Drop, Fault, Redirects, Stall, Status, Truncate
from tests.support.servers.index import IndexServer
from tests.support.user import SHORT_TIMEOUTS, User, a_second_later, refused

AS_OF = "2026-01-01T00:00:00Z"
KIT = "kit-2.0.0-py3-none-any.whl"
PATH = f"/files/kit/{KIT}"


@pytest.fixture
def index() -> Iterator[IndexServer]:
    liar = wheel("liar", "1.0.0", metadata=core_metadata("someone-else", "3.0.0"))
    with IndexServer([*ecosystem.extras(), File(liar, day("2024-01-01"))]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    user.wants(f"kit[fast] @ {index.file_url(KIT)}", as_of=AS_OF)
    return user


def test_it_is_fetched_once_and_hashed(user: User, index: IndexServer) -> None:
    assert f"offline, and {index.file_url(KIT)} is not in the cache" in refused(user.locks("--offline"), 5)
    user.locked()
    file = user.packages()["kit"]["file"]
    artifact = next(f.artifact for f in ecosystem.extras() if f.name == "kit")
    assert file == {
        "index": "url",
        "filename": KIT,
        "size_bytes": artifact.size_bytes,
        "sha256": artifact.sha256,
        "url": index.file_url(KIT),
    }
    assert len(index.requests_for(PATH)) == 1
    assert index.requests_for("/simple/kit/") == []
    # The hash that the spec has is another spec, and needs no other look at the file.
    index.forget()
    user.wants(f"kit[fast] @ {index.file_url(KIT)}#sha256={artifact.sha256}", as_of=AS_OF)
    assert user.locks("--offline").status == 0
    assert user.packages()["kit"]["file"] == file
    assert index.requests == []


def test_a_file_that_changed_is_seen_when_its_moment_moves(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    user.wants(f"kit @ {index.file_url(KIT)}")
    assert user.locks().status == 0
    before = user.packages()["kit"]["file"]["sha256"]
    rebuilt = wheel("kit", "2.0.0", requires=["core-lib"], files={"kit/other.py": b"# rebuilt\n"})
    index.remove("kit")
    index.add(File(rebuilt, day("2024-01-01")))
    user.wants(f"kit @ {index.file_url(KIT)}", "speedups")
    assert user.locks().status == 0
    assert user.packages()["kit"]["file"]["sha256"] == before
    a_second_later()
    assert user.locks("--upgrade").status == 0
    assert user.packages()["kit"]["file"]["sha256"] == rebuilt.sha256 != before


METADATA = "kit-2.0.0.dist-info/METADATA"
GOOD = core_metadata("kit", "2.0.0")


ZIP = zipped([(METADATA, GOOD, FILE)])


def encrypted() -> bytes:
    """The flag of encryption set in the directory and in the local header."""
    data = bytearray(ZIP)
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + place] |= 1
    return bytes(data)


NO_WHEELS = {
    "html": b"<html>please log in</html>",
    "no METADATA": zipped([("kit/__init__.py", b"", FILE)]),
    "two METADATA": zipped([(METADATA, GOOD, FILE), ("other-1.0.dist-info/METADATA", GOOD, FILE)]),
    "encrypted": encrypted(),
    "unknown method": ZIP.replace(b"\x08\x00", b"\x63\x00"),
    "cut short": ZIP[:-30],
    "empty zip": b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Status(500), f"{KIT}: HTTP 500"),
        (Status(403), f"{KIT}: HTTP 403"),
        (Drop(100), f"{KIT}: the response ended early"),
        (Stall(), f"{KIT}: the server stalled"),
        (Redirects(), f"{KIT}: redirects without an end"),
        (Truncate(300), f"{KIT} is no usable wheel"),
        (Truncate(0), f"{KIT} is no usable wheel"),
        *((Body(data), f"{KIT} is no usable wheel") for data in NO_WHEELS.values()),
    ],
    ids=["500", "403", "drop", "stall", "redirects", "cut-short", "empty", *NO_WHEELS],
)
def test_faults(user: User, index: IndexServer, fault: Fault, message: str) -> None:
    index.fail(PATH, fault)
    assert message in refused(user.locks(**SHORT_TIMEOUTS), 5)
    assert user.files() == {}
    # And nothing of it was remembered.
    index.heal()
    assert user.locks().status == 0


def test_a_corrupt_file_is_seen_by_the_hash_that_the_spec_demands(user: User, index: IndexServer) -> None:
    artifact = next(f.artifact for f in ecosystem.extras() if f.name == "kit")
    user.wants(f"kit @ {index.file_url(KIT)}#sha256={artifact.sha256}", as_of=AS_OF)
    index.fail(PATH, Corrupt())
    error = refused(user.locks(), 5)
    assert KIT in error and ("the spec has" in error or "no usable wheel" in error)


def test_a_wheel_of_someone_else_is_refused(tmp_path: Path, index: IndexServer) -> None:
    """Its file name says `liar`, its METADATA `someone-else`: by URL and from the index."""
    user = User(tmp_path, index.url)
    user.wants(f"liar @ {index.file_url('liar-1.0.0-py3-none-any.whl')}", as_of=AS_OF)
    error = refused(user.locks(), 5)
    assert "liar-1.0.0-py3-none-any.whl" in error and "someone-else" in error
    user.wants("liar", as_of=AS_OF)
    error = refused(user.locks(), 4)
    assert "liar" in error and "someone-else" in error
