"""The files of a lock in the cache: looked up, streamed, checked, and gone on with where they broke off."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from envspec.context import Connectivity, Context, ReporterOf, Step
from envspec.errors import EnvspecError, NetworkError, UsageError
from envspec.fetch.types import Truncated, WrongArchive
from envspec.fetch.wheels import fetch_wheels, wheel_path
from envspec.io.http_types import Timeouts
from envspec.io.store import Store
from envspec.models import Package
from envspec.resolve.pypi.index.routing import PackageIndex
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders.environments import pin
from tests.support.builders.projects import MIRROR, PLAIN, Caching, Dialect, File, Hashes, Hrefs, Pages, Ranges
from tests.support.builders.wheels import Artifact, padding, sdist, wheel
from tests.support.servers.faults import Body, Corrupt, Drop, Status, Truncate
from tests.support.servers.index import IndexServer

APP: Final = wheel("app", "1.0")
#: Larger than what is gathered before a thread writes it.
BIG: Final = wheel("big", "2.0", files={"big/data.bin": padding(5 << 20)})
SOURCE: Final = sdist("thing", "1.0")
SHORT_BACKOFF: Final = Timeouts(backoff_s=0.01, stall_s=5)


@dataclass
class Fetcher:
    """Somebody with a cache. index: what stands for the default index."""

    cache: Path
    index: str
    environ: Mapping[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    counts: list[Step] = field(default_factory=list)

    def fetches(
        self, *packages: Package, connectivity: Connectivity = Connectivity.ONLINE, jobs: int = 4
    ) -> Mapping[str, Path]:
        reporter = ReporterOf(progress=self.counts.append, warning=self.warnings.append)
        environ = {"ENVSPEC_DEFAULT_INDEX": self.index, **self.environ}
        context = Context(environ, self.cache, self.cache, connectivity, jobs, SHORT_BACKOFF, reporter=reporter)
        return asyncio.run(fetch_wheels(packages, context))

    def refused(self, *packages: Package, connectivity: Connectivity = Connectivity.ONLINE) -> EnvspecError:
        with pytest.raises(EnvspecError) as caught:
            self.fetches(*packages, connectivity=connectivity)
        assert caught.value.hint
        return caught.value

    def left(self) -> list[Path]:
        return [path for path in self.cache.rglob("archives/**/*") if path.is_file()]


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(APP), File(BIG), File(SOURCE), File(wheel("app", "0.9"))])


@pytest.fixture
def fetcher(tmp_path: Path, index: IndexServer) -> Fetcher:
    return Fetcher(tmp_path / "cache", index.url)


def test_files_lie_in_the_cache_under_their_hash(fetcher: Fetcher, index: IndexServer) -> None:
    pins = [pin(APP), pin(BIG), pin(SOURCE)]
    found = fetcher.fetches(*pins)
    data = {each.sha256: each.data for each in (APP, BIG, SOURCE)}
    assert {sha: path.read_bytes() for sha, path in found.items()} == data
    assert found[APP.sha256] == wheel_path(fetcher.cache, pins[0])
    last = fetcher.counts[-1]
    assert (last.done, last.total, last.bytes_done) == (3, 3, last.bytes_total)
    assert sorted(fetcher.left()) == sorted(found.values())
    index.forget()
    assert fetcher.fetches(*pins) == found
    assert index.requests == []


@pytest.mark.parametrize(
    "dialect",
    [
        PLAIN,
        MIRROR,
        Dialect(pages=Pages.JSON),
        Dialect(pages=Pages.HTML, hrefs=Hrefs.BASE),
        Dialect(hashes=Hashes.NONE),
        Dialect(hashes=Hashes.MD5, hrefs=Hrefs.ROOTED),
        Dialect(ranges=Ranges.IGNORED, caching=Caching.NONE),
    ],
    ids=["plain", "mirror", "json", "base", "no-hashes", "md5", "no-ranges"],
)
def test_every_index_that_there_is(dialect: Dialect, tmp_path: Path, serve: Serve) -> None:
    index = serve([File(APP), File(BIG)], dialect)
    assert set(Fetcher(tmp_path, index.url).fetches(pin(APP), pin(BIG))) == {APP.sha256, BIG.sha256}


def test_pages_that_were_read_before_are_not_asked_for(fetcher: Fetcher, index: IndexServer) -> None:
    fetcher.fetches(pin(APP))
    wheel_path(fetcher.cache, pin(APP)).unlink()
    index.forget()
    fetcher.fetches(pin(APP))
    assert [request.path for request in index.requests] == [index.file_path(APP.filename)]


def test_a_page_from_before_the_file_is_asked_for_again(fetcher: Fetcher, index: IndexServer) -> None:
    fetcher.fetches(pin(APP))
    newer = wheel("app", "1.1")
    index.add(File(newer))
    assert newer.sha256 in fetcher.fetches(pin(newer))


def test_an_address_that_is_gone_is_looked_up_again(fetcher: Fetcher, serve: Serve, index: IndexServer) -> None:
    """As where an index gives addresses that hold for an hour."""
    fetcher.fetches(pin(APP))
    wheel_path(fetcher.cache, pin(APP)).unlink()
    store = Store(fetcher.cache)
    key = PackageIndex("default", fetcher.index).key
    page = store.page(key, "app")
    assert page is not None
    store.put_page(key, "app", replace(page, url=page.url.replace("/simple/", "/old/simple/"), etag=None))
    store.close()
    index.forget()
    assert APP.sha256 in fetcher.fetches(pin(APP))
    assert [request.status for request in index.requests] == [404, 200, 200]


def test_a_file_that_the_index_has_no_more(fetcher: Fetcher, index: IndexServer) -> None:
    gone = wheel("app", "3.0")
    error = fetcher.refused(pin(gone))
    assert error.exit_code == 5
    assert "app 3.0: app-3.0-py3-none-any.whl is not on the page of app" in error.message
    assert "not on the page" in fetcher.refused(pin(wheel("nobody", "1.0"))).message


def test_a_file_that_is_listed_with_another_hash(fetcher: Fetcher) -> None:
    error = fetcher.refused(pin(APP, sha256="0" * 64))
    assert f"lists {APP.filename} with SHA-256 {APP.sha256}, locked {'0' * 64}" in error.message


def test_other_content_than_the_locks_is_never_kept(fetcher: Fetcher, index: IndexServer) -> None:
    index.fail(index.file_path(BIG.filename), Corrupt())
    error = fetcher.refused(pin(BIG))
    assert isinstance(error, WrongArchive) and BIG.sha256 in error.message
    assert fetcher.left() == []


@pytest.mark.parametrize("keep", [0, 100, 3 << 20])
def test_a_short_file_is_asked_for_once_more(keep: int, fetcher: Fetcher, index: IndexServer) -> None:
    index.fail(index.file_path(BIG.filename), Truncate(keep), times=1)
    assert BIG.sha256 in fetcher.fetches(pin(BIG))
    fetcher2 = Fetcher(fetcher.cache / "other", fetcher.index)
    index.fail(index.file_path(BIG.filename), Truncate(keep))
    error = fetcher2.refused(pin(BIG))
    assert isinstance(error, Truncated) and fetcher2.left() == []


def test_a_body_that_broke_off_goes_on_from_there(fetcher: Fetcher, index: IndexServer) -> None:
    path = index.file_path(BIG.filename)
    index.fail(path, Drop(3 << 20), times=1)
    assert BIG.sha256 in fetcher.fetches(pin(BIG))
    first, second = index.requests_for(path)
    assert not first.range
    start = int(second.range.removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= 3 << 20 and second.status == 206
    assert fetcher.counts[-1].bytes_done == BIG.size_bytes


def test_a_run_goes_on_where_another_ended(fetcher: Fetcher, index: IndexServer) -> None:
    path = index.file_path(BIG.filename)
    index.fail(path, Status(500))
    index.fail(path, Drop(3 << 20), times=1)
    assert "HTTP 500" in fetcher.refused(pin(BIG)).message
    assert [each.name for each in fetcher.left()] == [f"{BIG.filename}.part"]
    index.heal()
    index.forget()
    assert BIG.sha256 in fetcher.fetches(pin(BIG))
    (request,) = index.requests_for(path)
    assert request.status == 206
    assert [each.name for each in fetcher.left()] == [BIG.filename]


@pytest.mark.parametrize("held", [b"x" * (2 << 20), b"x" * BIG.size_bytes, b"x" * (BIG.size_bytes + 5)])
@pytest.mark.parametrize("known", [BIG.size_bytes, None])
def test_what_was_left_of_something_else_goes(held: bytes, known: int | None, fetcher: Fetcher) -> None:
    path = wheel_path(fetcher.cache, pin(BIG))
    path.parent.mkdir(parents=True)
    path.with_name(f"{path.name}.part").write_bytes(held)
    assert fetcher.fetches(pin(BIG, size_bytes=known))[BIG.sha256].read_bytes() == BIG.data
    assert fetcher.left() == [path]


def test_a_file_of_full_length_needs_no_request(fetcher: Fetcher, index: IndexServer) -> None:
    """Left by a run that was killed between its last byte and its name."""
    path = wheel_path(fetcher.cache, pin(BIG))
    path.parent.mkdir(parents=True)
    path.with_name(f"{path.name}.part").write_bytes(BIG.data)
    fetcher.fetches(pin(BIG))
    assert index.requests_for(index.file_path(BIG.filename)) == []


def test_a_damaged_file_is_fetched_again(fetcher: Fetcher) -> None:
    path = fetcher.fetches(pin(APP))[APP.sha256]
    path.write_bytes(APP.data[:-1] + b"?")
    fetcher.fetches(pin(APP))
    assert path.read_bytes() == APP.data
    assert fetcher.warnings == [f"{path} is damaged: it is fetched again"]


def test_offline(fetcher: Fetcher, index: IndexServer) -> None:
    fetcher.fetches(pin(APP))
    index.forget()
    assert fetcher.fetches(pin(APP), connectivity=Connectivity.OFFLINE)
    error = fetcher.refused(pin(BIG), connectivity=Connectivity.OFFLINE)
    assert (error.code, "big 2.0" in error.message) == ("offline-miss", True)
    assert index.requests == []


def test_a_page_that_is_none(fetcher: Fetcher, index: IndexServer) -> None:
    index.fail("/simple/app/", Body(b"<p>log in first</p>", "text/html"))
    assert "the page of app" in fetcher.refused(pin(APP)).message


def test_a_server_that_fails_for_a_moment(fetcher: Fetcher, index: IndexServer) -> None:
    index.fail("*", Status(503), times=3)
    assert fetcher.fetches(pin(APP))
    assert any("HTTP 503" in warning for warning in fetcher.warnings)


# Credentials


@pytest.fixture
def private(serve: Serve) -> IndexServer:
    return serve([File(APP)], credentials=("me", "s3cret"))


def test_the_default_indexs_own_credentials(tmp_path: Path, private: IndexServer) -> None:
    fetcher = Fetcher(tmp_path, private.url_with_credentials)
    assert fetcher.fetches(pin(APP))
    assert {request.status for request in private.requests} == {200}


@pytest.mark.parametrize("how", ["NETRC", "HOME"])
def test_a_named_index_has_its_login_from_netrc(
    how: str, tmp_path: Path, fetcher: Fetcher, private: IndexServer
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    row = pin(APP, url=private.file_url(APP.filename), index="corp")
    fetcher.environ = {how: str(tmp_path / ".netrc" if how == "NETRC" else tmp_path)}
    assert fetcher.fetches(row)
    assert not any(b"s3cret" in path.read_bytes() for path in tmp_path.rglob("cache/**/*") if path.is_file())


def test_without_a_login_no_secret_is_told(tmp_path: Path, fetcher: Fetcher, private: IndexServer) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password wr0ng\n")
    fetcher.environ = {"NETRC": str(tmp_path / "netrc")}
    error = fetcher.refused(pin(APP, url=private.file_url(APP.filename), index="corp"))
    assert "HTTP 401 (the login is wrong)" in error.message and "wr0ng" not in str(error)
    assert error.hint == f"correct the login for 127.0.0.1 in {tmp_path / 'netrc'}"


def test_a_netrc_that_is_none(tmp_path: Path, fetcher: Fetcher, private: IndexServer) -> None:
    (tmp_path / "netrc").write_text("machine a b c d\n")
    fetcher.environ = {"NETRC": str(tmp_path / "netrc")}
    with pytest.raises(UsageError, match="can't be read"):
        fetcher.fetches(pin(APP, url=private.file_url(APP.filename), index="corp"))


def test_a_mirror_of_pytorchs_index_is_asked_by_its_pages(tmp_path: Path, fetcher: Fetcher) -> None:
    """Locks name the original's address, whatever stood for it."""
    torch = wheel("torch", "2.6.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    with IndexServer([File(torch)], prefix="/whl/cu126") as mirror:
        row = pin(torch, url="https://nowhere.invalid/whl/cu126/torch.whl", index="pytorch-cu126")
        fetcher.environ = {"ENVSPEC_PYTORCH_INDEX": f"{mirror.root.removesuffix('cu126')}{{variant}}/simple"}
        assert fetcher.fetches(row)[torch.sha256].read_bytes() == torch.data


# Size and number


class _Large(BaseHTTPRequestHandler):
    """One file of `SIZE` bytes that nobody has in memory; a page for it."""

    SIZE = 200 << 20
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(self.SIZE))
        self.end_headers()
        for _ in range(self.SIZE >> 20):
            self.wfile.write(_BLOCK)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written to stderr."""


_BLOCK: Final = bytes(1 << 20)


@pytest.fixture
def large() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Large) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/big-1.0-py3-none-any.whl"
        server.shutdown()
        thread.join()


def test_memory_does_not_grow_with_a_file(fetcher: Fetcher, large: str) -> None:
    digest = hashlib.sha256()
    for _ in range(_Large.SIZE >> 20):
        digest.update(_BLOCK)
    artifact = Artifact("big", "1.0", "big-1.0-py3-none-any.whl", b"", b"")
    row = pin(artifact, url=large, sha256=digest.hexdigest(), size_bytes=_Large.SIZE)
    tracemalloc.start()
    try:
        fetcher.fetches(row)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # aiohttp itself is imported meanwhile.
    assert peak < 48 << 20, peak


@pytest.mark.parametrize("jobs", [1, 8])
def test_many_files_at_once(jobs: int, tmp_path: Path, serve: Serve) -> None:
    many = [wheel(f"part{n}", "1.0") for n in range(40)]
    index = serve([File(each) for each in many])
    found = Fetcher(tmp_path, index.url).fetches(*map(pin, many), jobs=jobs)
    assert len(found) == 40
    assert index.fetched_twice() == []


def test_two_runs_at_once_fetch_a_file_once(fetcher: Fetcher, index: IndexServer) -> None:
    index.delay_s = 0.05
    other = Fetcher(fetcher.cache, fetcher.index)
    faults: list[BaseException] = []

    def run(one: Fetcher) -> None:
        try:
            one.fetches(pin(BIG))
        except NetworkError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(one,)) for one in (fetcher, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(index.requests_for(index.file_path(BIG.filename))) == 1
