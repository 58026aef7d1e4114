"""What `envspec lock` says to do where a user of [conda] has forgotten something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

#: Nobody listens there.
FORGE: Final = "http://127.0.0.1:9/forge"
DECEMBER: Final = "2025-12-15T00:00:00Z"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge(GOLDEN_PYTHON))


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([release("stats", "1.0.0")]) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url, NO_PROXY="127.0.0.1")


def wants(user: User, *dependencies: str) -> None:
    rest = f"[conda]\nchannels = ['{FORGE}']\ndependencies = {list(dependencies)}\n"
    user.wants("stats", as_of=DECEMBER, python="3.12", rest=rest)


def test_a_channel_that_the_lock_has_a_part_of_is_not_to_be_had(user: User, channel: CondaChannel) -> None:
    wants(user, "numpy")
    again = f"the lock was made from a part of {FORGE}: --channel-repodata {FORGE}=DIR uses such a part again"
    assert again not in refused(user.locks(), 5)
    part = f"{FORGE}={channel.folder}"
    assert user.locks("--channel-repodata", part).status == 0
    assert "nothing changed" in user.locks().stderr
    before = user.files()
    for options in (["--upgrade"], ["--upgrade", "--offline"]):
        assert again in refused(user.locks(*options), 5)
    wants(user, "numpy", "ffmpeg")
    assert again in refused(user.locks(), 5)
    assert user.files() == before
    assert user.locks("--channel-repodata", part).status == 0


def test_a_name_that_nobody_has_is_reported_also_where_nothing_may_move(user: User, channel: CondaChannel) -> None:
    wants(user, "numpy")
    part = f"{FORGE}={channel.folder}"
    assert user.locks("--channel-repodata", part).status == 0
    message = refused(user.locks("--channel-repodata", part, "--upgrade-package", "nunpy"), 2)
    assert "--upgrade-package nunpy: no such package in the lock or the spec" in message
    assert "did you mean numpy?" in message


@pytest.mark.parametrize(
    ("asked", "locked"),
    [("numpy=2.2", "2.2.6"), ("numpy==2.2.*", "2.2.6"), ("numpy 2.2.6", "2.2.6"), ("numpy=2.2.6=*", "2.2.6")],
)
def test_forms_that_conda_users_write(user: User, channel: CondaChannel, asked: str, locked: str) -> None:
    wants(user, asked)
    user.locked("--channel-repodata", f"{FORGE}={channel.folder}")
    rows = [row for resolution in user.document()["resolution"] for row in resolution["conda"]]
    assert [row["version"] for row in rows if row["name"] == "numpy"] == [locked]


def test_rows_of_a_channel_for_a_spec_without_conda(user: User, channel: CondaChannel) -> None:
    user.wants("stats", as_of=DECEMBER, python="3.12")
    message = refused(user.locks("--channel-repodata", f"{FORGE}={channel.folder}"), 2)
    assert "--channel-repodata: the spec has no [conda]" in message
