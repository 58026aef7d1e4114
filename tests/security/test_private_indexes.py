"""A private index that fails or leads elsewhere: none of its names is taken from the public one or requested there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from envspec.fetch.wheels import login_hint, logins
from envspec.origins import Bounds
from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import release
from tests.support.builders.environments import BASE, RUNNING
from tests.support.builders.projects import PLAIN, Compression, Dialect, File, Hashes, MetadataFiles, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.servers.faults import Body, Drip, Drop, Fault, Stall, Status, Truncate
from tests.support.servers.index import IndexServer
from tests.support.servers.pages import JSON_TYPE
from tests.support.user import User, refused, routed, succeeded

PAGE: Final = "/simple/corp-core/"
WHEEL: Final = "corp_core-1.2.0-py3-none-any.whl"
POISONED: Final = "corp_core-99.0.0-py3-none-any.whl"
#: What a stranger has on the public index: a higher version, and each kind that some resolver prefers.
POISON: Final = ("99.0.0", "99.1.0rc1", "1.2.0+corp", "1.2.0.post1", "1!0.1")
#: For servers that never come to an end.
HURRIED: Final = {"ENVSPEC_HTTP_ATTEMPTS": "1", "ENVSPEC_HTTP_STALL_S": "0.5", "ENVSPEC_HTTP_TOTAL_S": "0.8"}
FRIENDLY: Final = Dialect()
WITHOUT_METADATA: Final = Dialect(metadata=MetadataFiles.NONE)
UNHASHED: Final = Dialect(metadata=MetadataFiles.TRUE)
ELSEWHERE: Final = "which is not on a server of index corp: nothing was read\n  hint: add "


@dataclass(frozen=True)
class Case:
    """faults: of paths, by the public index. message: parts of it. status: the exit code. dialect: the index's."""

    faults: Callable[[IndexServer], dict[str, Fault]]
    message: tuple[str, ...]
    status: int = 5
    dialect: Dialect = FRIENDLY
    slow: bool = False


def on_page(fault: Fault, *message: str, status: int = 5, slow: bool = False) -> Case:
    return Case(lambda _: {PAGE: fault}, message, status, slow=slow)


def moved(status: int, to: str = "{url}corp-core/") -> Case:
    """to: with the public index's pages as `{url}`, and host and port as `{host}`."""

    def faults(public: IndexServer) -> dict[str, Fault]:
        return {PAGE: Status(status, {"Location": to.format(url=public.url, host=f"127.0.0.1:{public.port}")})}

    return Case(faults, (f"{PAGE}: redirects to ", ELSEWHERE))


def in_two_hops(public: IndexServer) -> dict[str, Fault]:
    return {PAGE: Status(302, {"Location": "/login"}), "/login": Status(302, {"Location": f"{public.url}corp-core/"})}


def file_moved(pattern: str) -> Callable[[IndexServer], dict[str, Fault]]:
    def faults(public: IndexServer) -> dict[str, Fault]:
        there = public.file_url(POISONED)
        return {f"/files/*{pattern}": Status(302, {"Location": there})}

    return faults


def page_with(text: str) -> Callable[[IndexServer], dict[str, Fault]]:
    """An HTML page; `{root}` is the public index's address."""
    return lambda public: {PAGE: Body(text.format(root=public.root).encode(), "text/html")}


LISTED: Final = "<a href='{}' data-upload-time='2024-01-01T00:00:00Z'>" + POISONED + "</a></body></html>"
LINK: Final = f"/files/corp-core/{POISONED}"
NOT_THERE: Final = ("is not on a server of index corp",)
NOT_A_PAGE: Final = ("index corp", "cannot be read", "simple")
CASES: Final[dict[str, Case]] = {
    **{f"{status}": moved(status) for status in (301, 302, 303, 307, 308)},
    "302 without a scheme": moved(302, "//{host}/simple/corp-core/"),
    "302 with a login": moved(302, "http://user:secret@{host}/simple/corp-core/"),
    "302 to the host by name": moved(302, "http://localhost:1/simple/corp-core/"),
    "302 to TLS": moved(302, "https://{host}/simple/corp-core/"),
    "in two hops": Case(in_two_hops, (f"{PAGE}: redirects to ", ELSEWHERE)),
    "the part of a wheel with its metadata": Case(file_moved(".whl"), (WHEEL, ELSEWHERE), dialect=WITHOUT_METADATA),
    "metadata without a hash": Case(file_moved(".whl.metadata"), (WHEEL, ELSEWHERE), dialect=UNHASHED),
    "<base href>": Case(page_with("<html><head><base href='{root}'></head><body>" + LISTED.format(LINK)), NOT_THERE),
    "links to files there": Case(page_with("<html><body>" + LISTED.format("{root}" + LINK)), NOT_THERE),
    "meta refresh": Case(
        page_with("<html><head><meta http-equiv=refresh content='0;url={root}/simple/corp-core/'></head></html>"),
        NOT_A_PAGE,
    ),
    **{f"{status}": on_page(Status(status), f"{PAGE}: HTTP {status}") for status in (401, 403, 429, 500, 503)},
    **{f"{status}": on_page(Status(status), "index corp", "does not have corp-core") for status in (404, 410)},
    "no answer": on_page(Stall(), f"{PAGE}: the server stalled", slow=True),
    "a slow drip": on_page(Drip(), PAGE, slow=True),
    "a connection that breaks": on_page(Drop(10), PAGE),
    "an empty page": on_page(Body(b"", "text/html"), *NOT_A_PAGE),
    "a login page": on_page(Body(b"<html><form>Log in</form></html>", "text/html"), *NOT_A_PAGE),
    "a login page as JSON": on_page(Body(b'{"error": "log in"}', JSON_TYPE), *NOT_A_PAGE),
    "half a page": Case(lambda _: {PAGE: Truncate(60)}, NOT_A_PAGE, dialect=Dialect(compression=Compression.NONE)),
    "half a page with gzip": on_page(Truncate(60), f"{PAGE}: the response ended early"),
}


def poisoned(serve: Serve) -> IndexServer:
    """The public index: `innocent` requires the private name, which a stranger has there."""
    return serve(
        [release("innocent", "1.0.0", requires=["corp-core"]), *(release("corp-core", each) for each in POISON)]
    )


@pytest.fixture
def public(serve: Serve) -> IndexServer:
    return poisoned(serve)


def private_requests(server: IndexServer) -> list[str]:
    """The requests of the private name, in any spelling."""
    return [request.path for request in server.requests if "core" in request.path.lower()]


def untouched(user: User, public: IndexServer) -> None:
    """Nothing of the private name was requested of the public index, and nothing was locked."""
    assert private_requests(public) == [] and user.files() == {}


def test_a_login_that_is_missing_or_wrong(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    corp = serve(ecosystem.private(), credentials=("ci", "s3cret"))
    user = User(tmp_path, public.url)
    user.wants("corp-core", rest=routed("corp", corp.url, "corp-*"))
    message = refused(user.locks(), 5)
    assert "HTTP 401 (a login is needed)" in message and "https://${TEAM_USER}:${TEAM_PASSWORD}@HOST/" in message
    user.wants("corp-core", rest=routed("corp", corp.url.replace("//", "//${CI}:${TOKEN}@"), "corp-*"))
    message = refused(user.locks(CI="ci", TOKEN="0ther"), 5)
    assert "HTTP 401 (the login is wrong)" in message and "check the user" in message and "0ther" not in message


@pytest.mark.parametrize("name", CASES)
def test_a_fault(tmp_path: Path, serve: Serve, public: IndexServer, name: str) -> None:
    case = CASES[name]
    corp = serve(ecosystem.private(), case.dialect)
    for pattern, fault in case.faults(public).items():
        corp.fail(pattern, fault)
    user = User(tmp_path, public.url, **(HURRIED if case.slow else {"ENVSPEC_HTTP_ATTEMPTS": "2"}))
    user.wants("innocent", rest=routed("corp", corp.url, "corp-*"))
    error = refused(user.locks(), case.status)
    for words in case.message:
        assert words in error, error
    assert "secret" not in error
    untouched(user, public)


def test_an_index_that_is_down(tmp_path: Path, public: IndexServer) -> None:
    with IndexServer() as corp:
        url = corp.url
    user = User(tmp_path, public.url, ENVSPEC_HTTP_ATTEMPTS="1")
    user.wants("innocent", rest=routed("corp", url, "corp-*"))
    assert f"{url}corp-core/: no connection (Connection refused)" in refused(user.locks(), 5)
    untouched(user, public)


@pytest.mark.parametrize(
    "asked",
    ["Corp.Core", "corp_core[extra]", "CORP--CORE >=1", "corp-core[a,b] >=1,!=1.1", "corp-core >=0.dev0", "corp-other"],
)
def test_other_spellings_of_a_private_name(tmp_path: Path, serve: Serve, public: IndexServer, asked: str) -> None:
    """Also as the requirement of a private package."""
    core = File(wheel("corp-core", "1.2.0", extras={"extra": (), "a": (), "b": ()}), day("2024-01-01"))
    corp = serve([release("corp-other", "1.0", requires=["Corp_Core[x]>=1"]), core])
    user = User(tmp_path, public.url)
    user.wants(asked, rest=routed("corp", corp.url, "Corp_*"))
    assert user.locks().status == 0
    assert user.pins()["corp-core"] == "1.2.0"
    assert private_requests(public) == []


@pytest.mark.parametrize("version", [">=50", "==99.0.0", ">=99.1.0rc1", "==1.2.0+corp", "==1!0.1", "==1.2.0.post1"])
def test_versions_that_the_public_index_alone_has(
    tmp_path: Path, serve: Serve, public: IndexServer, version: str
) -> None:
    corp = serve([*ecosystem.private(), File(wheel("corp-core", "60.0.0"), day("2024-02-01"), yanked="broken")])
    user = User(tmp_path, public.url)
    user.wants(f"corp-core {version}", rest=routed("corp", corp.url, "corp-*"))
    # That the only release is yanked is said by the resolver; what does not exist, with the line of the spec.
    assert "corp-core" in refused(user.locks(), 4 if version == ">=50" else 2)
    untouched(user, public)


def test_an_sdist_without_a_hash_is_not_taken_from_elsewhere(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    corp = serve([File(sdist("corp-core", "1.2.0"), day("2024-01-01"))], Dialect(hashes=Hashes.NONE))
    corp.fail("/files/*", Status(302, {"Location": public.file_url(POISONED)}))
    user = User(tmp_path, public.url)
    user.wants("corp-core", rest=routed("corp", corp.url, "corp-*"))
    assert "corp_core-1.2.0.tar.gz" in refused(user.locks(), 5)
    untouched(user, public)


def test_what_the_spec_allows_is_followed(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    """`files`: the index's other servers, for pages that are redirected and for parts of files."""
    corp, other = serve(), serve(ecosystem.private(), PLAIN)
    for path in ("/simple/*", "/files/*"):
        corp.fail(path, Status(302, {"Location": f"{other.url}corp-core/"}))
    user = User(tmp_path, public.url)
    user.wants("innocent", rest=routed("corp", corp.url, "corp-*", files=[other.root], undated="accept"))
    succeeded(user.locks())
    assert user.packages()["corp-core"]["file"]["url"] == other.file_url(WHEEL)
    assert user.document()["index"][0]["files"] == [other.root]
    assert user.locks("--check").status == 0
    # A page that came from there counts no longer than the spec allows it.
    user.wants("innocent", rest=routed("corp", corp.url, "corp-*", undated="accept"))
    assert user.locks("--check").status == 3
    assert ELSEWHERE in refused(user.locks("--upgrade"), 5)
    assert private_requests(public) == []


@pytest.mark.parametrize("words", [("--verify",), ("--upgrade",)])
def test_a_lock_of_before_is_no_way_around(
    tmp_path: Path, serve: Serve, public: IndexServer, words: tuple[str, ...]
) -> None:
    corp = serve(ecosystem.private())
    user = User(tmp_path, public.url)
    user.wants("innocent", as_of="2026-01-01T00:00:00Z", rest=routed("corp", corp.url, "corp-*"))
    assert user.locks().status == 0
    before = user.files()
    corp.fail(PAGE, Status(302, {"Location": f"{public.url}corp-core/"}))
    ran = user.locks(*words, ENVSPEC_CACHE_DIR=str(tmp_path / "another"))
    assert ran.status in (3, 5), ran
    assert ELSEWHERE in ran.stdout + ran.stderr
    assert private_requests(public) == []
    assert user.files() == before


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_locked_file_is_checked_wherever_it_comes_from(
    tmp_path: Path, serve: Serve, public: IndexServer, *, is_changed: bool
) -> None:
    """Indexes keep their files in stores that they redirect to: the login stays behind, and the lock has the hash."""
    corp, store = serve(ecosystem.private(), credentials=("me", "s3cret")), serve(ecosystem.private())
    user = User(tmp_path, public.url)
    user.wants("corp-core", python=RUNNING, rest=routed("corp", corp.url_with_credentials, "corp-*"))
    assert user.locks().status == 0
    corp.fail("/files/*", Status(302, {"Location": store.file_url(WHEEL)}))
    if is_changed:
        store.fail("/files/*", Body(wheel("corp-core", "99.0.0").data))
    (user.home / ".netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    ran = user.runs("install", user.lock, "--prefix", "env", "--python", BASE)
    if is_changed:
        assert "not the locked one" in refused(ran, 5) and not (tmp_path / "env").exists()
    else:
        assert ran.status == 0, ran.stderr
    assert store.requests and not any("authorization" in each.headers for each in store.requests)
    assert private_requests(public) == []


def test_a_page_of_the_default_index_may_be_elsewhere(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    """A mirror of it, as many are run: what it lacks, it redirects to where that is."""
    mirror, corp = serve(), serve(ecosystem.private())
    mirror.fail("/simple/innocent/", Status(302, {"Location": f"{public.url}innocent/"}))
    user = User(tmp_path, mirror.url)
    user.wants("innocent", rest=routed("corp", corp.url, "corp-*"))
    assert user.locks().status == 0
    assert user.pins() == {"corp-core": "1.2.0", "innocent": "1.0.0"}
    assert private_requests(mirror) == private_requests(public) == []


def test_pytorchs_index_redirects_to_no_other(tmp_path: Path, serve: Serve) -> None:
    """The public index has torch as well, for another CUDA."""
    public = serve(ecosystem.torch_family())
    with IndexServer((), PLAIN, prefix="/whl/cu126") as mirror:
        mirror.fail("/simple/torch/", Status(302, {"Location": f"{public.url}torch/"}))
        address = mirror.url.replace("cu126", "{variant}")
        user = User(tmp_path, public.url, ENVSPEC_PYTORCH_INDEX=address)
        user.wants("torch==2.9.1", as_of="2026-01-01T00:00:00Z", rest='[cuda]\nversion = "12.6"\n')
        error = refused(user.locks(), 5)
    assert "a server of index pytorch-cu126" in error and "ENVSPEC_PYTORCH_INDEX" in error
    assert public.requests_for("/simple/torch/") == []


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://index.corp/other", True),
        ("https://INDEX.corp:443/x", True),
        ("http://index.corp/simple", False),
        ("https://index.corp:8443/simple", False),
        ("https://index.corp./simple", False),
        ("https://index.corp@evil.example/simple", False),
        ("https://index.corp.evil.example/", False),
    ],
)
def test_which_servers_are_an_indexs_own(url: str, *, is_allowed: bool) -> None:
    own = Bounds("index corp", ["https://index.corp/simple/"], "{}")
    assert own.allows(url, redirected=True) is is_allowed


@pytest.mark.parametrize(
    ("text", "url", "hint"),
    [
        (None, "https://index.corp/a", "write a login for index.corp into ~/.netrc, or into the file that NETRC names"),
        ("machine index.corp login me password s", "https://index.corp/a", "correct the login for index.corp in NETRC"),
        ("machine other.corp login me password s", "https://index.corp/a", "add a login for index.corp to NETRC"),
        (
            "default login me password s",
            "https://index.corp/a",
            "add a login for index.corp to NETRC, whose `default` is not used",
        ),
        (
            "machine index.corp passwort s3cret",
            "https://index.corp/a",
            "NETRC can't be read: line 1 is invalid: correct it",
        ),
        (
            "machine index.corp login me password s",
            "http://index.corp/a",
            "logins of a netrc file are not sent over plain http: use an index with https",
        ),
    ],
)
def test_the_hint_of_a_refused_download_says_what_netrc_lacks(
    tmp_path: Path, text: str | None, url: str, hint: str
) -> None:
    path = tmp_path / "netrc"
    if text is not None:
        path.write_text(text + "\n")
    assert login_hint(url, {"NETRC": str(path)}).replace(str(path), "NETRC") == hint


def test_logins_of_netrc_go_to_named_hosts_over_tls(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    hosts = ("machine index.corp", "machine 127.0.0.1", "default")
    netrc.write_text("".join(f"{host} login me password s{n}\n" for n, host in enumerate(hosts)))
    urls = ["https://index.corp/a", "http://index.corp/a", "http://127.0.0.1:8/a", "https://evil.example/a"]
    found = logins(urls, {"NETRC": str(netrc)})
    assert {origin: each.secret for origin, each in found.items()} == {
        "https://index.corp": "s0",
        "http://127.0.0.1:8": "s1",
    }
