"""What conda archives hold, read from a real channel: in a folder, on a server, behind a password or a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envspec.facts.tables import conda_names
from envspec.io.store import Store
from envspec.models import CondaPackage, Provided
from envspec.resolve.conda.pypi_names import PypiNames, archive_reader, provided_in, with_provided
from envspec.resolve.types import Channel
from tests.support.builders.conda_archive import CondaArchive, Form, archive, distribution
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Body, Fault, Stall, Status, Truncate

TOOLS = archive("corp-tools", "1.0", distribution("Corp.Toolbox", "1.0.post1"), depends=["python"], python="noarch")
OLD = archive(
    "old-tools", "2.0", distribution("old-tools", "2.0"), depends=["python"], python="noarch", form=Form.TAR_BZ2
)
HELD = {"corp-tools": (Provided("corp-toolbox", "1.0.post1"),), "old-tools": (Provided("old-tools", "2.0"),)}
#: One attempt, and an end to waiting soon.
BRIEF = {"ENVSPEC_HTTP_ATTEMPTS": "1", "ENVSPEC_HTTP_TOTAL_S": "1.5"}
FORMS = pytest.mark.parametrize("held", [TOOLS, OLD], ids=lambda held: held.form.name)


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", [TOOLS, OLD])


@pytest.fixture
def server(forge: CondaChannel) -> Iterator[CondaServer]:
    with CondaServer({"forge": forge}) as running:
        yield running


def locked(held: CondaArchive, channel: str) -> CondaPackage:
    url = f"{channel}/{held.subdir}/{held.filename}"
    release = held.name, held.version, held.build, 0, "forge"
    return CondaPackage(*release, held.subdir, held.filename, url, held.sha256, depends=("python",), noarch="python")


def read(
    held: CondaArchive, url: str, address: str | None = None, *, offline: bool = False
) -> Sequence[Provided] | None:
    """What the archive of a channel at `url` provides; None where it can't be read."""
    other = Channel("other", "https://other.example", "https://other.example")
    channels = [other, Channel("forge", url, address or url)]

    async def once() -> bytes | None:
        return await archive_reader(channels, BRIEF, offline=offline)(locked(held, url))

    paths = asyncio.run(once())
    return None if paths is None else provided_in(paths)


@FORMS
def test_from_a_server_and_from_a_folder(forge: CondaChannel, server: CondaServer, held: CondaArchive) -> None:
    assert read(held, server.channel_url("forge")) == HELD[held.name]
    assert read(held, forge.url) == HELD[held.name]
    assert read(held, forge.url, offline=True) == HELD[held.name]


@FORMS
def test_offline_no_server_is_contacted(server: CondaServer, held: CondaArchive) -> None:
    assert read(held, server.channel_url("forge"), offline=True) is None
    assert server.requests == []


def test_credentials_go_along(forge: CondaChannel) -> None:
    with CondaServer({"forge": forge}, credentials=("us er", "p@ss")) as server:
        url = server.channel_url("forge")
        assert read(TOOLS, url) is None
        assert read(TOOLS, url, url.replace("://", "://us%20er:p%40ss@")) == HELD[TOOLS.name]
    with CondaServer({"forge": forge}, prefix="/t/SECRET") as server:
        address = server.channel_url("forge")
        assert "/t/SECRET" in address
        assert read(TOOLS, address.replace("/t/SECRET", ""), address) == HELD[TOOLS.name]


@FORMS
@pytest.mark.parametrize(
    "fault", [Status(404), Status(500), Body(b"no archive"), Truncate(200)], ids=lambda fault: type(fault).__name__
)
def test_an_archive_that_cannot_be_read(server: CondaServer, held: CondaArchive, fault: Fault) -> None:
    server.fail(server.path(held), fault)
    assert read(held, server.channel_url("forge")) is None


def test_no_server_no_answer_and_no_archive(tmp_path: Path, server: CondaServer) -> None:
    server.fail(server.path(TOOLS), Stall())
    assert read(TOOLS, server.channel_url("forge")) is None
    assert read(TOOLS, "http://127.0.0.1:9/forge") is None
    assert read(TOOLS, tmp_path.as_uri()) is None


def test_what_archives_contain_is_read_once(tmp_path: Path, server: CondaServer) -> None:
    url = server.channel_url("forge")
    packages = [locked(held, url) for held in (TOOLS, OLD)]

    def once() -> tuple[tuple[CondaPackage, ...], tuple[CondaPackage, ...]]:
        store = Store(tmp_path)
        try:
            reader = archive_reader([Channel("forge", url, url)], {}, offline=False)
            return asyncio.run(with_provided(packages, PypiNames({}, conda_names(), store), reader))
        finally:
            store.close()

    filled, unmapped = once()
    assert unmapped == ()
    assert [package.provides for package in filled] == list(HELD.values())
    asked = len(server.requests)
    assert asked > 0
    assert once() == (filled, ())
    assert len(server.requests) == asked


def test_platforms_share_one_reading(server: CondaServer) -> None:
    url = server.channel_url("forge")

    async def both() -> list[bytes | None]:
        reader = archive_reader([Channel("forge", url, url)], {}, offline=False)
        return await asyncio.gather(*(reader(locked(OLD, url)) for _ in range(3)))

    first, *others = asyncio.run(both())
    assert first is not None
    assert others == [first, first]
    assert len([request for request in server.requests if request.path.endswith(OLD.filename)]) == 1
