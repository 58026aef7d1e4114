"""Two specs with one `env.name`: neither writes the other's lock."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.builders.ecosystem import release
from tests.support.servers.faults import Answer, Wire
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

TEXT = '[env]\nname = "small"\npython = "3.11.7"\nas_of = 2025-06-15\n\n[pip]\ndependencies = ["{}"]\n'


@dataclass(frozen=True)
class Meanwhile:
    """The usual answer, after something was done."""

    done: Callable[[], object]

    def play(self, wire: Wire) -> Answer:
        self.done()
        return wire.honest()


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([release("one", "1.0.0"), release("two", "1.0.0")]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    (tmp_path / "specs").mkdir()
    user.spec = tmp_path / "specs" / "first.toml"
    user.writes(TEXT.format("one"))
    assert user.runs("lock", "first").status == 0
    return user


def test_another_spec_of_one_name_is_refused(user: User) -> None:
    assert user.document()["spec"] == "../../specs/first.toml"
    other = user.folder / "other.toml"
    other.write_text(TEXT.format("two"))
    before = user.files()
    for _ in range(2):
        error = refused(user.runs("lock", "other.toml"), 2)
        assert error == (
            "locks/small is the lock of specs/first.toml: other.toml would overwrite it\n"
            "  hint: give one of them another `[env] name`, write its lock elsewhere with --output DIR, or delete it"
        )
        assert user.files() == before
        # Locked elsewhere, its lock is in the cache.
        assert user.runs("lock", "other.toml", "--output", "elsewhere").status == 0
    stale = user.runs("lock", "other.toml", "--check")
    assert stale.status == 3 and "locks/small is the lock of specs/first.toml" in stale.stderr
    # By each way out.
    user.spec.write_text(TEXT.format("one").replace("small", "first"))
    assert user.runs("lock", "other.toml").status == 0
    assert user.pins() == {"two": "1.0.0"}


def test_a_spec_that_was_locked_meanwhile_keeps_its_lock(user: User, index: IndexServer) -> None:
    before, aside = user.files(), user.folder / "aside"
    user.lock.rename(aside)
    other = user.folder / "other.toml"
    other.write_text(TEXT.format("three"))
    index.add(release("three", "1.0.0"))
    index.fail("/simple/three/", Meanwhile(lambda: aside.rename(user.lock)), times=1)
    assert "locks/small is the lock of specs/first.toml" in refused(user.runs("lock", "other.toml"), 2)
    assert user.files() == before


@pytest.mark.parametrize("place", ["specs/second.toml", "second.toml", "deep/er/first.toml"])
def test_a_spec_that_was_moved_keeps_its_lock(user: User, place: str) -> None:
    (user.folder / place).parent.mkdir(parents=True, exist_ok=True)
    user.spec.rename(user.folder / place)
    before = user.files()
    # The lock names the old place, from which an image would get its files.
    stale = user.runs("lock", place, "--check")
    assert stale.status == 3 and f"{place} is ../../{place} from there" in stale.stderr, stale
    assert user.runs("lock", place).status == 0
    assert user.runs("lock", place, "--check").status == 0
    assert user.runs("lock", place, "--verify").status == 0
    after = user.files()
    assert after.keys() == before.keys() and after["requirements.linux-64.txt"] == before["requirements.linux-64.txt"]
    (user.folder / place).write_text(TEXT.format("two"))
    assert user.runs("lock", place).status == 0
    assert user.pins() == {"two": "1.0.0"}


def test_a_project_that_was_copied_keeps_its_locks(user: User) -> None:
    copy = user.folder / "copy"
    shutil.copytree(user.folder / "specs", copy / "specs")
    shutil.copytree(user.folder / "locks", copy / "locks")
    user.folder = copy
    (copy / "specs" / "first.toml").write_text(TEXT.format("two"))
    assert user.runs("lock", "first").status == 0
    assert user.pins() == {"two": "1.0.0"}


def test_a_link_to_a_spec_is_the_spec(user: User) -> None:
    (user.folder / "link.toml").symlink_to("specs/first.toml")
    user.writes(TEXT.format("two"))
    assert user.runs("lock", "link.toml").status == 0
    assert user.pins() == {"two": "1.0.0"}
