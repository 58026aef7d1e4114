"""Private indexes: their names come from there and from nowhere else, and their credentials stay where they belong."""

from __future__ import annotations

import base64
import json
import urllib.parse
from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import release
from tests.support.builders.projects import PLAIN, File, day
from tests.support.builders.wheels import wheel
from tests.support.servers.faults import Body, Status
from tests.support.servers.index import IndexServer
from tests.support.servers.pages import JSON_TYPE
from tests.support.user import User, refused, routed

SECRET = "s3cr3t-t0ken"


@pytest.fixture
def public(serve: Serve) -> IndexServer:
    return serve([*ecosystem.public_twin(), *ecosystem.diamond()])


@pytest.fixture
def corp(serve: Serve) -> IndexServer:
    return serve(ecosystem.private())


@pytest.fixture
def user(tmp_path: Path, public: IndexServer) -> User:
    return User(tmp_path, public.url)


@pytest.mark.parametrize("asked", ["corp-core", "corp-app", "innocent"])
def test_a_public_package_of_a_private_name_never_wins(
    user: User, public: IndexServer, corp: IndexServer, asked: str
) -> None:
    """Asked by the spec, by a package of the private index, and by one of the public index."""
    user.wants(asked, rest=routed("corp", corp.url, "corp-*"))
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    core = user.packages()["corp-core"]
    assert core["version"] == "1.2.0"
    assert core["file"]["index"] == "corp"
    assert core["file"]["url"] == corp.file_url("corp_core-1.2.0-py3-none-any.whl")
    assert public.requests_for("*corp-*") == []
    # What isn't routed there isn't asked there.
    assert {request.path.split("/")[2] for request in corp.requests} <= {"corp-core", "corp-app"}


def test_without_a_route_the_public_one_is_taken(user: User) -> None:
    """The tests above would pass with any index that lacks the stranger's package."""
    user.wants("innocent")
    assert user.locks().status == 0
    assert user.pins()["corp-core"] == "99.0.0"


@pytest.mark.parametrize("asked", ["corp-core", "innocent"])
def test_a_name_missing_there_is_an_error(user: User, public: IndexServer, corp: IndexServer, asked: str) -> None:
    corp.remove("corp-core")
    user.wants(asked, rest=routed("corp", corp.url, "corp-*"))
    error = refused(user.locks(), 5)
    assert error.startswith(f"index corp ({corp.url}) does not have corp-core")
    assert public.requests_for("*corp-*") == []
    assert user.files() == {}


def test_a_failing_private_index_is_an_error(user: User, public: IndexServer, corp: IndexServer) -> None:
    corp.fail("/simple/corp-core/", Status(500))
    user.wants("innocent", rest=routed("corp", corp.url, "corp-core"))
    assert f"{corp.url}corp-core/: HTTP 500" in refused(user.locks(), 5)
    assert public.requests_for("*corp-*") == []


def test_a_name_goes_before_a_pattern(user: User, serve: Serve, corp: IndexServer) -> None:
    special = serve([release("corp-core", "0.1.0")])
    user.wants("corp-app", rest=routed("corp", corp.url, "corp-*") + routed("special", special.url, "Corp_Core"))
    # corp-app asks corp-core>=1: the index of the name has 0.1.0 only, so there is no solution, and no fallback.
    assert "corp-core" in refused(user.locks(), 4)
    user.wants("corp-core", rest=routed("corp", corp.url, "corp-*") + routed("special", special.url, "Corp_Core"))
    assert user.locks().status == 0
    assert user.pins() == {"corp-core": "0.1.0"}


def test_credentials_reach_the_index_and_nothing_else(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    corp = serve(ecosystem.private(), credentials=("user@corp", SECRET))
    user = User(tmp_path, public.url)
    quoted = urllib.parse.quote("user@corp", safe="")
    url = corp.url.replace("http://", f"http://{quoted}:{SECRET}@")
    spec = user.wants("corp-app", rest=routed("corp", url, "corp-*"))
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.pins() == {"base": "2.0.0", "corp-app": "3.0.0", "corp-core": "1.2.0"}
    assert all(request.status in (200, 206) for request in corp.requests)
    spec.unlink()
    encoded = base64.b64encode(f"user@corp:{SECRET}".encode())
    for secret in (SECRET.encode(), encoded, quoted.encode(), b"user@corp"):
        assert secret not in user.leaves()
        assert secret not in (ran.stdout + ran.stderr).encode()
    assert not any("authorization" in request.headers for request in public.requests)


def test_wrong_credentials_are_reported_without_them(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    corp = serve(ecosystem.private(), credentials=("user", SECRET))
    user = User(tmp_path, public.url)
    user.wants("corp-app", rest=routed("corp", corp.url.replace("//", "//user:wr0ng@"), "corp-*"))
    ran = user.locks("--debug")
    assert ran.status == 5
    assert f"{corp.url}corp-app/: HTTP 401" in ran.error
    assert "wr0ng" not in ran.stderr


def test_a_changed_password_asks_again_and_locks_the_same(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    corp = serve(ecosystem.private(), credentials=("user", SECRET))
    user = User(tmp_path, public.url)
    user.wants("corp-app", as_of="2026-01-01T00:00:00Z", rest=routed("corp", corp.url_with_credentials, "corp-*"))
    assert user.locks().status == 0
    before = user.files()
    user.wants(
        "corp-app", as_of="2026-01-01T00:00:00Z", rest=routed("corp", corp.url.replace("//", "//user:0ther@"), "corp-*")
    )
    # The lock still belongs to the spec: credentials are not a part of it.
    assert user.locks("--check").status == 0
    assert user.locks().status == 0
    assert user.files() == before


def page_with_link(url: str) -> Body:
    """A page of corp-core whose one file lies at `url`."""
    artifact = wheel("corp-core", "1.2.0")
    row = {
        "filename": artifact.filename,
        "url": url,
        "hashes": {"sha256": artifact.sha256},
        "upload-time": "2024-01-01T00:00:00Z",
    }
    page = {"meta": {"api-version": "1.1"}, "name": "corp-core", "files": [row]}
    return Body(json.dumps(page).encode(), JSON_TYPE)


def test_files_on_the_same_host_get_the_credentials_and_others_do_not(
    tmp_path: Path, serve: Serve, public: IndexServer
) -> None:
    corp = serve(ecosystem.private(), credentials=("user", SECRET))
    cdn = serve(ecosystem.private())
    user = User(tmp_path, public.url)
    name = "corp_core-1.2.0-py3-none-any.whl"
    corp.fail("/simple/corp-core/", page_with_link(cdn.file_url(name)))
    user.wants("corp-core", rest=routed("corp", corp.url_with_credentials, "corp-core", files=[cdn.root]))
    assert user.locks().status == 0
    assert cdn.requests and not any("authorization" in request.headers for request in cdn.requests)
    assert user.packages()["corp-core"]["file"]["url"] == cdn.file_url(name)


def test_the_same_host_by_another_port_is_another_host(tmp_path: Path, serve: Serve, public: IndexServer) -> None:
    """An index may link to `http://user:password@elsewhere/`: its words never reach a lock."""
    corp = serve(ecosystem.private(), credentials=("user", SECRET))
    cdn = serve(ecosystem.private())
    user = User(tmp_path, public.url)
    name = "corp_core-1.2.0-py3-none-any.whl"
    link = cdn.file_url(name).replace("//", "//link-user:link-pass@")
    corp.fail("/simple/corp-core/", page_with_link(link))
    user.wants("corp-core", rest=routed("corp", corp.url_with_credentials, "corp-core", files=[cdn.root]))
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert b"link-pass" not in b"".join(user.files().values())
    assert SECRET.encode() not in user.leaves().replace(user.spec.read_bytes(), b"")


def test_an_undated_index_is_refused_unless_the_spec_accepts_it(tmp_path: Path, serve: Serve) -> None:
    corp = serve(ecosystem.private(), PLAIN)
    user = User(tmp_path, serve(ecosystem.diamond()).url)
    user.wants("corp-app", rest=routed("corp", corp.url, "corp-*"))
    error = refused(user.locks(), 5)
    assert "index corp gives no upload times for corp-app" in error
    assert 'undated = "accept"' in error
    user.wants("corp-app", rest=routed("corp", corp.url, "corp-*", undated="accept"))
    assert user.locks().status == 0
    assert user.pins() == {"base": "2.0.0", "corp-app": "3.0.0", "corp-core": "1.2.0"}


def test_as_of_bounds_a_private_index_too(tmp_path: Path, serve: Serve) -> None:
    corp = serve([release("corp-core", "1.0.0", "2024-01-01"), release("corp-core", "2.0.0", "2025-06-01")])
    user = User(tmp_path, serve().url)
    user.wants("corp-core", as_of="2025-05-01T00:00:00Z", rest=routed("corp", corp.url, "corp-core"))
    assert user.locks().status == 0
    assert user.pins() == {"corp-core": "1.0.0"}


def test_what_a_page_shows_of_other_projects_is_not_taken(tmp_path: Path, serve: Serve) -> None:
    """A public page that lists a wheel of a private name under its own name does not smuggle it in."""
    corp = serve(ecosystem.private())
    stranger = File(wheel("corp-core", "99.0.0"), day("2024-01-01"))
    public = serve([release("innocent", "1.0.0", requires=["corp-core"]), stranger])
    user = User(tmp_path, public.url)
    user.wants("innocent", rest=routed("corp", corp.url, "corp-*"))
    assert user.locks().status == 0
    assert user.pins() == {"corp-core": "1.2.0", "innocent": "1.0.0"}


def test_direct_wheels_keep_their_credentials_to_themselves(tmp_path: Path, serve: Serve) -> None:
    files = serve(ecosystem.private(), credentials=("user", SECRET))
    user = User(tmp_path, serve([*ecosystem.diamond()]).url)
    address = files.file_url("corp_core-1.2.0-py3-none-any.whl")
    spec = user.wants(f"corp-core @ {address.replace('//', f'//user:{SECRET}@')}")
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert user.packages()["corp-core"]["file"]["url"] == address
    spec.unlink()
    assert SECRET.encode() not in user.leaves()
