"""A lock of dependency groups belongs to their lines, wherever they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.documents import parse_toml
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

SPEC = """[env]
name = "small"
python = "3.11.7"
as_of = 2025-06-15

[pip]
groups = ["../pyproject.toml:train"]

[variants.more.pip]
groups = ["../pyproject.toml:more"]
"""
PROJECT = '[dependency-groups]\ntrain = ["one"]\nmore = ["two"]\n'


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([release(name, "1.0.0") for name in ("one", "two", "three")]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    (tmp_path / "specs").mkdir()
    user.spec = tmp_path / "specs" / "small.toml"
    user.writes(SPEC)
    project(user, PROJECT)
    succeeded(user.runs("lock", "small"))
    return user


def project(user: User, text: str) -> None:
    (user.folder / "pyproject.toml").write_text(text)


def pins(user: User) -> tuple[set[str], set[str]]:
    """The names in both locks."""
    return names(user.folder / "locks" / "small"), names(user.folder / "locks" / "small-more")


def names(lock: Path) -> set[str]:
    document = parse_toml((lock / "envspec.lock").read_text())
    return {each["name"] for each in document["resolution"][0]["package"]}


def test_a_lock_follows_its_groups(user: User) -> None:
    assert pins(user) == ({"one"}, {"one", "two"})
    succeeded(user.runs("lock", "small", "--check"))
    succeeded(user.runs("lock", "small", "--verify"))
    # What no group says does not matter.
    project(user, f'[project]\nname = "x"\n\n{PROJECT}  # a comment\nother = ["unknown"]\n')
    succeeded(user.runs("lock", "small", "--check"))
    before = user.files()
    assert succeeded(user.runs("lock", "small")).stderr.count("wrote") == 0 and user.files() == before
    # The variant's group alone.
    project(user, PROJECT.replace('"two"', '"two", "three"'))
    stale = user.runs("lock", "small", "--check")
    assert stale.status == 3 and "a dependency group that it names (../pyproject.toml:train, ../pyproj" in stale.stderr
    succeeded(user.runs("lock", "small"))
    assert pins(user) == ({"one"}, {"one", "two", "three"})
    project(user, PROJECT.replace('"one"', '"three"'))
    assert user.runs("lock", "small", "--check").status == 3
    succeeded(user.runs("lock", "small"))
    assert pins(user) == ({"three"}, {"three", "two"})
    succeeded(user.runs("lock", "small", "--check"))


def test_places_of_later_stages(user: User) -> None:
    url = "https://${NOT_SET}@example.com/one-1-py3-none-any.whl"
    project(user, f'[dependency-groups]\nmore = []\ntrain = [\n  "one @ {url}",\n]\n')
    error = refused(user.runs("lock", "small"), 2)
    assert "pyproject.toml:4: dependency-groups.train[0]: the login is in the variable NOT_SET" in error


@pytest.mark.parametrize("text", ["[dependency-groups]\n", "nonsense", None])
def test_groups_that_are_gone(user: User, text: str | None) -> None:
    user.writes(SPEC.partition("[variants")[0])
    (user.folder / "pyproject.toml").unlink()
    if text is not None:
        project(user, text)
    before = user.files()
    for words in ("--check", "--verify", "--offline"):
        error = refused(user.runs("lock", "small", words), 2)
        assert error.startswith("specs/small.toml:7: pip.groups[0]: ")
    assert user.files() == before
