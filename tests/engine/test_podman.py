"""podman beside Docker: what it calls an image, and a container that runs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.machines import program, standin
from tests.support.servers.index import IndexServer
from tests.support.user import User

pytestmark = pytest.mark.engine

WHEEL = wheel("small-one", "2.0", files={"small_one.py": b"answer = 42\n"})
SPEC = """
[env]
name = "podman"
python = "3.11"
platforms = ["linux-64"]
[pip]
dependencies = ["small-one"]
[image]
base = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
glibc = "2.36"
python = "3.11.2"
compiler = "none"
"""
SHOW = "import os, small_one; print(small_one.answer, os.getuid(), os.getcwd())"
#: podman asks for more than this machine may have where nothing is said, and raising limits takes rights.
_LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")


@dataclass(frozen=True, slots=True)
class Built:
    """An image in a tar and in a registry."""

    id: str
    tar: Path
    pushed: str


@pytest.fixture(scope="module")
def built(standin_base: standin.Pushed, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, host = tmp_path_factory.mktemp("podman"), standin_base.registry
    pushed = f"{host}/podman/app:1"
    with IndexServer([File(WHEEL)]) as index:
        user = User(folder, index.url, ENVSPEC_REGISTRY_MIRRORS=f"docker.io={host}")
        user.writes(f'{SPEC}[registry.mirrors]\n"docker.io" = "{host}"\n')
        ran = user.runs("lock", user.spec, "--output", "lock")
        assert ran.status == 0, ran.stderr
        ran = user.runs("image", "build", "lock", "--no-compile-bytecode", "--output", "image.tar", "--push", pushed)
        assert ran.status == 0, ran.stderr
    return Built(ran.stdout.strip(), folder / "image.tar", pushed)


@pytest.fixture
def podman() -> Iterator[list[str]]:
    """podman with a store of its own, in a folder with a short name: it takes at most 50 characters."""
    with tempfile.TemporaryDirectory(prefix="envspec-") as folder:
        root = Path(folder, "root")
        command = [program("podman"), "--root", str(root), "--runroot", str(Path(folder, "run"))]
        # runc also where cgroups are of both versions at once, which Debian's crun refuses.
        command += ["--runtime", program("runc"), "--cgroup-manager", "cgroupfs"]
        command += ["--storage-driver", "overlay", "--events-backend", "none"]
        yield command
        calls([*command, "image", "rm", "--all", "--force"])
        subprocess.run([program("umount"), str(root / "overlay")], capture_output=True, check=False)


def test_a_loaded_image_has_its_name_and_runs(built: Built, podman: list[str]) -> None:
    message = calls([*podman, "load", "--quiet", "--input", str(built.tar)])
    assert "docker.io/envspec/podman:latest" in message
    assert calls([*podman, "image", "inspect", "--format", "{{.Id}}", "envspec/podman"]).strip() == identity(built)
    assert shown(podman, "docker.io/envspec/podman:latest") == "42 0 /workspace"


def test_a_pulled_image_runs(built: Built, podman: list[str]) -> None:
    calls([*podman, "pull", "--quiet", "--tls-verify=false", built.pushed])
    assert calls([*podman, "image", "inspect", "--format", "{{.Id}}", built.pushed]).strip() == identity(built)
    assert shown(podman, built.pushed) == "42 0 /workspace"


def identity(built: Built) -> str:
    return built.id.removeprefix("sha256:")


def shown(podman: list[str], image: str) -> str:
    """What a container says that has no network."""
    return calls([*podman, "run", "--rm", "--network", "none", *_LIMITS, image, "python", "-c", SHOW]).strip()


def calls(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
