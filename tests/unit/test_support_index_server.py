"""The loopback index does what it says, so that what the tests see is envspec's doing."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.conftest import Serve
from tests.support import ecosystem
from tests.support.faults import Body, Corrupt, Drip, Drop, Flood, Redirects, Stall, Status, Truncate
from tests.support.index_server import IndexServer
from tests.support.pages import JSON_TYPE
from tests.support.projects import (
    MIRROR,
    PLAIN,
    Dialect,
    File,
    Hashes,
    Hrefs,
    MetadataFiles,
    Pages,
    Ranges,
    Sizes,
    Times,
)
from tests.support.wheels import wheel

JSON = {"Accept": JSON_TYPE}
WHEEL = "base-1.5.0-py3-none-any.whl"


@dataclass(frozen=True)
class Got:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def get(index: IndexServer, path: str, headers: Mapping[str, str] | None = None, timeout_s: float = 5) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", index.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        return Got(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def file_row(index: IndexServer, filename: str = WHEEL) -> dict[str, object]:
    page = json.loads(get(index, "/simple/base/", JSON).body)
    rows: list[dict[str, object]] = page["files"]
    return next(row for row in rows if row["filename"] == filename)


def test_the_root_lists_the_projects(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    assert [project["name"] for project in json.loads(get(index, "/simple/", JSON).body)["projects"]] == [
        "app",
        "base",
        "left",
        "right",
    ]
    assert 'href="left/"' in get(index, "/simple/").text


@pytest.mark.parametrize(
    ("pages", "accept", "is_json", "is_dated"),
    [
        (Pages.HTML, JSON_TYPE, False, True),
        (Pages.JSON, "text/html", True, True),
        (Pages.BY_ACCEPT, "text/html", False, True),
        (Pages.BY_ACCEPT, f"{JSON_TYPE}, text/html;q=0.2", True, True),
        (Pages.HTML_DATED_BY_ACCEPT, "text/html", False, False),
        (Pages.HTML_DATED_BY_ACCEPT, JSON_TYPE, False, True),
    ],
)
def test_a_page_comes_in_the_form_of_the_dialect(
    serve: Serve, pages: Pages, accept: str, is_json: bool, is_dated: bool
) -> None:
    got = get(serve(ecosystem.diamond(), Dialect(pages=pages)), "/simple/base/", {"Accept": accept})
    assert (got.headers["Content-Type"] == JSON_TYPE) is is_json
    assert ("2024-01-01T12:00:00" in got.text) is is_dated


def test_json_pages_give_hash_size_and_time(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    row = file_row(index)
    body = get(index, index.file_path(WHEEL)).body
    assert row["hashes"] == {"sha256": hashlib.sha256(body).hexdigest()}
    assert row["size"] == len(body)
    assert row["upload-time"] == "2024-01-01T12:00:00.000000Z"
    assert row["yanked"] is False


def test_what_the_dialect_hides_is_not_there(serve: Serve) -> None:
    bare = Dialect(times=Times.HIDDEN, sizes=Sizes.HIDDEN, hashes=Hashes.NONE, metadata=MetadataFiles.NONE)
    row = file_row(serve(ecosystem.diamond(), bare))
    assert set(row) == {"filename", "url", "hashes", "requires-python", "yanked", "core-metadata"}
    assert (row["hashes"], row["core-metadata"]) == ({}, False)
    plain = get(serve(ecosystem.diamond(), PLAIN), "/simple/base/", JSON).text
    assert set(re.findall(r" (data-[a-z-]+)=", plain)) == set()


@pytest.mark.parametrize("hrefs", Hrefs)
def test_links_lead_to_the_files(serve: Serve, hrefs: Hrefs) -> None:
    index = serve(ecosystem.diamond(), Dialect(pages=Pages.HTML, hrefs=hrefs))
    page = get(index, "/simple/base/").text
    href = re.findall(r'href="([^"#]+1\.5\.0[^"#]+)#sha256=', page)[0]
    path = {
        Hrefs.RELATIVE: href.removeprefix("../.."),
        Hrefs.ROOTED: href,
        Hrefs.ABSOLUTE: href.removeprefix(index.root),
        Hrefs.BASE: f"/files/{href}",
    }[hrefs]
    assert path == index.file_path(WHEEL)
    assert (f'<base href="{index.root}/files/">' in page) is (hrefs is Hrefs.BASE)
    assert get(index, path).status == 200


def test_attributes_are_escaped(serve: Serve) -> None:
    page = get(serve([*ecosystem.yanked(), *ecosystem.requires_python()]), "/simple/pulled/").text
    assert 'data-yanked="breaks &quot;import&quot; &amp; &lt;more&gt;"' in page
    assert 'data-yanked=""' in page


@pytest.mark.parametrize(
    ("metadata", "announced", "status"),
    [
        (MetadataFiles.CORE, True, 200),
        (MetadataFiles.DIST_INFO, True, 200),
        (MetadataFiles.TRUE, True, 200),
        (MetadataFiles.MISSING, True, 404),
        (MetadataFiles.SILENT, False, 200),
        (MetadataFiles.NONE, False, 404),
    ],
)
def test_metadata_files(serve: Serve, metadata: MetadataFiles, announced: bool, status: int) -> None:
    index = serve(ecosystem.diamond(), Dialect(metadata=metadata))
    assert ("-metadata=" in get(index, "/simple/base/").text) is announced
    assert any(file_row(index).get(key) for key in ("core-metadata", "dist-info-metadata")) is announced
    assert get(index, index.file_path(WHEEL) + ".metadata").status == status


@pytest.mark.parametrize(
    ("ranges", "wanted", "status", "span"),
    [
        (Ranges.ALL, "bytes=0-9", 206, slice(0, 10)),
        (Ranges.ALL, "bytes=10-", 206, slice(10, None)),
        (Ranges.ALL, "bytes=-20", 206, slice(-20, None)),
        (Ranges.ALL, "bytes=10-99999999", 206, slice(10, None)),
        (Ranges.ALL, "bytes=99999999-", 416, slice(0, 0)),
        (Ranges.NO_SUFFIX_416, "bytes=-20", 416, slice(0, 0)),
        (Ranges.NO_SUFFIX_416, "bytes=0-9", 206, slice(0, 10)),
        (Ranges.NO_SUFFIX_501, "bytes=10-", 206, slice(10, None)),
        (Ranges.IGNORED, "bytes=-20", 200, slice(None)),
    ],
)
def test_ranges(serve: Serve, ranges: Ranges, wanted: str, status: int, span: slice) -> None:
    index = serve(ecosystem.diamond(), Dialect(ranges=ranges))
    path = index.file_path(WHEEL)
    whole = get(index, path).body
    got = get(index, path, {"Range": wanted})
    assert (got.status, got.body) == (status, whole[span])
    if status == 206:
        start, end, _ = span.indices(len(whole))
        assert got.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(whole)}"


def test_a_suffix_range_can_be_unknown_to_the_server(serve: Serve) -> None:
    index = serve(ecosystem.diamond(), Dialect(ranges=Ranges.NO_SUFFIX_501))
    assert get(index, index.file_path(WHEEL), {"Range": "bytes=-20"}).status == 501


def test_an_etag_that_matches_gets_304_and_no_body(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    first = get(index, "/simple/base/")
    again = get(index, "/simple/base/", {"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    index.add(ecosystem.release("base", "3.0.0"))
    assert get(index, "/simple/base/", {"If-None-Match": first.headers["ETag"]}).status == 200


def test_pages_are_compressed_for_those_who_take_it(serve: Serve) -> None:
    index = serve(ecosystem.torch_family())
    plain = get(index, "/simple/torch/")
    small = get(index, "/simple/torch/", {"Accept-Encoding": "gzip, br"})
    assert gzip.decompress(small.body) == plain.body
    assert len(small.body) < len(plain.body)


def test_other_spellings_of_a_name_are_redirected(serve: Serve) -> None:
    index = serve(ecosystem.torch_family())
    for path in ("/simple/Typing_Extensions/", "/simple/typing-extensions"):
        got = get(index, path)
        assert (got.status, got.headers["Location"]) == (301, "/simple/typing-extensions/")


def test_credentials(serve: Serve) -> None:
    index = serve(ecosystem.private(), credentials=("ci", "s3cret"))
    assert get(index, "/simple/corp-core/").status == 401
    assert get(index, "/simple/corp-core/", {"Authorization": "Basic Y2k6czNjcmV0"}).status == 200
    assert index.url_with_credentials == f"http://ci:s3cret@127.0.0.1:{index.port}/simple/"


def test_an_unknown_project_or_file_is_404(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    assert [get(index, path).status for path in ("/simple/nope/", "/files/base/nope.whl", "/other")] == [404] * 3


def test_local_versions_are_quoted_in_links(serve: Serve) -> None:
    index = serve(ecosystem.pytorch_index("cu126"))
    href = re.findall(r'href="\.\./\.\.([^"#]+)', get(index, "/simple/torch/").text)[0]
    assert "%2Bcu126" in href
    assert get(index, href).status == 200


def test_requests_are_counted_per_path(serve: Serve) -> None:
    index = serve(ecosystem.diamond(), MIRROR)
    for _ in range(2):
        get(index, "/simple/base/")
    get(index, index.file_path(WHEEL), {"Range": "bytes=0-9"})
    get(index, index.file_path(WHEEL), {"Range": "bytes=10-19"})
    get(index, "/simple/nope/")
    get(index, "/simple/nope/")
    assert len(index.requests_for("/files/*")) == 2
    assert index.fetched_twice() == ["/simple/base/"]
    assert 20 < index.sent_bytes("/files/*") < 1000
    index.forget()
    assert index.requests == []


def test_a_fault_for_so_many_times(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/simple/base/", Status(429, {"Retry-After": "1"}), times=2)
    got = [get(index, "/simple/base/") for _ in range(3)]
    assert [answer.status for answer in got] == [429, 429, 200]
    assert got[0].headers["Retry-After"] == "1"


def test_a_fault_for_good_until_healed(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/simple/*", Status(500))
    assert [get(index, f"/simple/{name}/").status for name in ("base", "left", "base")] == [500] * 3
    index.heal()
    assert get(index, "/simple/base/").status == 200


def test_a_dropped_connection_gives_part_of_the_body(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/simple/base/", Drop(after_bytes=100))
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        get(index, "/simple/base/")
    assert index.requests[-1].status == 200


def test_a_truncated_body_looks_whole(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/files/*", Truncate(keep_bytes=50))
    got = get(index, index.file_path(WHEEL))
    assert (got.headers["Content-Length"], len(got.body)) == ("50", 50)


def test_a_corrupt_body_has_its_length_and_not_its_hash(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    honest = get(index, index.file_path(WHEEL)).body
    index.fail("/files/*", Corrupt())
    got = get(index, index.file_path(WHEEL)).body
    assert len(got) == len(honest)
    assert got != honest


def test_a_page_can_claim_a_wrong_hash(serve: Serve) -> None:
    index = serve([File(wheel("base", "1.5.0"), claimed_sha256="0" * 64)])
    assert file_row(index)["hashes"] == {"sha256": "0" * 64}


def test_another_body(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/simple/base/", Body(b'{"files": [', JSON_TYPE))
    got = get(index, "/simple/base/")
    assert (got.status, got.body, got.headers["Content-Type"]) == (200, b'{"files": [', JSON_TYPE)


def test_a_chain_of_redirects_ends_at_the_page(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/simple/base/", Redirects(count=3))
    path = "/simple/base/"
    hops = 0
    while (got := get(index, path)).status == 302:
        path = got.headers["Location"]
        hops += 1
    assert (hops, got.status) == (3, 200)


def test_a_stalled_request_outlasts_the_client_and_ends_with_the_server() -> None:
    started = time.monotonic()
    with IndexServer(ecosystem.diamond()) as index:
        index.fail("/simple/base/", Stall())
        with pytest.raises(TimeoutError):
            get(index, "/simple/base/", timeout_s=0.2)
        assert index.requests[-1].status == 0
    assert time.monotonic() - started < 3


def test_a_drip_goes_on_after_the_page_and_ends_with_the_server() -> None:
    started = time.monotonic()
    with IndexServer(ecosystem.diamond()) as index:
        whole = len(get(index, "/simple/base/").body)
        index.fail("/simple/base/", Drip(pause_s=0.001))
        connection = http.client.HTTPConnection("127.0.0.1", index.port, timeout=5)
        connection.request("GET", "/simple/base/")
        got = connection.getresponse().read(whole // 2 + 50)
        connection.close()
    assert got.endswith(b" " * 50)
    assert time.monotonic() - started < 3


def test_a_flood_sends_more_than_anyone_wants(serve: Serve) -> None:
    index = serve(ecosystem.diamond())
    index.fail("/simple/base/", Flood())
    connection = http.client.HTTPConnection("127.0.0.1", index.port, timeout=5)
    connection.request("GET", "/simple/base/")
    assert len(connection.getresponse().read(20_000_000)) == 20_000_000
    connection.close()


def test_every_set_of_projects_has_files_that_no_other_set_of_its_index_has() -> None:
    names = [file.filename for file in ecosystem.everything()]
    assert len(names) == len(set(names))


def test_the_torch_family_has_the_faults_of_the_real_one() -> None:
    requires = {
        file.artifact.version: file.artifact.metadata for file in ecosystem.torch_family() if file.name == "torchaudio"
    }
    assert b"torch==2.9.1" in requires["2.9.1"]
    assert b"torch" not in requires["2.11.0"].split(b"Version: 2.11.0")[1]
