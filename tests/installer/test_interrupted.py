"""Installations that end early, two at once, and disks without room: the environment is whole or not there."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.installer.staging import staging_path
from tests.conftest import Serve
from tests.support.builders import conda_packages
from tests.support.builders.conda_archive import archive
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.environments import (
    conda_row,
    installs,
    left_beside,
    make_lock,
    pin,
    run_in,
    starts,
    write_lock,
)
from tests.support.builders.projects import File
from tests.support.builders.wheels import padding, wheel
from tests.support.machines.small_disk import needs_mounts, on_a_disk
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Stall
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, Running, User, command_line, refused, succeeded
from tests.support.waits import wait_for

pytestmark = pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")

TOOL: Final = wheel("tool", "1.0")
NAMES: Final = ("tzdata", "python_abi", "python", "greet")
#: A wait that takes this long is a failure.
_LONG_S: Final = 60.0


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    """With a package of so many files that linking them takes a while."""
    many = archive("many", "1.0", {f"share/many/{number}.txt": b"%d\n" % number for number in range(3000)})
    held = [one for one in conda_packages.forge() if one.name in NAMES]
    here = [one for one in held if one.subdir in (this_platform().value, "noarch")]
    return write(tmp_path_factory.mktemp("channels") / "forge", [*here, many])


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(TOOL)])


@pytest.fixture
def lock(user: User, channel: CondaChannel, server: CondaServer) -> Path:
    rows = [conda_row(one, server.channel_url("forge")) for one in channel.archives]
    return write_lock(user.folder / "lock", make_lock(conda=rows, wheels=[pin(TOOL)]))


#: Where a run is ended.
MOMENTS: Final = ("fetching", "linking", "wheels")


@dataclass(frozen=True)
class Scene:
    """Somebody, a lock, and the servers that it is installed from."""

    user: User
    lock: Path
    server: CondaServer
    index: IndexServer
    channel: CondaChannel

    @property
    def prefix(self) -> Path:
        return self.user.folder / "env"

    def at(self, moment: str) -> Running:
        """A run that is at this moment."""
        archive_path = self.server.path(self.channel.find("greet"))
        wheel_path = self.index.file_path(TOOL.filename)
        if moment == "fetching":
            self.server.fail(archive_path, Stall(), times=1)
        if moment == "wheels":
            self.index.fail(wheel_path, Stall(2.0), times=1)
        linked = staging_path(self.prefix) / "share/many"
        signs: dict[str, Callable[[], object]] = {
            "fetching": lambda: self.server.requests_for(archive_path),
            "linking": linked.is_dir,
            "wheels": lambda: self.index.requests_for(wheel_path),
        }
        for _ in range(5):
            running = starts(self.user, self.lock)
            wait_for(lambda: signs[moment]() or self.prefix.exists(), poll_s=0.002)
            if not self.prefix.exists():
                return running
            # The machine looked away for as long as the moment took.
            running.ends()
            shutil.rmtree(self.prefix)
        raise AssertionError(f"{moment} was never seen")

    def is_whole(self) -> bool:
        assert run_in(self.prefix, "greet") == "greet 1.0"
        assert run_in(self.prefix, "python", "-c", "import tool; print(tool.__version__)") == "1.0"
        assert len(list((self.prefix / "share/many").iterdir())) == 3000
        return left_beside(self.prefix) == []


@pytest.fixture
def scene(user: User, lock: Path, server: CondaServer, index: IndexServer, channel: CondaChannel) -> Scene:
    return Scene(user, lock, server, index, channel)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_leaves_nothing_to_the_next(moment: str, scene: Scene) -> None:
    running = scene.at(moment)
    running.child.signal(signal.SIGKILL)
    assert running.ends().status == -signal.SIGKILL
    assert not scene.prefix.exists()
    succeeded(installs(scene.user, scene.lock))
    assert scene.is_whole()
    assert list(scene.user.cache.rglob("*.part")) == []
    assert moment == "fetching" or scene.server.fetched_twice() == []


@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [*((moment, signal.SIGINT, 130) for moment in MOMENTS), ("linking", signal.SIGTERM, 143)],
)
def test_a_run_that_is_ended_cleans_up(moment: str, number: signal.Signals, status: int, scene: Scene) -> None:
    running = scene.at(moment)
    running.child.signal(number)
    ran = running.ends()
    assert (ran.status, ran.stdout) == (status, ""), ran.stderr
    assert "Traceback" not in ran.stderr and "xception" not in ran.stderr, ran.stderr
    assert not scene.prefix.exists() and left_beside(scene.prefix) == []
    assert list(scene.user.cache.rglob("*.part")) == []


def test_a_job_in_the_background_of_a_script_ends_as_well(scene: Scene) -> None:
    """Shells have such a job ignore SIGINT from its start."""
    archive_path = scene.server.path(scene.channel.find("greet"))
    scene.server.fail(archive_path, Stall(), times=1)
    words = command_line(("install", str(scene.lock), "--prefix", str(scene.prefix)))
    with subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *words],
        cwd=scene.user.folder,
        env=dict(scene.user.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        wait_for(lambda: scene.server.requests_for(archive_path), poll_s=0.002)
        job.terminate()
        stdout, stderr = job.communicate(timeout=_LONG_S)
    assert (job.returncode, stdout) == (143, ""), stderr
    assert "ended by SIGTERM" in stderr and "Traceback" not in stderr
    assert not scene.prefix.exists() and left_beside(scene.prefix) == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_two_at_once_make_it_once_and_one_goes_on_when_the_other_is_killed(scene: Scene, is_killed: bool) -> None:
    first = scene.at("wheels")
    second = starts(scene.user, scene.lock)
    if is_killed:
        first.child.signal(signal.SIGKILL)
    both = [first.ends(), second.ends()]
    assert [ran.status for ran in both] == [-signal.SIGKILL if is_killed else 0, 0], both
    assert both[1].stdout == f"{scene.prefix}\n"
    assert is_killed or "waiting for another install into the same folder" in both[1].stderr
    assert is_killed or "already installed" in both[1].stderr
    assert scene.is_whole() and scene.server.fetched_twice() == []


def test_two_folders_at_once_fetch_each_archive_once(scene: Scene) -> None:
    running = [starts(scene.user, scene.lock, prefix=name) for name in ("one", "two")]
    assert [each.ends().status for each in running] == [0, 0]
    assert scene.server.fetched_twice() == []
    assert all(run_in(scene.user.folder / name, "greet") == "greet 1.0" for name in ("one", "two"))


def test_a_folder_that_a_link_names(user: User, lock: Path, channel: CondaChannel) -> None:
    (user.folder / "real").mkdir()
    (user.folder / "link").symlink_to("real")
    ran = installs(user, lock, prefix="link/env")
    assert (ran.status, ran.stdout) == (0, f"{user.folder}/real/env\n"), ran.stderr


# Disks


def on_its_own(user: User, lock: Path, options: str, *words: str, **environ: str) -> tuple[Ran, list[str]]:
    """A run whose environment goes to a disk of its own, and what is on that disk afterwards."""
    where = ("--prefix", f"{user.folder}/disk/env")
    return on_a_disk(user, options, "install", str(lock), *where, *words, **environ)


@needs_mounts
@pytest.mark.parametrize("half", ["conda", "wheels"])
def test_a_full_disk(half: str, user: User, channel: CondaChannel, serve: Serve, tmp_path: Path) -> None:
    big = padding(4_000_000)
    if half == "conda":
        made = write(tmp_path / "made", [*channel.archives[:3], archive("big", "1.0", {"share/big.bin": big})])
        lock = write_lock(tmp_path / "lock", make_lock(conda=[conda_row(each, made.url) for each in made.archives]))
        ran, left = on_its_own(user, lock, "size=2m")
    else:
        held = wheel("big", "1.0", files={"big/__init__.py": b"", "big/big.bin": big})
        lock = write_lock(tmp_path / "lock", make_lock(wheels=[pin(held)]))
        index = serve([File(held)])
        ran, left = on_its_own(user, lock, "size=2m", "--python", sys.executable, ENVSPEC_DEFAULT_INDEX=index.url)
    message = refused(ran, 6)
    assert "no space left while" in message and left == []


@needs_mounts
def test_a_disk_that_can_not_be_written(user: User, lock: Path) -> None:
    ran, left = on_its_own(user, lock, "ro,size=2m")
    assert "Read-only file system" in refused(ran, 2) and left == []


@needs_mounts
def test_a_mount_point_is_refused_with_what_to_do(user: User, lock: Path) -> None:
    disk = user.folder / "disk"
    ran, left = on_its_own(user, lock, "size=2m", "--prefix", str(disk))
    assert f"use a folder inside it: --prefix {disk}/env" in refused(ran, 2) and left == []


@needs_mounts
def test_too_little_room_is_told_before_anything_is_fetched(
    user: User, server: CondaServer, channel: CondaChannel
) -> None:
    row = conda_row(channel.find("greet"), server.channel_url("forge"), size_bytes=4_000_000)
    rows = [conda_row(one, server.channel_url("forge")) for one in channel.archives if one.name != "greet"]
    lock = write_lock(user.folder / "big", make_lock(conda=[*rows, row]))
    ran, left = on_its_own(user, lock, "size=2m", ENVSPEC_CACHE_DIR=str(user.folder / "disk/cache"))
    # The cache is made when it is first needed, empty.
    assert "needs at least" in refused(ran, 6) and left == ["cache"] and server.requests == []
