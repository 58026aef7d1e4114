"""Names of images: in a tar, in a registry, and of the registry that a base comes from."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envspec.models import Lock
from envspec.structs import replace
from tests.support import preloaded
from tests.support.builders.images import ImageServers, ImageUser, image_servers, small_wheel
from tests.support.user import refused

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

ONE = small_wheel("one")
SPEC = """
[env]
name = "small"
python = "3.11"
platforms = ["linux-64"]
[pip]
dependencies = ["one"]
[image]
base = "docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04"
glibc = "2.36"
python = "3.11.2"
"""


@dataclass
class Scene(ImageServers):
    builder: ImageUser
    lock: Lock


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with image_servers(ONE) as servers:
        yield Scene(**vars(servers), builder=servers.user_in(tmp_path), lock=servers.lock_of(ONE))


@pytest.mark.parametrize(
    ("words", "familiar", "full"),
    [
        ((), "envspec/{name}:latest", "docker.io/envspec/{name}:latest"),
        (("--tag", "app"), "app:latest", "docker.io/library/app:latest"),
        (("--tag", "registry.corp:5000/team/app:2"),) + ("registry.corp:5000/team/app:2",) * 2,
    ],
)
def test_readers_of_either_form_find_the_same_name(
    words: tuple[str, ...], familiar: str, full: str, scene: Scene
) -> None:
    lock = scene.builder.writes_lock(scene.lock)
    scene.builder.id_of(lock, "--no-compile-bytecode", "--output", "image.tar", *words)
    with tarfile.open(scene.builder.folder / "image.tar") as archive:
        docker, oci = (json.load(archive.extractfile(name)) for name in ("manifest.json", "index.json"))  # type: ignore[arg-type]
    name = scene.lock.name
    assert docker[0]["RepoTags"] == [familiar.format(name=name)]
    message = oci["manifests"][0]["annotations"]
    assert message["io.containerd.image.name"] == full.format(name=name)
    assert message["org.opencontainers.image.ref.name"] == full.rpartition(":")[2]


def test_a_container_starts_what_the_spec_says(scene: Scene) -> None:
    image = replace(scene.lock.image, entrypoint=("python", "-m", "one"), command=("--port", "80"))
    lock = scene.builder.writes_lock(replace(scene.lock, image=image))
    scene.builder.id_of(lock, "--no-compile-bytecode", "--output", "image.tar")
    with tarfile.open(scene.builder.folder / "image.tar") as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        run = json.load(archive.extractfile(manifest["Config"]))["config"]  # type: ignore[arg-type]
    assert (run["Entrypoint"], run["Cmd"]) == (["python", "-m", "one"], ["--port", "80"])


def test_a_push_tells_under_which_digest_the_registry_has_it(scene: Scene) -> None:
    lock, name = scene.builder.writes_lock(scene.lock), f"{scene.registry.host}/team/app"
    for _ in ("pushed", "there already"):
        ran = scene.builder.image("build", lock, "--no-compile-bytecode", "--push", f"{name}:1")
        assert ran.status == 0, ran.stderr
        assert ran.stdout.count("\n") == 1
        digest = ran.stderr.partition(f"pushed: {name}@")[2].partition("\n")[0]
        assert scene.registry.held.tags["team/app"][digest] == scene.registry.held.tags["team/app"]["1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mirror", "docker.io"), "'docker.io' names no mirror"),
        (("--tag", "Team/App"), "'Team/App' is not the name of an image"),
        (("--python", "/nowhere/python"), "--python /nowhere/python: there is no such program"),
        (("--push", "registry.corp:5000/Team"), "is not the name of an image"),
    ],
)
def test_a_wrong_option_is_told_of_whether_the_image_is_known_or_not(
    words: tuple[str, ...], message: str, scene: Scene
) -> None:
    lock = scene.builder.writes_lock(scene.lock)
    for _ in ("unknown", "known"):
        assert message in refused(scene.builder.image("build", lock, "--no-compile-bytecode", *words), 2)
        scene.builder.id_of(lock, "--no-compile-bytecode")
    if words[0] in {"--mirror", "--python"}:
        assert message in refused(scene.builder.image("id", lock, "--no-compile-bytecode", *words), 2)


def test_a_base_that_is_not_reached_is_named_with_the_way_to_a_mirror(scene: Scene) -> None:
    lock = scene.builder.writes_lock(scene.lock)
    impatient = {"ENVSPEC_HTTP_ATTEMPTS": "1", "ENVSPEC_REGISTRY_MIRRORS": "docker.io=127.0.0.1:9"}
    message = refused(scene.builder.image("build", lock, "--no-compile-bytecode", **impatient), 5)
    assert "the base image docker.io/nvidia/cuda can't be read: http://127.0.0.1:9/" in message
    assert "--mirror docker.io=HOST" in message
    assert scene.builder.id_of(
        lock, "--no-compile-bytecode", "--mirror", f"docker.io={scene.registry.host}", **impatient
    )


def test_the_mirrors_of_the_spec_are_used(scene: Scene, tmp_path: Path) -> None:
    user = scene.builder
    user.writes(f'{SPEC}[registry.mirrors]\n"docker.io" = "{scene.registry.host}"\n')
    lock = user.writes_lock(replace(scene.lock, spec="../../spec.toml"), "locks/small")
    no_mirror = {"ENVSPEC_REGISTRY_MIRRORS": "", "ENVSPEC_HTTP_ATTEMPTS": "1"}
    assert user.id_of(lock, "--no-compile-bytecode", **no_mirror)
    other = {
        **no_mirror,
        "ENVSPEC_REGISTRY_MIRRORS": "docker.io=127.0.0.1:9",
        "ENVSPEC_CACHE_DIR": str(tmp_path / "new"),
    }
    assert "http://127.0.0.1:9/" in refused(user.image("build", lock, "--no-compile-bytecode", **other), 5)
    copied = user.image("mirror", lock, f"{scene.registry.host}/mirror/cuda", **no_mirror)
    assert copied.status == 0, copied.stderr


def test_a_registry_that_is_not_reached_is_not_asked_twice_over(scene: Scene) -> None:
    lock = scene.builder.writes_lock(scene.lock)
    scene.builder.id_of(lock, "--no-compile-bytecode")
    timeouts = {"ENVSPEC_HTTP_ATTEMPTS": "2", "ENVSPEC_HTTP_BACKOFF_S": "0.01"}
    ran = scene.builder.image("build", lock, "--no-compile-bytecode", "--push", "127.0.0.1:9/team/app:1", **timeouts)
    assert "127.0.0.1:9" in refused(ran, 5)
    assert ran.stderr.count("trying again") == 1


def test_the_lock_says_of_a_digest_where_it_is_from(scene: Scene) -> None:
    user = scene.builder
    for host, message in (("127.0.0.1:9", "unresolved"), (scene.registry.host, scene.base.digest)):
        user.writes(f'{SPEC}[registry.mirrors]\n"docker.io" = "{host}"\n')
        ran = user.locks(ENVSPEC_REGISTRY_MIRRORS="")
        assert ran.status == 0, ran.stderr
        explained = user.runs("explain", user.lock, "--format", "json")
        assert explained.status == 0, explained.stderr
        (row,) = (each for each in json.loads(explained.stdout)["decisions"] if each["what"] == "image.digest")
        assert row["value"] == message


def test_an_image_on_the_plain_system_gets_the_gpus(scene: Scene) -> None:
    held = scene.registry.held
    held.hold("library/ubuntu", *scene.base.blobs)
    held.tags["library/ubuntu"] = held.tags["nvidia/cuda"]
    plain = replace(scene.base.named(), repository="docker.io/library/ubuntu", tag="24.04", cuda_release=None)
    # Packages that name no CUDA release: the spec's GPUs alone say what the image is for.
    lock = scene.builder.writes_lock(replace(scene.lock, base_image=plain, driver=None, gpus=("A100",)))
    scene.builder.id_of(lock, "--no-compile-bytecode", "--output", "image.tar")
    with tarfile.open(scene.builder.folder / "image.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = json.load(archive.extractfile(manifest["Config"]))["config"]  # type: ignore[arg-type]
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(config["Env"])
