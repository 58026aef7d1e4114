"""What is built and moved if a lock has several platforms, if one package changes, and if nothing does."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.models import ImageId, Lock
from envspec.structs import replace
from tests.support import preloaded
from tests.support.builders.environments import SERIES, pin
from tests.support.builders.images import (
    ARM,
    X86,
    ImageServers,
    ImageUser,
    hold_base,
    image_lock,
    image_servers,
    make_base,
    modules,
    small_wheel,
)
from tests.support.builders.wheels import Artifact, padding, wheel
from tests.support.user import refused

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

BIG: Final = wheel("big", "1.0", files={"big/__init__.py": b"", "big/data.bin": padding(2_200_000)})
OLD, NEW = small_wheel("alpha", "1.0"), small_wheel("alpha", "1.1")
SMALL: Final = tuple(small_wheel(f"pack{number}") for number in range(12))
NATIVE: Final = {
    platform: wheel(
        "native", "1.0", tag=f"py3-none-manylinux_2_28_{word}", files=modules("native") | {"native/x.so": word.encode()}
    )
    for platform, word in ((X86, "x86_64"), (ARM, "aarch64"))
}
PLATFORMS: Final = ("--platform", "linux-64", "--platform", "linux-aarch64")


@dataclass
class Scene(ImageServers):
    """An index and a registry that all have. here: somebody with a cache of their own."""

    folder: Path

    @property
    def here(self) -> ImageUser:
        return self.new_user("here")

    def new_user(self, name: str) -> ImageUser:
        return self.user_in(self.folder / name)

    def locked(self, alpha: Artifact = OLD) -> Lock:
        return self.lock_of(BIG, alpha, *SMALL)

    def document(self, repository: str, name: str) -> Any:
        """A manifest, an index or a config that was pushed."""
        found = self.registry.held.blobs[repository].get(name)
        return json.loads(found or self.registry.held.tags[repository][name][1])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with image_servers(BIG, OLD, NEW, *SMALL, *NATIVE.values()) as servers:
        yield Scene(**vars(servers), folder=tmp_path)


# Two platforms


def both(scene: Scene) -> Lock:
    base = hold_base(scene.registry.held, make_base(X86, ARM))
    pins = {platform: [pin(each) for each in (OLD, NATIVE[platform])] for platform in (X86, ARM)}
    return image_lock(pins, base.named())


def test_two_platforms_are_one_index(scene: Scene) -> None:
    builder = scene.here
    lock = builder.writes_lock(both(scene))
    name = f"{scene.registry.host}/team/app:1"
    words = (lock, *PLATFORMS, "--push", name, "--layout", "layout", "--output", "image.tar")
    ran = builder.image("build", *words)
    assert ran.status == 0, ran.stderr
    ids = {platform: identity for identity, platform in (line.split("  ") for line in ran.stdout.splitlines())}
    assert list(ids) == ["linux-64", "linux-aarch64"]
    index = scene.registry.tagged("team/app:1")
    assert index is not None and index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert index["annotations"]["envspec.name"] == "small"
    message = [(row["platform"]["architecture"], row["digest"]) for row in index["manifests"]]
    assert [architecture for architecture, _ in message] == ["amd64", "arm64"]
    for (architecture, manifest), identity in zip(message, ids.values(), strict=True):
        assert scene.document("team/app", manifest)["config"]["digest"] == identity
        assert scene.document("team/app", identity)["architecture"] == architecture
    [row] = json.loads((builder.folder / "layout/index.json").read_bytes())["manifests"]
    assert json.loads((builder.folder / "layout/blobs/sha256" / row["digest"][7:]).read_bytes()) == index
    for platform, identity in ids.items():
        assert builder.id_of(lock, "--platform", platform) == identity
        same = builder.image("diff", "layout", str(lock), "--platform", platform)
        assert (same.status, same.stdout) == (0, f"the same image: {identity}\n"), same.stderr
    assert builder.image("id", lock, *PLATFORMS).stdout == ran.stdout
    # An index that the registry has is not sent again.
    scene.registry.forget()
    assert builder.image("build", lock, *PLATFORMS, "--push", name).stdout == ran.stdout
    assert scene.registry.changes() == []
    # One platform after the other gives the same, from an empty cache.
    other = scene.new_user("other")
    arm = other.id_of(other.writes_lock(both(scene)), "--platform", "linux-aarch64")
    assert arm == ids["linux-aarch64"]


def test_bytecode_for_another_processor(scene: Scene) -> None:
    builder = scene.here
    lock = builder.writes_lock(both(scene))
    builder.id_of(lock, *PLATFORMS[2:], "--layout", "layout", "--compression", "none")
    library = f"opt/env/lib/python{SERIES}/site-packages/native"
    held: dict[str, bytes] = {}
    for path in (builder.folder / "layout/blobs/sha256").iterdir():
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as layer:
                held |= {row.name: layer.extractfile(row).read() for row in layer if row.isfile()}  # type: ignore[union-attr]
    assert held[f"{library}/x.so"] == b"aarch64"
    module = held[f"{library}/__pycache__/m0.cpython-{SERIES.replace('.', '')}.pyc"]
    # Flags: bound to its source by hash, and checked.
    assert module[4:8] == b"\3\0\0\0" and len(module) > 100


def test_platforms_that_are_not_locked(scene: Scene) -> None:
    builder = scene.here
    message = refused(builder.image("build", builder.writes_lock(scene.locked()), *PLATFORMS[2:]), 2)
    assert "not locked for linux-aarch64" in message and "linux-64" in message


# One change, and none


def test_one_small_package_changes_one_layer_and_the_config(scene: Scene) -> None:
    builder = scene.here
    first, second = (builder.writes_lock(scene.locked(each), each.version) for each in (OLD, NEW))
    name = f"{scene.registry.host}/team/app"
    before_id = builder.id_of(first, "--push", f"{name}:1")
    before = scene.registry.stored("team/app")
    scene.registry.forget()
    after_id = builder.id_of(second, "--push", f"{name}:2")
    new = scene.registry.stored("team/app") - before
    manifest = scene.registry.tagged("team/app:2")
    assert manifest is not None and after_id != before_id
    layers = [row["digest"] for row in manifest["layers"] if row["digest"] in new]
    assert len(layers) == 1 and new == {*layers, after_id}
    # Two uploads, each begun and ended, and the manifest.
    assert sorted(ask.method for ask in scene.registry.changes()) == ["POST", "POST", "PUT", "PUT", "PUT"]
    again = builder.image("diff", f"{name}:1", f"{name}:2", "--format", "json")
    assert again.status == 10, again.stderr
    message = json.loads(again.stdout)
    assert [row["digest"] for row in message["moved"]] == layers and len(message["removed"]) == 1
    # What of the wheels stays is not fetched again, nor looked at.
    assert [path for path in scene.index.fetched_twice() if path.startswith("/files/")] == []


@pytest.mark.parametrize("lost", ["", "image-known", "everything"])
def test_nothing_changed_uploads_nothing(lost: str, scene: Scene) -> None:
    builder = scene.here
    lock = builder.writes_lock(scene.locked())
    words = (lock, "--push", f"{scene.registry.host}/team/app:1")
    first = builder.id_of(*words)
    if lost:
        shutil.rmtree(builder.cache / lost.replace("everything", ""))
    scene.registry.forget()
    assert builder.id_of(*words) == first
    assert scene.registry.changes() == []
    # Under another tag, only the manifest is sent.
    assert builder.id_of(lock, "--push", f"{scene.registry.host}/team/app:2") == first
    assert [ask.method for ask in scene.registry.changes()] == ["PUT"]
    assert scene.registry.tagged("team/app:1") == scene.registry.tagged("team/app:2")


# The ID is recorded and stays


def test_id_tells_what_build_makes(scene: Scene) -> None:
    one, other = scene.new_user("one"), scene.new_user("other")
    lock = one.writes_lock(scene.locked())
    for words in ((), ("--no-compile-bytecode",)):
        message = one.image("id", lock, *words)
        assert message.status == 0 and message.stdout == f"{other.id_of(lock, *words)}\n", message.stderr
    # With the layers in the cache nothing is requested, and the wheels may be gone.
    shutil.rmtree(one.cache / "image-known")
    shutil.rmtree(one.cache / "archives")
    scene.index.forget()
    scene.registry.forget()
    message = one.image("id", lock, "--no-compile-bytecode")
    assert (message.status, message.stdout) == (0, f"{other.id_of(lock, '--no-compile-bytecode')}\n")
    assert (scene.index.requests, scene.registry.held.asked) == ([], [])


def test_wheels_that_left_the_cache_are_fetched_for_a_push(scene: Scene) -> None:
    builder = scene.here
    lock = builder.writes_lock(scene.locked())
    first = builder.id_of(lock)
    shutil.rmtree(builder.cache / "archives")
    for words in (("--push", f"{scene.registry.host}/team/app:1"), ("--output", "image.tar"), ("--layout", "layout")):
        shutil.rmtree(builder.cache / "archives", ignore_errors=True)
        assert builder.id_of(lock, *words) == first


def test_a_build_keeps_to_the_recorded_id(scene: Scene) -> None:
    builder = scene.here
    plain = scene.locked()
    right = builder.id_of(builder.writes_lock(plain, "plain"), "--no-compile-bytecode")
    for name, identity in (("right", right), ("wrong", f"sha256:{'0' * 64}")):
        builder.writes_lock(replace(plain, images=(ImageId(X86, identity, pyc=False),)), name)
    assert builder.id_of("right", "--no-compile-bytecode") == right
    words = ("--push", f"{scene.registry.host}/team/app:1", "--output", "image.tar", "--layout", "layout")
    message = refused(builder.image("build", "wrong", "--no-compile-bytecode", *words), 3)
    assert right in message and "0" * 64 in message and "envspec lock --image" in message
    assert scene.registry.tagged("team/app:1") is None and scene.registry.changes() == []
    assert not (builder.folder / "image.tar").exists() and not (builder.folder / "layout").exists()
    # Of the other kind nothing was recorded.
    assert builder.id_of("wrong").startswith("sha256:")


# What differs


@pytest.fixture
def made(scene: Scene) -> ImageUser:
    """Two images, each as a lock, a layout, a tar and in a registry: lock-1, layout-1, tar-1.tar ..."""
    builder = scene.here
    for number, alpha in enumerate((OLD, NEW), start=1):
        lock = builder.writes_lock(scene.locked(alpha), f"lock-{number}")
        words = ("--layout", f"layout-{number}", "--output", f"tar-{number}.tar")
        builder.id_of(lock, *words, "--push", f"{scene.registry.host}/team/app:{number}")
    return builder


def test_diff_of_every_kind_with_every_other(scene: Scene, made: ImageUser) -> None:
    kinds = ("lock-{}", "layout-{}", "tar-{}.tar", f"{scene.registry.host}/team/app:{{}}")
    seen = set()
    for place, first in enumerate(kinds):
        second = kinds[(place + 1) % len(kinds)]
        same = made.image("diff", first.format(1), second.format(1))
        assert same.status == 0 and same.stdout.startswith("the same image: sha256:"), same
        ran = made.image("diff", first.format(1), second.format(2), "--format", "json")
        assert ran.status == 10, ran.stderr
        message = json.loads(ran.stdout)
        assert message["changed"] and (message["first"]["name"], message["second"]["name"]) == (
            first.format(1),
            second.format(2),
        )
        for side in ("first", "second"):
            del message[side]["name"]
        seen.add(json.dumps(message))
    [only] = seen
    message = json.loads(only)
    assert len(message["moved"]) == len(message["removed"]) == 1 and len(message["kept"]) > 5
    assert "alpha 1.1" in message["moved"][0]["created_by"]
    assert 0 < message["moved_bytes"] < message["docker_moved_bytes"]
    text = made.image("diff", "lock-1", "lock-2")
    assert text.status == 10 and "a pull moves 1 layer and the config" in text.stdout


def test_diff_of_what_is_no_image(scene: Scene, made: ImageUser) -> None:
    (made.folder / "some.txt").write_text("text")
    (made.folder / "empty").mkdir()
    (made.folder / "half").mkdir()
    (made.folder / "half/oci-layout").write_text("{}")
    (made.folder / "cut.tar").write_bytes((made.folder / "tar-1.tar").read_bytes()[:2000])
    for name in ("some.txt", "half", "cut.tar"):
        assert name in refused(made.image("diff", "lock-1", name), 2)
    gone = f"{scene.registry.host}/team/app:none"
    assert gone in refused(made.image("diff", "lock-1", gone), 5)


def test_diff_asks_no_registry_for_a_lock_with_a_slip_of_the_pen(scene: Scene, made: ImageUser) -> None:
    scene.registry.forget()
    made.writes_lock(scene.lock_of(wheel("solo", "1.0")), "locks/small-1")
    for name in ("smal-1", "./lock-1x", "lock-1/more", "team/tar-1.tar"):
        message = refused(made.image("diff", "lock-1", name), 2)
        assert f"there is no lock {name}" in message
        assert "name an image in a registry with its tag" in message
    assert "did you mean small-1?" in refused(made.image("diff", "smal-1", "lock-1"), 2)
    assert scene.registry.held.asked == []


def test_layers_are_packed_again_without_a_compiler(scene: Scene) -> None:
    builder = scene.here
    lock = builder.writes_lock(scene.locked())
    first = builder.id_of(lock)
    assert builder.id_of(lock, "--compression", "zstd", "--python", "/bin/true", "--output", "image.tar") == first
