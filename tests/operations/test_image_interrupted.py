"""Builds that are killed, ended, on a full disk, or two at once: an output is whole or not there, the cache is good."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support import preloaded
from tests.support.builders.images import ImageServers, ImageUser, image_servers, small_wheel
from tests.support.builders.wheels import Artifact, Method, padding, wheel
from tests.support.machines.small_disk import needs_mounts, on_a_disk
from tests.support.servers.faults import Stall
from tests.support.servers.registry import Sleep
from tests.support.tries import tries
from tests.support.user import Running, refused
from tests.support.waits import wait_for

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

MOMENTS: Final = tries(50)
SEED: Final = 20261120
SMALL: Final[tuple[Artifact, ...]] = (small_wheel("one"), small_wheel("two"), small_wheel("three"))
#: 120 MB where it is not packed, and little on its way.
BULKY: Final = tuple(
    wheel(name, "1.0", files={f"{name}/zeros": bytes(60_000_000)}, method=Method.DEFLATED) for name in ("wide", "long")
)

#: Enough modules that compiling them takes a while.
MANY: Final = wheel("many", "1.0", files={f"many/m{number}.py": b"x = 1\n" * 40 for number in range(3000)})
BIG: Final = wheel("big", "1.0", files={"big/noise": padding(4_000_000)})
#: A wait that takes this long is a failure.
_LONG_S: Final = 60.0


@dataclass
class Scene(ImageServers):
    """Somebody who builds, and what they need."""

    builder: ImageUser

    def lock(self, *wheels: Artifact) -> Path:
        return self.builder.writes_lock(self.lock_of(*wheels))

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("--output", "image.tar", "--layout", "layout", "--push", f"{self.registry.host}/team/app:1")

    def nothing_half(self) -> None:
        """Nothing beside the outputs; a tar or a layout is there only if it was whole before the run was ended."""
        folder = self.builder.folder
        names = {path.name for path in folder.iterdir()} - {"cache", "home", "lock"}
        assert names <= {"layout", "image.tar"}
        if "layout" in names:
            whole_layout(folder / "layout")
        if "image.tar" in names:
            whole_tar(folder / "image.tar")
        assert self.registry.tagged("team/app:1") is None
        left = [path for path in self.builder.cache.rglob("*") if ".part" in path.name or ".envspec-" in path.name]
        assert [path for path in left if path.is_dir() or path.parent.parent.name == "archives"] == []

    def is_whole(self, identity: str) -> None:
        """Every output is the image, and there is nothing else."""
        pushed = self.registry.tagged("team/app:1")
        assert pushed is not None and pushed["config"]["digest"] == identity
        folder = self.builder.folder
        assert sorted(path.name for path in folder.iterdir()) == ["cache", "home", "image.tar", "layout", "lock"]
        config, blobs = whole_tar(folder / "image.tar")
        assert config == identity[7:]
        assert whole_layout(folder / "layout") == blobs


def whole_layout(folder: Path) -> set[str]:
    """The digests of a layout's blobs, each of them right, and all that its index names among them."""
    assert sorted(path.name for path in folder.iterdir()) == ["blobs", "index.json", "manifest.json", "oci-layout"]
    blobs = {path.name for path in (folder / "blobs/sha256").iterdir()}
    for name in blobs:
        assert hashlib.sha256((folder / "blobs/sha256" / name).read_bytes()).hexdigest() == name
    (docker,) = json.loads((folder / "manifest.json").read_text())
    assert blobs >= {path.rpartition("/")[2] for path in (docker["Config"], *docker["Layers"])}
    return blobs


def whole_tar(path: Path) -> tuple[str, set[str]]:
    """The digests of a tar's config and of its blobs, each of them right."""
    with tarfile.open(path) as archive:
        held = {Path(row.name).name: archive.extractfile(row).read() for row in archive}  # type: ignore[union-attr]
    blobs = {name for name in held if len(name) == 64}
    assert all(hashlib.sha256(held[name]).hexdigest() == name for name in blobs)
    return json.loads(held["manifest.json"])[0]["Config"].rpartition("/")[2], blobs


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with image_servers(*SMALL, *BULKY, MANY, BIG) as servers:
        yield Scene(**vars(servers), builder=servers.user_in(tmp_path))


def test_killed_at_any_moment_and_again(scene: Scene) -> None:
    builder, lock = scene.builder, scene.lock(*SMALL)
    words: tuple[str | Path, ...] = ("build", lock, *scene.outputs)
    longest_s = 3.0
    for _ in range(2):
        # The first also waits for the parent of all runs.
        shutil.rmtree(builder.cache, ignore_errors=True)
        begin = time.monotonic()
        first = builder.image(*words)
        longest_s = min(longest_s, time.monotonic() - begin)
        assert first.status == 0, first.stderr
    moments = random.Random(SEED)
    ends: list[int | None] = []
    while ends.count(-signal.SIGKILL) < MOMENTS:
        number = len(ends)
        assert number < 3 * MOMENTS, "most runs end before they are killed"
        if number % 5 == 0 or ends[-1] == 0:
            # Anew; the kills after it meet what the one before them has left.
            for path in (builder.cache, builder.folder / "layout"):
                shutil.rmtree(path, ignore_errors=True)
            (builder.folder / "image.tar").unlink(missing_ok=True)
            scene.registry.held.tags.pop("team/app", None)
            scene.registry.held.blobs.pop("team/app", None)
        run = builder.begins(*words)
        time.sleep(moments.uniform(0, 1.1 * longest_s))
        if number % 2:
            run.child.kill()
        else:
            # Alone: its compilers outlive it for a moment.
            run.child.signal(signal.SIGKILL)
        ends.append(run.ends().status)
        pushed = scene.registry.tagged("team/app:1")
        assert pushed is None or f"{pushed['config']['digest']}\n" == first.stdout, number
        if number % 5 == 4:
            again = builder.image(*words)
            assert (again.status, again.stdout) == (0, first.stdout), (number, again.stderr)
            scene.is_whole(first.stdout.strip())


#: Where a run is ended: how it is made to stay there, and by what that is seen.
MOMENTS_OF: Final = ("asking for the base", "fetching", "compiling", "writing a tar", "writing a layout", "pushing")


def at(moment: str, scene: Scene) -> Running:
    """A run that is at this moment."""
    builder, held = scene.builder, scene.registry.held
    path = scene.index.file_path(SMALL[0].filename)
    signs: dict[str, Callable[[], object]] = {
        "asking for the base": lambda: held.asked,
        "fetching": lambda: scene.index.requests_for(path),
        "compiling": lambda: list((builder.cache / "image-layers").rglob("*.side")),
        "writing a tar": lambda: sizes(builder.folder, ".image.tar.envspec-*"),
        "writing a layout": lambda: sizes(builder.folder, "layout/blobs/sha256/.*"),
        "pushing": lambda: "POST" in held.methods(),
    }
    sign, wheels, words = signs[moment], SMALL, scene.outputs
    if moment == "asking for the base":
        held.fault = lambda ask: Sleep(30) if "nvidia/cuda/manifests" in ask.path else None
    elif moment == "fetching":
        scene.index.fail(path, Stall(30))
    elif moment == "compiling":
        wheels = (MANY,)
    elif moment == "pushing":
        held.fault = lambda ask: Sleep(30) if ask.method == "POST" else None
        words = scene.outputs[-2:]
    else:
        wheels, words = BULKY, ("--compression", "none", *scene.outputs[: 2 if "tar" in moment else 4][-2:])
    lock = scene.lock(*wheels)
    for _ in range(5):
        run = builder.begins("build", lock, *words)
        program = Path(f"/proc/{run.child.pid}/cmdline")
        wait_for(lambda: sign() or not program.exists(), poll_s=0.002)  # noqa: B023
        if sign():
            return run
        # The machine looked away for as long as the moment took.
        ran = run.ends()
        assert ran.status == 0, ran.stderr
        for made in (builder.cache, builder.folder / "layout", builder.folder / "image.tar"):
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    raise AssertionError(f"{moment} was never seen")


def sizes(folder: Path, pattern: str) -> list[int]:
    """Of files that are being written, those of more than 1 MB."""
    found = []
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            found.append(path.stat().st_size)
    return [size for size in found if size > 1_000_000]


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("moment", MOMENTS_OF)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_run_that_is_ended_cleans_up(moment: str, number: signal.Signals, status: int, scene: Scene) -> None:
    run = at(moment, scene)
    begin = time.monotonic()
    run.child.signal(number)
    ran = run.ends()
    assert time.monotonic() - begin < 20
    assert (ran.status, ran.stdout) == (status, ""), ran.stderr
    assert "Traceback" not in ran.stderr and "xception" not in ran.stderr, ran.stderr
    scene.nothing_half()
    # The compilers were of the same process group: none is left, once the system has buried what was killed.
    while is_there(run.child.pid):
        assert time.monotonic() - begin < 20
        time.sleep(0.05)
    scene.index.heal()
    scene.registry.held.fault = lambda _: None
    # One that was whole when the signal arrived is of another compression, and would keep its blobs.
    shutil.rmtree(scene.builder.folder / "layout", ignore_errors=True)
    again = scene.builder.image("build", "lock", *scene.outputs)
    assert again.status == 0, again.stderr
    scene.is_whole(again.stdout.strip())


def test_what_a_killed_run_fetched_is_not_fetched_again(scene: Scene) -> None:
    run = at("pushing", scene)
    lock = scene.builder.folder / "lock"
    run.child.signal(signal.SIGKILL)
    run.ends()
    scene.registry.held.fault = lambda _: None
    assert scene.builder.image("build", lock, *scene.outputs).status == 0
    assert scene.index.fetched_twice() == []


def test_two_at_once_are_as_one(scene: Scene) -> None:
    lock = scene.lock(*SMALL)
    runs = [scene.builder.begins("build", lock, *scene.outputs) for _ in range(3)]
    done = [run.ends() for run in runs]
    assert [ran.status for ran in done] == [0] * 3, [ran.stderr for ran in done]
    assert len({ran.stdout for ran in done}) == 1
    assert [path for path in scene.index.fetched_twice() if path.startswith("/files/")] == []
    scene.is_whole(done[0].stdout.strip())


# Disks


@needs_mounts
@pytest.mark.parametrize("what", ["--output", "--layout"])
def test_a_full_disk_for_the_output(what: str, scene: Scene) -> None:
    lock = scene.lock(*SMALL, BIG)
    words = ("image", "build", str(lock), what, f"{scene.builder.folder}/disk/image")
    ran, left = on_a_disk(scene.builder, "size=2m", *words)
    message = refused(ran, 6)
    assert "No space left on device" in message and "disk/image" in message and "MB are free there" in message
    assert left == []
    again = scene.builder.image("build", lock, *scene.outputs)
    assert again.status == 0, again.stderr


@needs_mounts
@pytest.mark.parametrize("size", ["size=4k", "size=100k", "size=300k", "size=5m", "size=9m"])
def test_a_full_disk_for_the_cache(size: str, scene: Scene) -> None:
    """While the base is cached, wheels are fetched, layers are written, or IDs are cached."""
    lock = scene.lock(*SMALL, BIG)
    words = ("image", "build", str(lock), "--compression", "zstd", *scene.outputs[-2:])
    where = f"{scene.builder.folder}/disk/cache"
    ran, _ = on_a_disk(scene.builder, size, *words, ENVSPEC_CACHE_DIR=where)
    message = refused(ran, 6)
    assert "space" in message.lower() and where in message and "ENVSPEC_CACHE_DIR" in message
    assert scene.registry.tagged("team/app:1") is None
    again = scene.builder.image("build", lock, *scene.outputs)
    assert again.status == 0, again.stderr


@needs_mounts
def test_a_cache_that_can_not_be_written(scene: Scene) -> None:
    lock = scene.lock(*SMALL)
    where = f"{scene.builder.folder}/disk/cache"
    ran, _ = on_a_disk(scene.builder, "ro,size=2m", "image", "build", str(lock), ENVSPEC_CACHE_DIR=where)
    assert "ENVSPEC_CACHE_DIR" in refused(ran, 6)
    (scene.builder.folder / "blocked").write_text("a file, where a folder should be")
    message = refused(scene.builder.image("build", lock, ENVSPEC_CACHE_DIR=str(scene.builder.folder / "blocked")), 6)
    assert "blocked" in message and "ENVSPEC_CACHE_DIR" in message
