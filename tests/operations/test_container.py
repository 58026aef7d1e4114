"""`envspec run` and `envspec shell`, from a lock to the exit code: the image is made, loaded, run, and found again."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient

from envspec.engine.container import LABEL
from envspec.models import BaseImage, ImageSettings, Lock, PinnedDigest, Platform, Python
from envspec.structs import replace
from tests.engine.test_run import PATIENCE_S, screen
from tests.support.builders.environments import make_lock, write_lock
from tests.support.machines import program
from tests.support.machines.engine import image_of_programs, removed
from tests.support.machines.run_container import DRIVER
from tests.support.user import Ran, User, refused
from tests.support.waits import wait_for

pytestmark = pytest.mark.engine

PROGRAMS = ("sh", "bash", "cat", "id", "env", "stty", "stat", "touch", "df", "true")


@dataclass(frozen=True)
class Place:
    """A user, a registry with a base image, and the names of what was made in the engine."""

    user: User
    registry: str
    digest: str
    engine: DockerClient

    @property
    def options(self) -> tuple[str, ...]:
        return "--no-compile-bytecode", "--mirror", f"docker.io={self.registry}"

    def runs(self, *words: str, **environ: str) -> Ran:
        return self.user.runs("run", "lock", *self.options, *words, environ=environ)

    def writes(self, folder: str, **others: object) -> Lock:
        pinned = PinnedDigest(Platform.LINUX_64, self.digest, "registry", "manifest")
        python = Python("3.11.2", "base")
        lock = make_lock(python=python, where=Platform.LINUX_64, name=f"tiny-{uuid.uuid4().hex[:8]}")
        base = BaseImage("docker.io/tiny/base", "1", None, None, "", (pinned,))
        lock = replace(lock, base_image=base, **others)
        write_lock(self.user.folder / folder, lock)
        return lock

    @contextmanager
    def written(self, folder: str = "lock", **others: object) -> Iterator[Lock]:
        lock = self.writes(folder, **others)
        with removed(self.engine, f"envspec/{lock.name}:latest"):
            yield lock

    def left(self, lock: Lock) -> Sequence[object]:
        return list(self.engine.api.containers(all=True, filters={"label": f"{LABEL}={lock.name}"}))


@pytest.fixture(scope="module")
def base(engine: DockerClient, registry: str) -> Iterator[str]:
    """The digest of a base image in the registry."""
    name = f"{registry}/tiny/base"
    with image_of_programs(engine, *PROGRAMS) as image:
        engine.images.get(image).tag(name, "1")
        rows = list(engine.api.push(name, "1", stream=True, decode=True))
        yield next(row["aux"]["Digest"] for row in rows if "aux" in row)


@pytest.fixture
def place(tmp_path: Path, engine: DockerClient, registry: str, base: str) -> Place:
    return Place(User(tmp_path / "user", ""), registry, base, engine)


def test_run_makes_the_image_and_runs_in_it(place: Place) -> None:
    with place.written(image=ImageSettings(env=(("GIVEN", "by the lock"),))) as lock:
        first = place.runs("--", "sh", "-c", "echo $GIVEN; id -u; pwd; touch made; exit 12")
        assert first.status == 12, first.stderr
        assert first.stdout == f"by the lock\n{os.getuid()}\n/workspace\n"
        assert (place.user.folder / "made").exists()
        assert place.left(lock) == []
        (image,) = (row.id for row in place.engine.images.list(f"envspec/{lock.name}"))
        again = place.runs("--", "sh", "-c", "echo $1 --debug", "x", "--debug")
        assert (again.status, again.stdout) == (0, "--debug --debug\n"), again.stderr
        assert [row.id for row in place.engine.images.list(f"envspec/{lock.name}")] == [image]


def test_an_image_that_the_engine_has_is_not_assembled_again(place: Place) -> None:
    with place.written() as lock:
        name, loaded = f"envspec/{lock.name}:latest", "loading into the engine"
        assert loaded in place.runs("--", "true").stderr
        image = place.engine.images.get(name).id
        assert place.runs("--", "true").stderr == ""
        place.engine.images.remove(name, force=True)
        gone = place.runs("--", "true")
        assert gone.status == 0
        assert loaded in gone.stderr
        # Its name was given to another image.
        place.engine.images.get(f"{place.registry}/tiny/base:1").tag(f"envspec/{lock.name}", "latest")
        assert place.runs("--", "true").status == 0
        assert place.engine.images.get(name).id == image


def test_options_of_the_container(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("read\n")
    with place.written():
        options = ("--no-work", "--mount", f"{tmp_path / 'data'}:/data:ro", *["--env", "ONE=1", "--env", "TWO"])
        script = "cat /data/file; echo $ONE $TWO; pwd; df -k /dev/shm | { read x; read x size x; echo $size; }"
        done = place.runs(*options, "--shm-size", "128m", "--", "sh", "-c", script, TWO="2")
        assert done.stdout == f"read\n1 2\n/workspace\n{128 * 1024}\n", done.stderr


def test_variables_and_mounts_of_the_conformance_suite(place: Place, base: str, tmp_path: Path) -> None:
    """The mounted `python` is a script that shows them instead of the suite."""
    python = tmp_path / "python"
    python.write_text(f"#!{program('sh')}\necho $ONE $TWO $0 >&2; exit 3\n")
    python.chmod(0o755)
    with place.written():
        words = ("--device", "cpu", "--image", f"{place.registry}/tiny/base:1", "--mount", f"{python}:/bin/python:ro")
        ran = place.user.runs("conformance", "lock", *words, "--env", "ONE=1", "--env", "TWO", environ={"TWO": "2"})
        assert "the suite exited with status 3 without results: 1 2 /bin/python" in refused(ran, 6)


def shell(place: Place) -> list[str]:
    return [sys.executable, "-m", "envspec", "shell", "lock", *place.options]


def test_a_script_for_the_shell(place: Place) -> None:
    with place.written():
        done = subprocess.run(
            shell(place),
            input=b"echo ${BASH_VERSION:+bash}; exit 3\n",
            capture_output=True,
            cwd=place.user.folder,
            env=place.user.environ,
            check=False,
        )
        assert (done.returncode, done.stdout) == (3, b"bash\n"), done.stderr


def test_a_shell_on_a_terminal(place: Place) -> None:
    with place.written() as lock:
        with screen(shell(place), cwd=place.user.folder, environ={**place.user.environ, "TERM": "xterm"}) as terminal:
            terminal.until(b"$ ", b"# ")
            terminal.type(b"echo $TERM $((6*7))\n")
            terminal.until(b"xterm 42")
            terminal.type(b"exit 8\n")
            assert terminal.process.wait(PATIENCE_S) == 8
        assert place.left(lock) == []


def test_a_shell_that_is_killed_leaves_no_container(place: Place) -> None:
    with place.written() as lock:
        with screen(shell(place), cwd=place.user.folder, environ=place.user.environ) as terminal:
            terminal.until(b"$ ", b"# ")
            assert place.left(lock)
            terminal.process.kill()
            terminal.process.wait(PATIENCE_S)
        wait_for(lambda: not place.engine.api.containers(all=True, filters={"label": f"{LABEL}={lock.name}"}))


def test_a_lock_with_cuda_where_no_toolkit_is(place: Place) -> None:
    if "nvidia" in place.engine.info().get("Runtimes", {}):
        pytest.skip("not run: this machine's engine has an NVIDIA runtime")
    with place.written(driver=DRIVER):
        assert "NVIDIA container toolkit" in refused(place.runs("--", "sh", "-c", "true"), 6)
        assert place.runs("--gpus", "none", "--", "sh", "-c", "true").status == 0


@pytest.mark.parametrize("separator", [(), ("--",)])
@pytest.mark.parametrize("first", [True, False])
def test_what_follows_the_commands_name_is_the_commands(place: Place, separator: tuple[str, ...], first: bool) -> None:
    with place.written():
        own = (*place.options, "-e", "ONE=1")
        words = ("run", *own, "lock") if first else ("run", "lock", *own)
        script = "echo $ONE $#: $*"
        done = place.user.runs(
            *words, *separator, "sh", "-c", script, "sh", "-e", "ONE=2", "--", "--help", "--no-compile-bytecode"
        )
        assert (done.status, done.stdout) == (0, "1 5: -e ONE=2 -- --help --no-compile-bytecode\n"), done.stderr


def test_refused_before_anything_is_made(place: Place) -> None:
    place.writes("lock")
    assert "no command to run" in refused(place.runs(), 2)
    assert "has no services" in refused(place.runs("--services", "--", "sh"), 2)
    for option in ("--gpus many", "--mount here", "--port 99", "--shm-size much", "--shm-size 0"):
        assert option in refused(place.runs(*option.split(), "--", "sh"), 2)
    assert "linux-aarch64" in refused(place.runs("--platform", "linux-aarch64", "--", "sh"), 2)
    assert "no engine responds" in refused(place.runs("--", "sh", DOCKER_HOST="unix:///nowhere/docker.sock"), 6)
    assert "does not respond" in refused(place.runs("--", "sh", DOCKER_HOST="tcp://engine.invalid:2375"), 5)
    assert not any((place.user.folder / "cache").iterdir())
