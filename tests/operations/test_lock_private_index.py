"""Private indexes: their names come from there and from nowhere else, and their credentials stay where they belong.

What fails, lacks a name or leads elsewhere is in tests/security/test_private_indexes.py and test_secrets.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import release
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import wheel
from tests.support.servers.faults import Body
from tests.support.servers.index import IndexServer
from tests.support.servers.pages import JSON_TYPE
from tests.support.user import User, a_second_later, refused, routed

LOGIN = ("user", "s3cr3t-t0ken")
CORE = wheel("corp-core", "1.2.0")


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
    """Required by the spec, by a package of the private index, and by one of the public index."""
    user.wants(asked, rest=routed("corp", corp.url, "corp-*"))
    user.locked()
    core = user.packages()["corp-core"]
    assert core["version"] == "1.2.0"
    assert core["file"]["index"] == "corp"
    assert core["file"]["url"] == corp.file_url(CORE.filename)
    assert public.requests_for("*corp-*") == []
    # What is not routed there is not requested there.
    assert {request.path.split("/")[2] for request in corp.requests} <= {"corp-core", "corp-app"}
    # Without the route the public one wins: otherwise this test shows nothing.
    if asked == "innocent":
        user.wants(asked)
        user.locked()
        assert user.pins()["corp-core"] == "99.0.0"


def test_a_name_has_precedence_over_a_pattern(user: User, serve: Serve, corp: IndexServer) -> None:
    special = serve([release("corp-core", "0.1.0")])
    user.wants("corp-app", rest=routed("corp", corp.url, "corp-*") + routed("special", special.url, "Corp_Core"))
    # corp-app needs corp-core>=1, the index of the name has only 0.1.0: no solution, and no fallback.
    assert "corp-core" in refused(user.locks(), 4)
    assert user.pins_of(
        "corp-core", rest=routed("corp", corp.url, "corp-*") + routed("special", special.url, "Corp_Core")
    ) == {"corp-core": "0.1.0"}


def test_credentials_are_not_a_part_of_the_spec_that_a_lock_belongs_to(user: User, serve: Serve) -> None:
    corp = serve(ecosystem.private(), credentials=LOGIN)
    user.wants("corp-app", as_of="2026-01-01T00:00:00Z", rest=routed("corp", corp.url_with_credentials, "corp-*"))
    user.locked()
    before = user.files()
    changed = corp.url.replace("//", "//user:0ther@")
    user.wants("corp-app", as_of="2026-01-01T00:00:00Z", rest=routed("corp", changed, "corp-*"))
    user.locked("--check")
    user.locked()
    assert user.files() == before


def page_with_link(url: str) -> Body:
    """A page of corp-core with one file, at `url`."""
    hashes = {"sha256": CORE.sha256}
    row = {"filename": CORE.filename, "url": url, "hashes": hashes, "upload-time": "2024-01-01T00:00:00Z"}
    page = {"meta": {"api-version": "1.1"}, "name": "corp-core", "files": [row]}
    return Body(json.dumps(page).encode(), JSON_TYPE)


@pytest.mark.parametrize("link_login", ["", "link-user:link-pass@"])
def test_files_on_another_port_get_no_credentials_and_keep_none(user: User, serve: Serve, link_login: str) -> None:
    """An index may link to `http://user:password@elsewhere/`, too."""
    corp, cdn = serve(ecosystem.private(), credentials=LOGIN), serve(ecosystem.private())
    url = cdn.file_url(CORE.filename)
    corp.fail("/simple/corp-core/", page_with_link(url.replace("//", f"//{link_login}")))
    user.wants("corp-core", rest=routed("corp", corp.url_with_credentials, "corp-core", files=[cdn.root]))
    user.locked()
    assert cdn.requests
    assert link_login or not any("authorization" in request.headers for request in cdn.requests)
    assert user.packages()["corp-core"]["file"]["url"] == url
    assert LOGIN[1].encode() not in user.leaves().replace(user.spec.read_bytes(), b"")


def test_as_of_bounds_a_private_index_too(user: User, serve: Serve) -> None:
    corp = serve([release("corp-core", "1.0.0", "2024-01-01"), release("corp-core", "2.0.0", "2025-06-01")])
    assert user.pins_of("corp-core", as_of="2025-05-01T00:00:00Z", rest=routed("corp", corp.url, "corp-core")) == {
        "corp-core": "1.0.0"
    }


def test_files_of_other_projects_on_a_page_are_not_taken(tmp_path: Path, serve: Serve, corp: IndexServer) -> None:
    """A public page that lists a wheel of a private name under its own name does not smuggle it in."""
    stranger = File(wheel("corp-core", "99.0.0"), day("2024-01-01"))
    user = User(tmp_path, serve([release("innocent", "1.0.0", requires=["corp-core"]), stranger]).url)
    assert user.pins_of("innocent", rest=routed("corp", corp.url, "corp-*")) == {
        "corp-core": "1.2.0",
        "innocent": "1.0.0",
    }


def test_files_of_a_page_of_links_are_fetched_once_and_hashed(tmp_path: Path, serve: Serve) -> None:
    """Such pages give no hashes; a file is fetched again for a later `as_of`, since it may have changed."""
    public, corp = serve(ecosystem.diamond()), serve(ecosystem.private())
    rest = routed("corp", f"{corp.root}/links.html", "corp-*") + 'format = "links"\n'
    user = User(tmp_path, public.url)
    path = f"/files/corp-core/{CORE.filename}"
    for asked in (["corp-core"], ["corp-core", "base"]):
        user.wants(*asked, rest=rest)
        user.locked()
        assert user.packages()["corp-core"]["file"] == {
            "index": "corp",
            "filename": CORE.filename,
            "size_bytes": CORE.size_bytes,
            "sha256": CORE.sha256,
            "hash": "measured",
            "url": corp.file_url(CORE.filename),
        }
        assert [request.range for request in corp.requests_for(path)].count("") == 1
        user.locked("--check")
    rebuilt = wheel("corp-core", "1.2.0", files={"corp_core/other.py": b"# rebuilt\n"})
    corp.remove("corp-core")
    corp.add(File(rebuilt, day("2024-01-01")))
    a_second_later()
    user.locked("--upgrade")
    assert user.packages()["corp-core"]["file"]["sha256"] == rebuilt.sha256
