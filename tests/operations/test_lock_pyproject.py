"""A lock of dependency groups belongs to their lines, wherever they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.documents import parse_toml
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

SPEC = """dependencies_from = ["../pyproject.toml:group:train"]

[env]
name = "small"
python = "3.11.7"
as_of = 2025-06-15

[variants.more]
dependencies_from = ["../pyproject.toml:group:more"]
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
    assert stale.status == 3 and "a line that it reads from pyproject.toml (../pyproject.toml:group:tr" in stale.stderr
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
        assert error.startswith("specs/small.toml:1: dependencies_from[0]: ")
    assert user.files() == before


WHOLE = """[project]
name = "My_Trainer"
requires-python = "==3.11.*"
dependencies = ["one"]

[project.optional-dependencies]
more = ["two"]

[tool.envspec]
dependencies_from = ["project"]
"""


@pytest.fixture
def whole(tmp_path: Path, index: IndexServer) -> User:
    """A user whose spec is a table of pyproject.toml."""
    user = User(tmp_path, index.url)
    user.spec = tmp_path / "pyproject.toml"
    user.writes(WHOLE)
    succeeded(user.runs("lock", "pyproject.toml", "--as-of", "2025-06-15"))
    return user


def test_a_table_of_pyproject_is_a_spec(whole: User) -> None:
    lock, text = whole.folder / "locks" / "my-trainer", whole.spec.read_text()
    assert text == f"{WHOLE}\n[tool.envspec.env]\nas_of = 2025-06-15T00:00:00Z\n"
    assert names(lock) == {"one"}
    header = parse_toml((lock / "envspec.lock").read_text())
    assert (header["name"], header["spec"]) == ("my-trainer", "../../pyproject.toml")
    succeeded(whole.runs("lock", ".", "--check"))
    succeeded(whole.runs("lock", f"{whole.folder}/", "--verify"))
    assert "lock it: `envspec lock pyproject.toml`" not in refused(whole.runs("explain", "pyproject.toml"), 2)
    # What the spec does not take belongs to others.
    whole.writes(text.replace('more = ["two"]', 'more = ["three"]\n\n[tool.ruff]\nline-length = 100'))
    succeeded(whole.runs("lock", ".", "--check"))
    for old, new in (('dependencies = ["one"]', 'dependencies = ["three"]'), ('"==3.11.*"', '"==3.12.*"')):
        whole.writes(text.replace(old, new))
        stale = whole.runs("lock", ".", "--check")
        assert stale.status == 3 and "a line that it reads from pyproject.toml (project)" in stale.stderr
    whole.writes(text.replace('["project"]', '["project", "extra:more"]'))
    succeeded(whole.runs("lock", "."))
    assert names(lock) == {"one", "two"}


def test_dates_in_a_table_of_pyproject(whole: User) -> None:
    succeeded(whole.runs("lock", ".", "--as-of", "2025-07-01"))
    assert whole.spec.read_text() == f"{WHOLE}\n[tool.envspec.env]\nas_of = 2025-07-01T00:00:00Z\n"
    succeeded(whole.runs("lock", ".", "--upgrade-package", "one", "--as-of", "2025-07-02"))
    succeeded(whole.runs("lock", ".", "--check"))


def test_code_without_an_image(whole: User) -> None:
    whole.writes(f'{whole.spec.read_text()}\n[tool.envspec.image]\nproject = "wheel"\ncopy = ["src"]\n')
    said = succeeded(whole.runs("lock", ".")).stderr
    assert "only an image has [image] project and [image] copy, and the spec has no base for one" in said


def test_a_pyproject_without_the_table(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    (tmp_path / "pyproject.toml").write_text(WHOLE.partition("[tool.envspec]")[0])
    for argument in (".", "pyproject.toml"):
        error = refused(user.runs("lock", argument), 2)
        assert "pyproject.toml is a pyproject.toml without [tool.envspec], not a spec" in error
