"""One image from a lock, as Docker, podman, containerd and skopeo take it: by tar, by layout, from a registry."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient

from tests.support.builders.projects import File
from tests.support.builders.wheels import padding, wheel
from tests.support.machines import program, standin
from tests.support.machines.engine import OwnEngine, removed, run_in
from tests.support.servers.index import IndexServer
from tests.support.user import User

pytestmark = pytest.mark.engine

ANSWER = b"answer = 42\n"
BIG = wheel("big", "1.0", files={"big/__init__.py": ANSWER, "big/data.bin": padding(2_200_000)})
SMALL = wheel("small-one", "2.0", requires=["big"])
SPEC = """
[env]
name = "readers"
python = "3.11"
platforms = ["linux-64"]
[pip]
dependencies = ["small-one"]
[image]
base = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
glibc = "2.36"
python = "3.11.2"
[registry.mirrors]
"docker.io" = "{registry}"
"""
#: What proves that an image runs: its Python, the packages in it, their versions.
SHOW = "import big, importlib.metadata as m; print(big.answer, m.version('small-one'))"
SHOWN = "42 2.0"
#: podman asks for more than this machine may have where nothing is said, and raising limits takes rights.
_LIMITS = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")


@dataclass(frozen=True, slots=True)
class Built:
    """An image in every form. tars: by compression."""

    id: str
    tars: dict[str, Path]
    layout: Path
    pushed: str


@pytest.fixture(scope="module")
def built(standin_base: standin.Pushed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder, host = tmp_path_factory.mktemp("readers"), standin_base.registry
    pushed, ids = f"{host}/readers/app:1", set()
    with IndexServer([File(BIG), File(SMALL)]) as index:
        user = User(folder, index.url, ENVSPEC_REGISTRY_MIRRORS=f"docker.io={host}")
        user.writes(SPEC.format(registry=host))
        ran = user.runs("lock", user.spec, "--output", "lock")
        assert ran.status == 0, ran.stderr
        for form in ("gzip", "zstd", "none"):
            outputs = ["--push", pushed, "--layout", "layout"] if form == "gzip" else []
            words = ["--no-compile-bytecode", "--compression", form, "--output", f"{form}.tar", *outputs]
            ran = user.runs("image", "build", "lock", *words)
            assert ran.status == 0, ran.stderr
            ids.add(ran.stdout.strip())
    (identity,) = ids
    tars = {form: folder / f"{form}.tar" for form in ("gzip", "zstd", "none")}
    yield Built(identity, tars, folder / "layout", pushed)


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


@pytest.mark.parametrize("form", ["gzip", "none"])
def test_docker_loads_the_tar(built: Built, form: str, engine: DockerClient) -> None:
    with removed(engine, built.id):
        with built.tars[form].open("rb") as tar:
            (image,) = engine.images.load(tar)
        assert image.id == built.id
        assert image.tags == ["envspec/readers:latest"]
        message = run_in(engine, built.id, "python", "-c", SHOW)
        assert (message.status, message.output.strip()) == (0, SHOWN)


def test_docker_pulls_it(built: Built, engine: DockerClient) -> None:
    with removed(engine, built.pushed):
        assert engine.images.pull(built.pushed).id == built.id
        assert run_in(engine, built.pushed, "python", "-c", SHOW).output.strip() == SHOWN


@pytest.mark.parametrize("form", ["gzip", "zstd", "none"])
def test_podman_loads_and_unpacks_it(built: Built, form: str, podman: list[str]) -> None:
    calls([*podman, "load", "--quiet", "--input", str(built.tars[form])])
    (image,) = calls([*podman, "images", "--quiet", "--no-trunc"]).split()
    assert image == built.id
    root = Path(calls([*podman, "image", "mount", image]).strip())
    try:
        assert (root / "opt/env/lib/python3.11/site-packages/big/__init__.py").read_bytes() == ANSWER
    finally:
        calls([*podman, "image", "unmount", image])


def runs_by_podman(podman: list[str], image: str) -> bool:
    """Without a network."""
    shown = "import os, big; print(big.answer, os.getuid(), os.getcwd())"
    command = [*podman, "run", "--rm", "--network", "none", *_LIMITS, image, "python", "-c", shown]
    return calls(command).strip() == "42 0 /workspace"


def test_an_image_that_podman_loaded_has_its_name_and_runs(built: Built, podman: list[str]) -> None:
    message = calls([*podman, "load", "--quiet", "--input", str(built.tars["gzip"])])
    assert "docker.io/envspec/readers:latest" in message
    assert runs_by_podman(podman, "docker.io/envspec/readers:latest")


def test_podman_pulls_it(built: Built, podman: list[str]) -> None:
    calls([*podman, "pull", "--quiet", "--tls-verify=false", built.pushed])
    identity = calls([*podman, "image", "inspect", "--format", "{{.Id}}", built.pushed]).strip()
    assert identity == built.id.removeprefix("sha256:")
    assert runs_by_podman(podman, built.pushed)


@pytest.mark.parametrize("form", ["gzip", "zstd", "none"])
def test_containerd_imports_it(built: Built, form: str, gpu_engine: OwnEngine) -> None:
    socket = gpu_engine.folder / "run" / "containerd" / "containerd.sock"
    ctr = [program("ctr"), "--address", str(socket), "--namespace", f"readers-{form}"]
    calls([*ctr, "images", "import", "--base-name", "docker.io/envspec/readers", str(built.tars[form])])
    checked = calls([*ctr, "images", "check"])
    wanted = f"complete ({layers(built) + 1}/{layers(built) + 1})"  # the config, too
    assert wanted in checked, checked


def test_skopeo_copies_the_layout_to_where_it_was_pushed(built: Built) -> None:
    skopeo, copy = program("skopeo"), built.pushed.replace(":1", ":copy")
    (row,) = json.loads((built.layout / "index.json").read_text())["manifests"]
    name = row["annotations"]["org.opencontainers.image.ref.name"]
    calls([skopeo, "copy", "--quiet", "--dest-tls-verify=false", f"oci:{built.layout}:{name}", f"docker://{copy}"])
    inspect = [skopeo, "inspect", "--tls-verify=false", "--format", "{{.Digest}}"]
    digests = [calls([*inspect, f"docker://{each}"]).strip() for each in (built.pushed, copy)]
    assert digests == [row["digest"]] * 2


def layers(built: Built) -> int:
    """How many the image has."""
    blob = built.layout / "blobs" / "sha256" / built.id.removeprefix("sha256:")
    return len(json.loads(blob.read_text())["rootfs"]["diff_ids"])


def calls(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout
