"""Whole runs of `envspec lock` with [conda]: which locks are stale, parts of channels, hints, what is imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from envspec.spec.variants import variant_directory
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.ecosystem import release
from tests.support.servers.channel import CondaServer
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

DECEMBER: Final = "2025-12-15T00:00:00Z"
FORGE: Final = "https://conda.example.com/forge"
#: Nobody listens there.
NOBODY: Final = "http://127.0.0.1:9/forge"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge(GOLDEN_PYTHON))


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([release("stats", "1.0.0"), release("plain", "1.0.0")]) as running:
        yield running


def wants(user: User, channel: str, *dependencies: str, as_of: str = DECEMBER, wheels: tuple[str, ...] = ()) -> None:
    rest = f"[conda]\nchannels = ['{channel}']\ndependencies = {list(dependencies)}\n"
    user.wants(*(wheels or ("stats",)), as_of=as_of, python="3.12", rest=rest)


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url, NO_PROXY="127.0.0.1")


def test_a_part_of_a_channel_says_so(user: User, channel: CondaChannel) -> None:
    wants(user, FORGE, "numpy", "ffmpeg")
    part = f"{FORGE}={channel.folder}"
    user.locked("--channel-repodata", part)
    checked = user.locks("--check")
    assert checked.status == 0
    [warning] = checked.warnings
    assert f"locked from a part of {FORGE}" in warning and "the whole channel may solve to something else" in warning
    explained = user.runs("explain", user.lock)
    assert explained.status == 0 and "part of" in explained.stdout, explained
    # The rows keep the channel's own addresses: what is installed comes from there.
    assert {row["url"].rpartition("/")[0].rpartition("/")[0] for row in _rows(user)} == {FORGE}
    before = user.files()
    assert "nothing changed" in user.locks("--channel-repodata", part).stderr
    assert user.files() == before


def _rows(user: User) -> list[dict[str, str]]:
    return [row for resolution in user.document()["resolution"] for row in resolution["conda"]]


@pytest.mark.parametrize("name", ["conda-linux-64.lock", "conda-lock.yml", "requirements.linux-64.txt", "envspec.lock"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_that_is_not_the_lock_s_is_stale(user: User, channel: CondaChannel, name: str, *, is_gone: bool) -> None:
    wants(user, channel.url, "ffmpeg")
    user.locked()
    before, path = user.files(), user.lock / name
    path.write_bytes(before[name].replace(b"7.1.1", b"7.0.2").replace(b"stats==1.0.0", b"stats==1.0.1"))
    assert path.read_bytes() != before[name]
    if is_gone:
        path.unlink()
    ran = user.locks("--check")
    assert ran.status == 3
    assert name in ran.stderr and "\n  hint: " in ran.stderr
    user.locked()
    assert user.files() == before


def test_files_of_a_half_that_is_gone_go(user: User, channel: CondaChannel) -> None:
    wants(user, channel.url, "ffmpeg", wheels=("plain",))
    assert user.locks().status == 0
    assert "conda-lock.yml" in user.files()
    user.wants("plain", as_of=DECEMBER, python="3.12")
    assert user.locks("--check").status == 3
    assert user.locks().status == 0
    assert set(user.files()) == {"envspec.lock", "requirements.linux-64.txt"}


@pytest.mark.parametrize("variant", ["", "more"])
def test_what_a_channel_gains_is_seen_by_the_next_lock(
    user: User, channel: CondaChannel, variant: str, tmp_path: Path
) -> None:
    """No memory of whole locks stands between a channel and a spec: rows come late, and are patched."""
    few = [one for one in channel.archives if (one.name, one.version) != ("ffmpeg", "7.1.1")]
    growing = write(tmp_path / "growing", few)
    wants(user, growing.url, "ffmpeg")
    if variant:
        user.writes(user.spec.read_text().replace("[conda]", f"[variants.{variant}.conda]"))
    assert user.locks().status == 0
    lock = variant_directory(user.lock, variant) / "envspec.lock"
    assert 'name = "ffmpeg"\nversion = "7.0.2"' in lock.read_text()
    shutil.rmtree(user.lock.parent)
    write(growing.folder, channel.archives)
    assert user.locks().status == 0
    assert 'name = "ffmpeg"\nversion = "7.1.1"' in lock.read_text()


def without_wheels(user: User) -> None:
    head, _, rest = user.spec.read_text().partition("[pip]")
    user.writes(f"{head}[conda]{rest.partition('[conda]')[2]}")


def test_archives_are_read_only_where_something_asks_for_wheels(user: User, channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}) as server:
        wants(user, server.channel_url("forge"), "corp-toolkit", "numpy")
        without_wheels(user)
        assert user.locks().status == 0
        assert server.requests_for("*.conda") == []
        before = user.files()
        wants(user, server.channel_url("forge"), "corp-toolkit", "numpy")
        assert user.locks().status == 0
        assert {request.path for request in server.requests_for("*.conda")} == {
            server.path(channel.find("corp-toolkit"))
        }
        # What was learned changes no lock that does not need it.
        without_wheels(user)
        assert user.locks().status == 0
        assert user.files() == before


def imported(user: User, *words: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "envspec", *words]
    done = subprocess.run(command, cwd=user.folder, env=user.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_what_is_not_needed_is_not_imported(user: User, channel: CondaChannel) -> None:
    user.wants("plain", as_of=DECEMBER, python="3.12.11")
    for words in (["lock", user.spec.name], ["lock", "--check", user.spec.name], ["explain", str(user.lock)]):
        names = imported(user, *words)
        assert "envspec" in names
        assert not {"rattler", "conda_lock", "yaml"} & {name.split(".")[0] for name in names}
        conda = ("envspec.resolve.conda.", "envspec.operations.lock.conda")
        assert not [name for name in names if name.startswith(conda)]
    wants(user, channel.url, "ffmpeg")
    user.locked()
    names = imported(user, "lock", "--check", user.spec.name)
    assert not {"rattler", "pydantic"} & {name.split(".")[0] for name in names}


def test_a_channel_that_the_lock_has_a_part_of_is_not_to_be_had(user: User, channel: CondaChannel) -> None:
    wants(user, NOBODY, "numpy")
    again = f"the lock was made from a part of {NOBODY}: --channel-repodata {NOBODY}=DIR uses such a part again"
    assert again not in refused(user.locks(), 5)
    part = f"{NOBODY}={channel.folder}"
    assert user.locks("--channel-repodata", part).status == 0
    assert "nothing changed" in user.locks().stderr
    before = user.files()
    for options in (["--upgrade"], ["--upgrade", "--offline"]):
        assert again in refused(user.locks(*options), 5)
    wants(user, NOBODY, "numpy", "ffmpeg")
    assert again in refused(user.locks(), 5)
    assert user.files() == before
    assert user.locks("--channel-repodata", part).status == 0


@pytest.mark.parametrize(
    ("asked", "locked"),
    [("numpy=2.2", "2.2.6"), ("numpy==2.2.*", "2.2.6"), ("numpy 2.2.6", "2.2.6"), ("numpy=2.2.6=*", "2.2.6")],
)
def test_forms_that_conda_users_write(user: User, channel: CondaChannel, asked: str, locked: str) -> None:
    wants(user, NOBODY, asked)
    user.locked("--channel-repodata", f"{NOBODY}={channel.folder}")
    rows = [row for resolution in user.document()["resolution"] for row in resolution["conda"]]
    assert [row["version"] for row in rows if row["name"] == "numpy"] == [locked]


def test_rows_of_a_channel_for_a_spec_without_conda(user: User, channel: CondaChannel) -> None:
    user.wants("stats", as_of=DECEMBER, python="3.12")
    message = refused(user.locks("--channel-repodata", f"{NOBODY}={channel.folder}"), 2)
    assert "--channel-repodata: the spec has no [conda]" in message
