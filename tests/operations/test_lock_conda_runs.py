"""Whole runs of `envspec lock` with [conda]: which locks are stale, parts of channels, kills, what is imported."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from envspec.lockfile.check import check
from tests.support import preloaded
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.ecosystem import release
from tests.support.servers.channel import CondaServer
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

MOMENTS: Final = 16
SEED: Final = 20261120
JULY, DECEMBER = "2025-07-15T00:00:00Z", "2025-12-15T00:00:00Z"
FORGE: Final = "https://conda.example.com/forge"


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
def test_a_file_that_was_changed_by_hand_is_stale(user: User, channel: CondaChannel, name: str) -> None:
    wants(user, channel.url, "ffmpeg")
    assert user.locks().status == 0
    before = user.files()
    path = user.lock / name
    path.write_bytes(before[name].replace(b"7.1.1", b"7.0.2").replace(b"stats==1.0.0", b"stats==1.0.1"))
    assert path.read_bytes() != before[name]
    ran = user.locks("--check")
    assert ran.status == 3
    assert name in ran.stderr and "\n  hint: " in ran.stderr
    assert user.locks().status == 0
    assert user.files() == before


@pytest.mark.parametrize("name", ["conda-linux-64.lock", "conda-lock.yml"])
def test_a_file_that_is_gone_is_stale(user: User, channel: CondaChannel, name: str) -> None:
    wants(user, channel.url, "ffmpeg")
    assert user.locks().status == 0
    (user.lock / name).unlink()
    assert user.locks("--check").status == 3


def test_files_of_a_half_that_is_gone_go(user: User, channel: CondaChannel) -> None:
    wants(user, channel.url, "ffmpeg", wheels=("plain",))
    assert user.locks().status == 0
    assert "conda-lock.yml" in user.files()
    user.wants("plain", as_of=DECEMBER, python="3.12")
    assert user.locks("--check").status == 3
    assert user.locks().status == 0
    assert set(user.files()) == {"envspec.lock", "requirements.linux-64.txt"}


def test_what_a_channel_gains_is_seen_by_the_next_lock(user: User, channel: CondaChannel, tmp_path: Path) -> None:
    """No memory of whole locks stands between a channel and a spec: rows come late, and are patched."""
    few = [one for one in channel.archives if (one.name, one.version) != ("ffmpeg", "7.1.1")]
    growing = write(tmp_path / "growing", few)
    wants(user, growing.url, "ffmpeg")
    assert user.locks().status == 0
    assert {row["name"]: row["version"] for row in _rows(user)}["ffmpeg"] == "7.0.2"
    for file in user.lock.iterdir():
        file.unlink()
    write(growing.folder, channel.archives)
    assert user.locks().status == 0
    assert {row["name"]: row["version"] for row in _rows(user)}["ffmpeg"] == "7.1.1"


def test_archives_are_read_only_where_something_asks_for_wheels(user: User, channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}) as server:
        wants(user, server.channel_url("forge"), "corp-toolkit", "numpy")
        user.writes(
            user.spec.read_text().partition("[pip]")[0] + "[conda]" + user.spec.read_text().partition("[conda]")[2]
        )
        assert user.locks().status == 0
        assert server.requests_for("*.conda") == []
        before = user.files()
        wants(user, server.channel_url("forge"), "corp-toolkit", "numpy")
        assert user.locks().status == 0
        assert {request.path for request in server.requests_for("*.conda")} == {
            server.path(channel.find("corp-toolkit"))
        }
        # What was learned changes no lock that does not need it.
        user.writes(
            user.spec.read_text().partition("[pip]")[0] + "[conda]" + user.spec.read_text().partition("[conda]")[2]
        )
        assert user.locks().status == 0
        assert user.files() == before


def test_without_conda_nothing_of_it_is_imported(user: User) -> None:
    user.wants("plain", as_of=DECEMBER, python="3.12.11")
    for words in (["lock", user.spec.name], ["lock", "--check", user.spec.name], ["explain", str(user.lock)]):
        command = [sys.executable, "-X", "importtime", "-m", "envspec", *words]
        done = subprocess.run(command, cwd=user.folder, env=user.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        imported = {
            line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")
        }
        assert "envspec" in imported
        assert not [name for name in imported if name.split(".")[0] in ("rattler", "conda_lock", "yaml")]
        assert not [
            name for name in imported if name.startswith(("envspec.resolve.conda.", "envspec.operations.lock_conda"))
        ]


def test_a_lock_of_both_halves_is_checked_without_rattler(user: User, channel: CondaChannel) -> None:
    wants(user, channel.url, "ffmpeg")
    assert user.locks().status == 0
    command = [sys.executable, "-X", "importtime", "-m", "envspec", "lock", "--check", user.spec.name]
    done = subprocess.run(command, cwd=user.folder, env=user.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rattler" not in done.stderr and "pydantic" not in done.stderr


@pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")
def test_killed_at_any_moment(user: User, channel: CondaChannel) -> None:
    wants(user, channel.url, "ffmpeg", "transformers", as_of=JULY)
    assert user.locks().status == 0
    wants(user, channel.url, "ffmpeg", "transformers", as_of=DECEMBER)
    begin = time.monotonic()
    assert user.locks().status == 0
    longest_s = time.monotonic() - begin
    moments = random.Random(SEED)
    outcomes = {"old": 0, "new": 0}
    for number in range(4 * MOMENTS):
        if number >= MOMENTS and min(outcomes.values()) >= 2:
            break
        before = user.files()
        is_new = b"ffmpeg-7.1.1" in before["conda-linux-64.lock"] and b"pytorch-2.8.0" in before["conda-linux-64.lock"]
        wants(user, channel.url, "ffmpeg", "transformers", as_of=JULY if is_new else DECEMBER)
        run = user.starts()
        # More of them towards the end, where the files are written.
        # On a busy machine a run takes another time than the first: where one outcome lacks, the moments move.
        towards = 1.3 * (1 + 0.1 * (outcomes["old"] - outcomes["new"]))
        time.sleep(longest_s * moments.betavariate(4, 2) * max(0.3, min(4.0, towards)))
        if number % 2:
            run.child.kill()
        else:
            run.child.signal(signal.SIGKILL)
        run.ends()
        if user.files() == before:
            outcomes["old"] += 1
            continue
        assert check(user.spec, user.lock, None).is_fresh, number
        assert len(user.files()) == 4
        outcomes["new"] += 1
    # Otherwise the moments prove nothing.
    assert min(outcomes.values()) >= 2, outcomes
    assert user.locks().status == 0
    assert [path.name for path in user.lock.parent.iterdir()] == [user.lock.name]


def test_a_spec_that_is_refused_leaves_the_lock(user: User, channel: CondaChannel) -> None:
    wants(user, channel.url, "ffmpeg")
    assert user.locks().status == 0
    before = user.files()
    wants(user, channel.url, "ffmpeg >=99")
    assert "ffmpeg >=99" in refused(user.locks(), 4)
    wants(user, channel.url, "ffmpeg", wheels=("stats>=9",))
    assert "stats" in refused(user.locks(), 4)
    assert user.files() == before
