"""An index that misbehaves, while a lock is there: one clear message, the right exit code, and the old lock untouched.

Each case runs `envspec lock` against a server of its own. The spec asks for `app`, which needs `left` and `right`,
which share `base`; the lock that stands there is an older one. The date of the spec is past: a page that was fetched
once is good for ever. After each fault the index is well again, and so is the next run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.io.store import Store, StoredPage
from envspec.resolve.pypi.index.routing import PackageIndex
from envspec.structs import replace
from tests.support.builders import ecosystem
from tests.support.builders.projects import (
    MIRROR,
    PLAIN,
    Compression,
    Dialect,
    File,
    Hashes,
    MetadataFiles,
    Pages,
    Ranges,
    Times,
    day,
)
from tests.support.builders.wheels import padding, sdist, wheel
from tests.support.servers.faults import (
    Answer,
    Body,
    Corrupt,
    Drip,
    Drop,
    Fault,
    Flood,
    Redirects,
    Stall,
    Status,
    Truncate,
    Wire,
)
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.servers.pages import JSON_TYPE
from tests.support.user import SHORT_TIMEOUTS, Ran, User, command_line, refused

#: All releases of the diamond are older.
AS_OF = "2026-01-01T00:00:00Z"
DIAMOND = {"app": "1.0.0", "left": "1.0.0", "right": "1.0.0", "base": "1.5.0"}
APP_PAGE, APP_WHEEL = "/simple/app/", "/files/app/app-1.0.0-py3-none-any.whl"
ROW = {
    "filename": "app-1.0.0-py3-none-any.whl",
    "url": "../../files/app/app-1.0.0-py3-none-any.whl",
    "hashes": {"sha256": "0" * 64},
    "upload-time": "2024-01-01T00:00:00Z",
}
RANGED = Dialect(metadata=MetadataFiles.NONE)
SIZELESS = Dialect(pages=Pages.HTML)
WHOLE = replace(RANGED, ranges=Ranges.IGNORED)


def page(*rows: object, **others: object) -> Body:
    document = {"meta": {"api-version": "1.1"}, "name": "app", "files": list(rows), **others}
    return Body(json.dumps(document).encode(), JSON_TYPE)


def html(text: str) -> Body:
    return Body(text.encode(), "text/html")


@dataclass(frozen=True)
class Case:
    """faults: (path, what happens there, how often). status: the exit code; expected_message: what stderr must hold."""

    status: int
    expected_message: tuple[str, ...] = ()
    faults: tuple[tuple[str, Fault, int | None], ...] = ()
    dialect: Dialect = FRIENDLY
    files: Callable[[], list[File]] = ecosystem.diamond
    requirements: tuple[str, ...] = ("app",)


def on(path: str, fault: Fault, times: int | None = None) -> tuple[tuple[str, Fault, int | None], ...]:
    return ((path, fault, times),)


def network(fault: Fault, *expected_message: str, path: str = APP_PAGE, dialect: Dialect = FRIENDLY) -> Case:
    """A fault that lasts, and so ends in exit code 5."""
    return Case(5, expected_message, on(path, fault), dialect)


def passing(fault: Fault, times: int, dialect: Dialect = FRIENDLY, path: str = APP_PAGE) -> Case:
    """A fault that ends in time."""
    return Case(0, (), on(path, fault, times), dialect)


def wrong_claim() -> list[File]:
    """The page says another hash of app's wheel than it has."""
    return [replace(f, claimed_sha256="1" * 64) if f.name == "app" else f for f in ecosystem.diamond()]


def long_wheel() -> list[File]:
    """app's wheel has its METADATA far from its end, where it takes requests of its own."""
    blob = padding(200_000)
    files = {"app/blob.bin": blob, "app-1.0.0.dist-info/zzz.bin": blob}
    app = File(wheel("app", "1.0.0", requires=["left", "right"], files=files), day("2024-01-01"))
    return [app, *(f for f in ecosystem.diamond() if f.name != "app")]


def unknown_below() -> list[File]:
    return [ecosystem.release("app", "1.0.0", requires=["left", "nowhere>=1"]), ecosystem.release("left", "1.0.0")]


@dataclass(frozen=True)
class NotToStore:
    """The honest answer, which nobody may store."""

    def play(self, wire: Wire) -> Answer:
        honest = wire.honest()
        return replace(honest, headers={**honest.headers, "Cache-Control": "private, No-Store"})


@dataclass(frozen=True)
class Lengthless:
    """A status of 200 without a Content-Length, as generated answers have it."""

    def play(self, wire: Wire) -> None:
        wire.start(200, {"Connection": "close"})


CASES: dict[str, Case] = {
    # hashes
    "hash-of-metadata": network(
        Corrupt(), "app-1.0.0-py3-none-any.whl.metadata has SHA-256", "its page has", path="*.metadata"
    ),
    "hash-of-a-range": network(Corrupt(), "index default: app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=RANGED),
    "hash-of-a-whole-wheel": network(
        Corrupt(), "app-1.0.0-py3-none-any.whl has SHA-256", "its page has", path=APP_WHEEL, dialect=WHOLE
    ),
    "hash-on-the-page": Case(
        5, ("app-1.0.0-py3-none-any.whl has SHA-256", "its page has " + "1" * 64), dialect=WHOLE, files=wrong_claim
    ),
    "hash-none": Case(0, dialect=replace(FRIENDLY, hashes=Hashes.NONE)),
    "hash-md5": Case(0, dialect=replace(FRIENDLY, hashes=Hashes.MD5)),
    "hash-none-and-cut-short": network(
        Drop(100), "ended early", path=APP_WHEEL, dialect=replace(FRIENDLY, hashes=Hashes.NONE)
    ),
    # wheels
    "wheel-cut-short-in-a-range": network(
        Truncate(300), "app-1.0.0-py3-none-any.whl is no usable wheel", path=APP_WHEEL, dialect=RANGED
    ),
    "wheel-cut-short-whole": network(Truncate(300), "app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=WHOLE),
    "wheel-is-empty": network(Truncate(0), "app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=RANGED),
    "wheel-is-html": network(
        Body(b"<html>please log in</html>", "text/html"), "app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=RANGED
    ),
    "wheel-404": network(Status(404), "app-1.0.0-py3-none-any.whl: HTTP 404", path=APP_WHEEL, dialect=RANGED),
    "wheel-429-late": network(
        Status(429, {"Retry-After": "9" * 30}), "HTTP 429 (too many", path=APP_WHEEL, dialect=RANGED
    ),
    "wheel-500": network(Status(500), "app-1.0.0-py3-none-any.whl: HTTP 500", path=APP_WHEEL, dialect=RANGED),
    "wheel-204": network(Status(204, body=b""), "app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=RANGED),
    "wheel-stalls": network(Stall(), "app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=RANGED),
    "wheel-redirects-without-end": network(
        Redirects(), "app-1.0.0-py3-none-any.whl: redirects without an end", path=APP_WHEEL, dialect=RANGED
    ),
    "wheel-drops-each-time": network(Drop(100), "ended early", path=APP_WHEEL, dialect=RANGED),
    "wheel-drops-once": passing(Drop(100), 1, RANGED, APP_WHEEL),
    "metadata-announced-but-404": Case(0, dialect=replace(FRIENDLY, metadata=MetadataFiles.MISSING)),
    "metadata-without-hash-is-html": Case(
        0,
        (),
        on("*.metadata", html("<html><body>Log in</body></html>")),
        replace(FRIENDLY, metadata=MetadataFiles.TRUE),
    ),
    "record-drips": Case(0, (), on(APP_WHEEL, Drip())),
    "metadata-500": network(Status(500), "app-1.0.0-py3-none-any.whl.metadata: HTTP 500", path="*.metadata"),
    "size-500": network(Status(500), "app-1.0.0-py3-none-any.whl: HTTP 500", path=APP_WHEEL, dialect=SIZELESS),
    "size-of-a-login": network(
        html("<html><body>Log in</body></html>"), "app-1.0.0-py3-none-any.whl", path=APP_WHEEL, dialect=SIZELESS
    ),
    "size-unknown": Case(0, (), on(APP_WHEEL, Lengthless()), SIZELESS),
    "size-405": Case(0, (), on(APP_WHEEL, Status(405)), SIZELESS),
    "ranges-not-known": Case(0, dialect=WHOLE),
    "ranges-no-suffix-416": Case(0, dialect=replace(RANGED, ranges=Ranges.NO_SUFFIX_416)),
    "ranges-no-suffix-501": Case(0, dialect=replace(RANGED, ranges=Ranges.NO_SUFFIX_501)),
    "ranges-of-a-long-wheel": Case(0, dialect=RANGED, files=long_wheel),
    "ranges-of-a-long-wheel-no-suffix": Case(0, dialect=replace(RANGED, ranges=Ranges.NO_SUFFIX_501), files=long_wheel),
    # statuses
    "page-404": Case(2, ("spec.toml:8: pip.dependencies[1]: no such package: nope",), requirements=("app", "nope")),
    "page-404-below": Case(4, ("app", "nowhere"), files=unknown_below),
    "page-410": Case(2, ("no such package: app",), on(APP_PAGE, Status(410))),
    "page-500": network(Status(500), "/simple/app/: HTTP 500 (the server failed)"),
    "page-500-below": network(Status(500), "/simple/base/: HTTP 500", path="/simple/base/"),
    "page-503-twice": passing(Status(503), 2),
    "page-429-soon": passing(Status(429, {"Retry-After": "1"}), 1),
    "page-429-late": network(Status(429, {"Retry-After": "3600"}), "HTTP 429", "try again in 3600 s"),
    "page-204": network(Status(204, body=b""), "cannot be read"),
    "page-401": network(Status(401), "/simple/app/: HTTP 401"),
    "page-404-once": Case(2, ("no such package: app",), on(APP_PAGE, Status(404), 1)),
    # connections
    "page-drops-each-time": network(Drop(60), "/simple/app/: the response ended early"),
    "page-drops-twice": passing(Drop(60), 2),
    "page-stalls": network(Stall(), "/simple/app/: the server stalled: no byte for 1.5 s"),
    "page-stalls-once": passing(Stall(), 1),
    "page-floods": network(Flood(), "/simple/app/: the response is larger than 67 MB"),
    "page-drips": network(Drip(), "/simple/app/: the response is not complete within the time limit"),
    "metadata-drips": network(Drip(), ".metadata: the response is not complete", path="*.metadata"),
    "redirects-without-end": network(Redirects(), "/simple/app/: redirects without an end"),
    "redirects-that-end": passing(Redirects(3), 4),
    "redirect-to-nowhere": network(Status(302, {"Location": "gopher://x/"}), "redirects to no http(s) URL"),
    # pages
    "page-has-wrong-bytes": network(
        Corrupt(), "the page of app", "cannot be read", dialect=replace(FRIENDLY, compression=Compression.NONE)
    ),
    "page-without-links": network(html("<html><body>Back in an hour</body></html>"), "lists no file"),
    "page-without-links-not-to-store": network(
        Body(b"<html><body>Log in</body></html>", "text/html", {"Cache-Control": "no-store"}), "lists no file"
    ),
    "page-of-a-project-without-releases": Case(4, ("index default has no release of app",), on(APP_PAGE, page())),
    "page-is-not-json": network(Body(b'{"files": [', JSON_TYPE), "cannot be read"),
    "page-cut-short-gzip": network(Truncate(300), "ended early", dialect=Dialect(pages=Pages.HTML)),
    "page-cut-short-json-gzip": network(Truncate(300), "ended early"),
    "row-of-another-scheme": network(page({**ROW, "url": "file:///etc/passwd"}), "file"),
    "page-of-another-project": Case(
        4, ("app",), on(APP_PAGE, page({**ROW, "filename": "other-1.0.0-py3-none-any.whl"}))
    ),
    "undated": Case(5, ("index default gives no upload times for app",), dialect=PLAIN),
    "undated-json": Case(5, ("index default gives no upload times",), dialect=replace(FRIENDLY, times=Times.HIDDEN)),
    # what no resolver has to find out
    "no-such-package-while-metadata-stalls": Case(
        2, ("no such package: nowhere",), (("*.metadata", Stall(), None),), requirements=("app", "nowhere")
    ),
    # what is no fault
    "a-mirror-in-html": Case(0, dialect=MIRROR),
    "a-json-index-without-sizes": Case(0, dialect=Dialect(pages=Pages.JSON)),
}


@dataclass(frozen=True)
class Played:
    """A run against the fault; the lock's files after it; and the next run, if the fault was the index's."""

    user: User
    ran: Ran
    files: dict[str, bytes]
    healed: Ran | None


def play(case: Case, folder: Path, before: dict[str, bytes]) -> Played:
    with IndexServer(case.files(), case.dialect) as index:
        for path, fault, times in case.faults:
            index.fail(path, fault, times)
        user = User(folder, index.url)
        user.lock.mkdir(parents=True)
        for name, data in before.items():
            (user.lock / name).write_bytes(data)
        user.wants(*case.requirements, as_of=AS_OF)
        slow = any(isinstance(fault, (Stall, Drip)) for _, fault, _ in case.faults)
        ran = user.locks(**(SHORT_TIMEOUTS if slow else {}))
        files = user.files()
        index.heal()
        is_of_index = ran.status in (2, 5) and case.faults and case.requirements == ("app",)
        return Played(user, ran, files, user.locks() if is_of_index else None)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    with IndexServer(ecosystem.diamond()) as index:
        user = User(tmp_path_factory.mktemp("first"), index.url)
        user.wants("base", as_of="2023-06-01T00:00:00Z")
        user.locked()
        return user.files()


@pytest.mark.parametrize("case", CASES)
def test_fault(tmp_path: Path, before: dict[str, bytes], case: str) -> None:
    expected = CASES[case]
    played = play(expected, tmp_path, before)
    if expected.status == 0:
        assert played.ran.status == 0, played.ran.stderr
        assert played.user.pins() == DIAMOND
        return
    error = refused(played.ran, expected.status)
    assert not [words for words in expected.expected_message if words not in error], error
    assert played.files == before
    if played.healed is not None:
        assert played.healed.status == 0, played.healed.stderr
        assert played.user.pins() == DIAMOND


@pytest.mark.parametrize(
    ("fault", "dialect", "message"),
    [
        (Drip(), RANGED, "the response is not complete within the time limit"),
        (Flood(), RANGED, "is no usable wheel: the server sends more of it than requested"),
        (Drip(), WHOLE, "the response is not complete within the time limit"),
        (Flood(), WHOLE, "the response is larger than"),
    ],
    ids=["range-drips", "range-floods", "wheel-drips", "wheel-floods"],
)
def test_a_wheel_without_end(tmp_path: Path, fault: Fault, dialect: Dialect, message: str) -> None:
    """Its bytes come in time, each of them."""
    with IndexServer(ecosystem.diamond(), dialect) as index:
        index.fail(APP_WHEEL, fault)
        user = User(tmp_path, index.url)
        user.wants("app", as_of=AS_OF)
        error = refused(user.locks(ENVSPEC_HTTP_STALL_S="1.5"), 5)
        assert "app-1.0.0-py3-none-any.whl" in error and message in error
        index.heal()
        assert user.locked_pins() == DIAMOND


@pytest.mark.parametrize(("fault", "again"), [(None, 0), (NotToStore(), 1)], ids=["usual", "no-store"])
def test_a_page_that_must_not_be_stored(tmp_path: Path, fault: Fault | None, again: int) -> None:
    with IndexServer(ecosystem.diamond()) as index:
        if fault is not None:
            index.fail("/simple/*", fault)
        user = User(tmp_path, index.url)
        user.wants("app", as_of=AS_OF)
        user.locked()
        index.forget()
        user.wants("app", "left", as_of=AS_OF)
        user.locked()
        assert len(index.requests_for(APP_PAGE)) == again


def test_a_bad_page_in_the_cache_is_requested_again(tmp_path: Path) -> None:
    """It was stored by an earlier version, with an ETag that the index still gives."""
    with IndexServer(ecosystem.diamond()) as index:
        user = User(tmp_path, index.url)
        now, key = datetime.now(timezone.utc), PackageIndex("default", index.url).key
        with closing(Store(user.cache)) as store:
            etag = index.answer(APP_PAGE, {"accept": "json"}).headers["ETag"]
            store.put_page(key, "app", StoredPage(200, now, index.url, "text/html", etag, b"<html>Log in</html>"))
        user.wants("app")
        assert "the page of app at index default is not in the cache" in refused(user.locks("--offline"), 5)
        user.locked()
        assert user.pins() == DIAMOND


def test_a_new_process_has_no_faults(tmp_path: Path) -> None:
    """Its HTTP client is imported while the resolver starts."""
    with IndexServer(ecosystem.diamond()) as index:
        user = User(tmp_path, index.url)
        user.wants("app")
        ran = user.runs_anew("lock", user.spec)
        assert ran.status == 0, ran.stderr
        assert user.pins() == DIAMOND


def test_a_server_that_is_down(tmp_path: Path) -> None:
    with IndexServer() as index:
        gone = index.url
    user = User(tmp_path, gone)
    user.wants("app")
    assert f"{gone}app/: no connection" in refused(user.locks(), 5)


@pytest.mark.parametrize("rest", ["", '[conda]\nchannels = ["http://127.0.0.1:9/forge"]\ndependencies = ["ffmpeg"]\n'])
def test_a_machine_without_loopback(tmp_path: Path, rest: str) -> None:
    """Resolvers and rattler read what envspec serves there."""
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not have a network of its own (unshare --net)")
    user = User(tmp_path, "http://127.0.0.1:9/simple/", NO_PROXY="127.0.0.1")
    user.wants("app", as_of=AS_OF, rest=rest)
    words = [*alone, *command_line(["lock", user.spec.name])]
    done = subprocess.run(words, cwd=user.folder, env=user.environ, capture_output=True, text=True, check=False)
    error = refused(Ran(done.returncode, done.stdout, done.stderr), 6)
    assert error.startswith("no connection to 127.0.0.1, where envspec serves resolvers: Network is unreachable")
    assert "`ip link set lo up`" in error


def test_a_mirror_that_has_none_of_the_packages(tmp_path: Path) -> None:
    """Its address is wrong, and no name is: one error, which names the address and the setting."""
    with IndexServer(ecosystem.diamond()) as index:
        wrong = f"{index.root}/nothing/"
        user = User(tmp_path, wrong)
        user.wants("app", "left", as_of=AS_OF, platforms=("linux-64", "linux-aarch64"))
        error = refused(user.locks(), 5)
        assert error.startswith(f"index {wrong} has none of the packages that the spec names: app, left\n")
        assert "check ENVSPEC_DEFAULT_INDEX" in error and "`envspec config` shows where it is set" in error
        user.wants("app", as_of=AS_OF)
        assert f"no such package: app (index {wrong})" in refused(user.locks(), 2)
        user.wants("app", "nope", as_of=AS_OF)
        assert f"no such package: nope (index {index.url})" in refused(user.locks(ENVSPEC_DEFAULT_INDEX=index.url), 2)


def test_patience_that_is_no_number(tmp_path: Path) -> None:
    user = User(tmp_path, "http://127.0.0.1:9/simple/")
    user.wants("app")
    assert refused(user.locks(ENVSPEC_HTTP_STALL_S="soon"), 2).startswith("ENVSPEC_HTTP_STALL_S=soon: not a positive")


def test_pages_that_list_everything_give_each_project_its_own_files(tmp_path: Path) -> None:
    """As a folder of wheels does that a web server shows under every name."""
    files = [
        *ecosystem.diamond(),
        ecosystem.release("zeta", "1.5.0", requires=["base<2"]),
        File(sdist("aaa", "9.0.0"), day("2025-01-01")),
    ]
    with IndexServer(files) as index:
        links = "".join(
            f'<a href="{index.file_url(file.filename)}#sha256={file.sha256}" data-upload-time="2024-01-01T00:00:00Z">'
            f"{file.filename}</a>\n"
            for file in files
        )
        index.fail("/simple/*/", html(f"<html><body>{links}</body></html>"))
        user = User(tmp_path, index.url)
        user.wants("zeta", "app")
        ran = user.locked()
        assert user.pins() == {**DIAMOND, "zeta": "1.5.0"}
        for name, package in user.packages().items():
            assert package["file"]["filename"].startswith(f"{name}-{package['version']}-")
        assert "rejected" not in user.packages()["zeta"]
        assert ran.warnings == []


@pytest.mark.parametrize("fault", [None, Status(503)])
def test_aiohttp_is_imported_for_other_answers_alone(tmp_path: Path, fault: Fault | None) -> None:
    """Its import takes longer than the requests of a lock. A lock for macOS has no image, and needs no registry."""
    with IndexServer(ecosystem.diamond(), RANGED) as index:
        if fault is not None:
            index.fail(APP_PAGE, fault, times=1)
        user = User(tmp_path, index.url)
        user.wants("app", as_of=AS_OF, platforms=["osx-arm64"])
        command = [sys.executable, "-X", "importtime", "-m", "envspec", "lock", str(user.spec)]
        ran = subprocess.run(command, cwd=tmp_path, env=user.environ, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "app==1.0.0" in (user.lock / "requirements.osx-arm64.txt").read_text()
        imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
        found = imported & {"aiohttp", "multidict", "yarl"}
        assert bool(found) is (fault is not None)
