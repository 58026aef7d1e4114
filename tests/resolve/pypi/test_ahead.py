"""What is fetched ahead: along the chain of requirements, by the routes, and never as an observation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders.ecosystem import release
from tests.support.servers.faults import Body, Fault, Stall, Status
from tests.support.servers.index import IndexServer
from tests.support.user import User, routed

AS_OF = "2026-06-01T00:00:00Z"


def paths(index: IndexServer) -> list[str]:
    return [request.path for request in index.requests]


def test_a_guess_that_no_index_has_changes_nothing(tmp_path: Path) -> None:
    # The newest release that the spec allows requires what does not exist: the resolver takes an older one.
    files = [
        release("lib", "1.0"),
        release("lib", "2.0", requires=["absent>=1", "other"]),
        release("other", "1.0", requires=["lib<2"]),
    ]
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=AS_OF)
        user.locked()
        assert user.pins() == {"lib": "1.0"}
        assert "/simple/absent/" in paths(index)


@pytest.mark.parametrize("fault", [Status(500), Body(b"<html>a login</html>"), Stall()])
def test_a_guess_that_fails_or_never_ends_changes_nothing(tmp_path: Path, fault: Fault) -> None:
    files = [
        release("pin", "1.0", requires=["lib<2"]),
        release("lib", "1.0"),
        release("lib", "2.0", requires=["guessed"]),
        release("guessed", "1.0"),
    ]
    with IndexServer(files) as index:
        index.fail("/simple/guessed/", fault)
        user = User(tmp_path, index.url)
        user.wants("pin", "lib", as_of=AS_OF)
        user.locked()
        assert user.pins() == {"lib": "1.0", "pin": "1.0"}
        assert "/simple/guessed/" in paths(index)


def test_names_of_a_private_index_are_fetched_from_it_alone(tmp_path: Path) -> None:
    with (
        IndexServer([release("lib", "1.0", requires=["corp-tool"])]) as public,
        IndexServer([release("corp-tool", "1.0", requires=["corp-core"]), release("corp-core", "1.0")]) as private,
    ):
        user = User(tmp_path, public.url)
        user.wants("lib", as_of=AS_OF, rest=routed("corp", private.url, "corp-*"))
        user.locked()
        assert user.pins().keys() == {"lib", "corp-tool", "corp-core"}
        assert not [path for path in paths(public) if "corp" in path]


@pytest.mark.parametrize(
    ("requires", "is_fetched"),
    [("other", True), ("other; python_version < '3'", False), ("other; extra == 'web'", False)],
)
def test_requirements_that_do_not_apply_are_not_fetched(tmp_path: Path, requires: str, is_fetched: bool) -> None:
    with IndexServer([release("lib", "1.0", requires=[requires]), release("other", "1.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=AS_OF)
        user.locked()
        assert ("/simple/other/" in paths(index)) is is_fetched


def test_what_an_override_removes_is_not_fetched(tmp_path: Path) -> None:
    removed = 'overrides = [{ requirement = "other", remove = true, reason = "not used" }]'
    with IndexServer([release("lib", "1.0", requires=["other"]), release("other", "1.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=AS_OF, pip=removed)
        user.locked()
        assert "/simple/other/" not in paths(index)


def test_a_marker_that_no_environment_defines_hides_no_release(tmp_path: Path) -> None:
    requires = ["other; 'web' in extras", "third"]
    with IndexServer([release("lib", "1.0", requires=requires), release("third", "1.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=AS_OF)
        user.locked()
        assert user.pins() == {"lib": "1.0", "third": "1.0"}


def test_a_constraint_alone_requests_no_page(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0"), release("other", "1.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", as_of=AS_OF, pip='constraints = ["other<2"]')
        user.locked()
        assert "/simple/other/" not in paths(index)


def test_packages_of_the_lock_before_are_no_observation(tmp_path: Path) -> None:
    with IndexServer([release("lib", "1.0"), release("other", "1.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("lib", "other", as_of=AS_OF)
        user.locked()
        before = paths(index)
        user.wants("lib", as_of=AS_OF)
        user.locked()
        assert user.pins() == {"lib": "1.0"}
        assert paths(index) == before
