"""Helpers whose fault would let tests of security pass unseen: what servers record, reject and serve falsely."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rattler.package_streaming import extract

from tests.conftest import Serve
from tests.support.builders import conda_packages, ecosystem
from tests.support.builders.conda_archive import archive, distribution, impostor
from tests.support.builders.conda_channel import write
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Body, Corrupt, Fault, Redirects, Status, Truncate
from tests.support.servers.registry import PushRegistry, digest

WHEEL = "base-1.5.0-py3-none-any.whl"
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"ci:s3cret").decode()}
Got = tuple[int, bytes, dict[str, str]]


def get(port: int, path: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: bytes = b"") -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def test_every_request_is_recorded_whatever_its_answer(serve: Serve) -> None:
    index = serve(ecosystem.diamond(), credentials=("ci", "s3cret"))
    index.fail("/simple/left/", Status(500), times=1)
    paths = ("/simple/base/", "/simple/left/", "/simple/nope/", "/elsewhere", "/simple/base/")
    assert [get(index.port, path, LOGIN)[0] for path in paths] == [200, 500, 404, 404, 200]
    assert get(index.port, "/simple/right/")[0] == 401
    assert [request.path for request in index.requests] == [*paths, "/simple/right/"]
    assert [request.headers.get("authorization") for request in index.requests[-2:]] == [LOGIN["Authorization"], None]
    assert index.fetched_twice() == ["/simple/base/"]


@pytest.mark.parametrize(
    ("fault", "status", "is_served"),
    [
        (Corrupt(), 200, lambda body, honest: len(body) == len(honest) and body != honest),
        (Truncate(keep_bytes=50), 200, lambda body, honest: body == honest[:50]),
        (Body(b"other"), 200, lambda body, _: body == b"other"),
        (Redirects(count=3), 302, lambda body, honest: body != honest),
    ],
)
def test_a_false_file_is_served(
    serve: Serve, fault: Fault, status: int, is_served: Callable[[bytes, bytes], bool]
) -> None:
    index = serve(ecosystem.diamond())
    honest = get(index.port, index.file_path(WHEEL))[1]
    index.fail("/files/*", fault)
    got = get(index.port, index.file_path(WHEEL))
    assert got[0] == status and is_served(got[1], honest)


def test_an_impostor_of_an_archive_has_its_name_and_size_and_can_be_unpacked(tmp_path: Path) -> None:
    honest = archive("tool", "1.0", distribution("tool", "1.0"), python="noarch")
    false = impostor(honest)
    assert (false.filename, len(false.data)) == (honest.filename, len(honest.data))
    assert false.sha256 != honest.sha256
    (tmp_path / false.filename).write_bytes(false.data)
    extract(tmp_path / false.filename, tmp_path / "out")


def test_a_channel_requires_its_login_and_its_token(tmp_path: Path) -> None:
    channel = write(tmp_path, conda_packages.forge())
    rows = "/forge/noarch/repodata.json"
    with CondaServer({"forge": channel}, credentials=("ci", "s3cret")) as server:
        assert [get(server.port, rows, headers)[0] for headers in ({}, LOGIN)] == [401, 200]
        assert get(server.port, "/forge/../secret", LOGIN)[0] == 404
    with CondaServer({"forge": channel}, prefix="/t/secret") as server:
        assert [get(server.port, f"{prefix}{rows}")[0] for prefix in ("", "/t/secret")] == [404, 200]


def test_a_registry_requires_its_login_and_refuses_what_is_wrong() -> None:
    async def run() -> None:
        async with PushRegistry(basic=("ci", "s3cret")) as held:

            async def ask(method: str, path: str, headers: Mapping[str, str] = LOGIN, body: bytes = b"") -> Got:
                return await asyncio.to_thread(get, held.port, path, headers, method, body)

            assert (await ask("GET", "/v2/a/manifests/x", {}))[0] == 401
            assert (await ask("GET", "/v2/a/manifests/x"))[0] == 404
            location = (await ask("POST", "/v2/a/blobs/uploads/"))[2]["Location"]
            assert (await ask("PUT", f"{location}?digest={digest(b'one')}", body=b"other"))[0] == 400
            lacking = json.dumps({"config": {"digest": digest(b"one")}, "layers": []}).encode()
            kind = {**LOGIN, "Content-Type": "application/vnd.oci.image.manifest.v1+json"}
            assert (await ask("PUT", "/v2/a/manifests/x", kind, lacking))[0] == 400
            held.hold("a", b"one")
            assert (await ask("PUT", "/v2/a/manifests/x", kind, lacking))[0] == 201
            assert [asked.headers.get("authorization") for asked in held.asked][:2] == [None, LOGIN["Authorization"]]

    asyncio.run(run())
