"""The digest of what a wheel installs comes into the lock from the wheel's end, or not at all: no wheel is fetched."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from envspec.verifier.record import wheel_sha256
from tests.conftest import Serve
from tests.support.builders.projects import MIRROR, Dialect, File, MetadataFiles, Ranges, Sizes, day
from tests.support.builders.wheels import Artifact, padding, sdist, wheel
from tests.support.builders.zips import member, zipped
from tests.support.machines.confinement import confined
from tests.support.servers.faults import Answer, Body, Fault, Status, Truncate, Wire
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import User

BIG: Final = 2_000_000
AS_OF: Final = "2025-01-01T00:00:00Z"


def big(version: str = "1.0.0") -> Artifact:
    return wheel("big", version, files={"big/__init__.py": b"", "big/data.bin": padding(BIG)})


SMALL: Final = wheel("small-one", "1.0.0")


def contents(artifact: Artifact) -> str | None:
    return wheel_sha256(member(artifact.data, ".dist-info/RECORD"))


def locked(user: User) -> dict[str, str | None]:
    return {name: package.get("record_sha256") for name, package in user.packages().items()}


def user_of(folder: Path, index: IndexServer, *words: str) -> User:
    user = User(folder, index.url)
    user.wants("big", "small-one", *words, as_of=AS_OF)
    return user


@pytest.mark.parametrize(
    ("dialect", "most"),
    [
        pytest.param(FRIENDLY, 2, id="PEP 658"),
        pytest.param(Dialect(sizes=Sizes.HIDDEN), 2, id="no sizes"),
        pytest.param(Dialect(ranges=Ranges.NO_SUFFIX_416), 2, id="no suffix ranges"),
        pytest.param(Dialect(sizes=Sizes.HIDDEN, ranges=Ranges.NO_SUFFIX_501), 3, id="no suffix ranges, no sizes"),
        pytest.param(Dialect(metadata=MetadataFiles.NONE), 1, id="METADATA by ranges, RECORD with it"),
        pytest.param(MIRROR, 1, id="mirror"),
        pytest.param(Dialect(metadata=MetadataFiles.NONE, ranges=Ranges.IGNORED), 1, id="fetched for its METADATA"),
    ],
)
def test_it_comes_from_the_end(tmp_path: Path, serve: Serve, dialect: Dialect, most: int) -> None:
    index = serve([File(big()), File(SMALL)], dialect)
    user = user_of(tmp_path, index)
    ran = user.locked()
    assert locked(user) == {"big": contents(big()), "small-one": contents(SMALL)}
    assert ran.warnings == []
    path = index.file_path(big().filename)
    gets = [request for request in index.requests_for(path) if request.method == "GET"]
    assert len(gets) <= most
    assert index.sent_bytes(path) < 100_000 or (dialect.ranges is Ranges.IGNORED and index.fetched_twice() == [])


def test_it_is_found_once(tmp_path: Path, serve: Serve) -> None:
    """Another lock of the same wheel takes it from the cache."""
    index = serve([File(big()), File(SMALL), File(wheel("third", "1.0.0"))])
    user_of(tmp_path, index).locked()
    index.forget()
    user_of(tmp_path, index, "third").locked()
    assert index.requests_for(index.file_path(big().filename)) == []


def test_a_server_without_ranges_is_not_made_to_send_wheels(tmp_path: Path, serve: Serve) -> None:
    others = [wheel(f"big-{number}", "1.0.0", files={"a.bin": padding(BIG, number)}) for number in range(6)]
    index = serve([File(big()), File(SMALL), *map(File, others)], Dialect(ranges=Ranges.IGNORED))
    user = user_of(tmp_path, index, *(each.name for each in others))
    ran = user.locked()
    assert locked(user) == {"big": None, "small-one": contents(SMALL), **dict.fromkeys(each.name for each in others)}
    (warning,) = ran.warnings
    assert "big-0-1.0.0" in warning.replace("_", "-") or "big-1.0.0" in warning
    assert "its server supports no ranges" in warning and "and 6 more" in warning
    again = user.locks()
    assert (again.status, again.stdout) == (0, "")


@dataclass(frozen=True)
class Later:
    """The honest answer, once something else was requested and answered."""

    happened: Callable[[], object]

    def play(self, wire: Wire) -> Answer:
        until = time.monotonic() + 5
        while not self.happened() and time.monotonic() < until:
            wire.stopping.wait(0.005)
        wire.stopping.wait(0.2)
        return wire.honest()


@pytest.mark.parametrize("sizes", Sizes)
def test_small_wheels_of_such_a_server_are_read_in_any_order(tmp_path: Path, serve: Serve, sizes: Sizes) -> None:
    index = serve([File(big()), File(SMALL)], Dialect(ranges=Ranges.IGNORED, sizes=sizes))
    record = index.file_path(big().filename)
    index.fail(index.file_path(SMALL.filename) + ".metadata", Later(lambda: index.requests_for(record)), times=1)
    user = user_of(tmp_path, index)
    user.locked()
    assert locked(user) == {"big": None, "small-one": contents(SMALL)}
    assert index.requests_for(record) != []


@dataclass(frozen=True)
class InPieces:
    """The honest answer, each piece counted when the connection has taken it: a body that nobody reads is not sent."""

    piece_bytes: int = 1 << 16

    def play(self, wire: Wire) -> None:
        answer = wire.honest()
        wire.start(answer.status, {**answer.headers, "Content-Length": str(len(answer.body))})
        for start in range(0, len(answer.body), self.piece_bytes):
            wire.write(answer.body[start : start + self.piece_bytes])


def test_no_more_is_sent_than_a_connection_holds(tmp_path: Path, serve: Serve) -> None:
    size = 60_000_000
    huge = wheel("big", "1.0.0", files={"big/data.bin": bytes(size)})
    index = serve([File(huge), File(SMALL)], Dialect(ranges=Ranges.IGNORED))
    path = index.file_path(huge.filename)
    index.fail(path, InPieces())
    user = user_of(tmp_path, index)
    assert user.locks().status == 0
    assert locked(user) == {"big": None, "small-one": contents(SMALL)}
    assert [request.range != "" for request in index.requests_for(path)] == [True]
    assert index.sent_bytes(path) < size / 4


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Status(503), "503"),
        (Body(b"<html><body>Log in</body></html>", "text/html"), "no end of a zip directory"),
        (Truncate(200), "zip directory"),
        (Truncate(0), "zip directory"),
    ],
    ids=["503", "login", "cut", "empty"],
)
def test_a_server_that_fails_is_requested_again_by_another_run(
    tmp_path: Path, serve: Serve, fault: Fault, message: str
) -> None:
    index = serve([File(big()), File(SMALL)])
    user = user_of(tmp_path, index)
    index.fail(index.file_path(big().filename), fault)
    ran = user.locked()
    assert locked(user) == {"big": None, "small-one": contents(SMALL)}
    assert any("big-1.0.0" in text and message in text for text in ran.warnings)
    index.heal()
    assert user.locks("--upgrade").status == 0
    assert locked(user) == {"big": contents(big()), "small-one": contents(SMALL)}


def test_without_any_digest_a_lock_is_not_done(tmp_path: Path, serve: Serve) -> None:
    index = serve([File(big()), File(SMALL)])
    user = user_of(tmp_path, index)
    for each in (big(), SMALL):
        index.fail(index.file_path(each.filename), Status(503))
    user.locked()
    assert locked(user) == {"big": None, "small-one": None}
    index.heal()
    assert user.locks().status == 0
    assert locked(user) == {"big": contents(big()), "small-one": contents(SMALL)}


@pytest.mark.parametrize(
    "record",
    [b'"never closed\n', b"a,b\n", b"small_one/__init__.py,md5=abcd,0\n", b"\xff,sha256=abcd,0\n"],
    ids=["no CSV", "two columns", "MD5", "no UTF-8"],
)
def test_a_record_that_tells_nothing(tmp_path: Path, serve: Serve, record: bytes) -> None:
    info = "small_one-1.0.0.dist-info"
    files = [(f"{info}/{name}", member(SMALL.data, f"/{name}"), 0o644) for name in ("METADATA", "WHEEL")]
    files.append(("small_one/__init__.py", b"", 0o644))
    broken = Artifact(
        "small-one", "1.0.0", SMALL.filename, zipped([*files, (f"{info}/RECORD", record, 0o644)]), SMALL.metadata
    )
    index = serve([File(big()), File(broken)])
    user = user_of(tmp_path, index)
    ran = user.locked()
    assert locked(user) == {"big": contents(big()), "small-one": None}
    (warning,) = ran.warnings
    assert "small_one-1.0.0" in warning
    index.forget()
    user.wants("big", "small-one==1.0.0", as_of=AS_OF)
    assert user.locks().status == 0
    assert index.requests_for(index.file_path(SMALL.filename)) == []


@confined
def test_a_wheel_by_url_and_an_sdist(tmp_path: Path, serve: Serve) -> None:
    source = sdist("sourced", "1.0.0", metadata_version="2.2")
    index = serve([File(big()), File(SMALL), File(source, day("2024-01-01"))])
    user = User(tmp_path, index.url)
    url = index.file_url(big().filename)
    user.wants(f"big @ {url}", "small-one", "sourced", as_of=AS_OF, pip='build.packages = ["sourced"]')
    ran = user.locked()
    found = locked(user)
    assert found.pop("sourced") == user.packages()["sourced"]["record_sha256"]
    assert found == {"big": contents(big()), "small-one": contents(SMALL)}
    assert ran.warnings == []


def test_what_is_to_be_tested_is_in_the_lock_and_checked(tmp_path: Path, serve: Serve) -> None:
    user = User(tmp_path, serve([File(SMALL)]).url)
    user.wants("small-one", as_of=AS_OF, rest='[conformance]\nchecks = ["device", "lock"]\nworld_size = 2\n')
    assert user.locks().status == 0
    assert user.document()["conformance"] == {"checks": ["device", "lock"], "world_size": 2}
    checked = user.runs("lock", "--check", user.spec.name)
    assert (checked.status, checked.stdout, checked.stderr) == (0, "", "locks/small: up to date\n")
    user.wants("small-one", as_of=AS_OF, rest='[conformance]\nchecks = ["device", "lock"]\nworld_size = "all"\n')
    assert user.runs("lock", "--check", user.spec.name).status == 3
    assert user.locks().status == 0
    assert user.document()["conformance"] == {"checks": ["device", "lock"], "world_size": "all"}
