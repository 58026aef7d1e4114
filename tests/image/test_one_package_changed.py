"""One package changed, and none, on the registry that Docker publishes: what it takes in, and what skopeo moves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.support.builders.environments import pin
from tests.support.builders.images import X86, Builder, image_lock, keep_base, make_base, small_wheel
from tests.support.builders.projects import File
from tests.support.builders.wheels import padding, wheel
from tests.support.machines import program
from tests.support.servers import docker_registry

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Scene:
    """A registry, and two locks between which one small package differs. stored: where the registry keeps blobs."""

    builder: Builder
    host: str
    stored: Path
    locks: tuple[Path, Path]

    def blobs(self) -> set[str]:
        """Digests of what the registry has."""
        return {path.parent.name for path in self.stored.glob("*/*/data")}

    def pushes(self, number: int, tag: str) -> str:
        return self.builder.id_of(self.locks[number], "--push", f"{self.host}/team/app:{tag}")


@pytest.fixture
def scene(tmp_path: Path, serve: Serve) -> Iterator[Scene]:
    program("docker-registry")
    big = wheel("big", "1.0", files={"big/__init__.py": b"", "big/data": padding(2_200_000)})
    others = [big, *(small_wheel(f"pack{number}") for number in range(9))]
    changed = (small_wheel("alpha", "1.0"), small_wheel("alpha", "1.1"))
    index = serve([File(each) for each in (*others, *changed)])
    folder = tmp_path / "registry"
    folder.mkdir()
    with docker_registry.docker_registry(folder) as host:
        builder = Builder(tmp_path / "user", index.url, host)
        base = keep_base(builder.cache, make_base())
        made = [image_lock({X86: [pin(each) for each in (*others, alpha)]}, base.named()) for alpha in changed]
        first, second = (builder.writes_lock(lock, f"lock-{number}") for number, lock in enumerate(made))
        yield Scene(builder, host, folder / "data/docker/registry/v2/blobs/sha256", (first, second))


def test_one_layer_and_the_config_are_new_and_skopeo_moves_only_them(scene: Scene, tmp_path: Path) -> None:
    skopeo = [program("skopeo"), "--insecure-policy", "copy", "--preserve-digests", "--src-tls-verify=false"]

    def copied(tag: str) -> set[str]:
        where = f"oci:{tmp_path}/copy:{tag}"
        done = subprocess.run(
            [*skopeo, f"docker://{scene.host}/team/app:{tag}", where], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return {path.name for path in (tmp_path / "copy/blobs/sha256").iterdir()}

    first = scene.pushes(0, "1")
    before, there = scene.blobs(), copied("1")
    second = scene.pushes(1, "2")
    new = scene.blobs() - before
    assert second != first and second[7:] in new
    # The layer, the config, and the manifest that names them.
    assert len(new) == 3
    assert copied("2") - there == new
    told = scene.builder.image("diff", f"{scene.host}/team/app:1", f"{scene.host}/team/app:2", "--format", "json")
    moved = json.loads(told.stdout)["moved"]
    assert {row["digest"][7:] for row in moved} < new and len(moved) == 1


def test_nothing_changed_and_nothing_is_taken_in(scene: Scene) -> None:
    first = scene.pushes(0, "1")
    times = {path: path.stat().st_mtime_ns for path in scene.stored.glob("*/*/data")}
    links = sorted(path for path in scene.stored.parents[1].rglob("*") if path.is_file())
    assert times and links
    assert scene.pushes(0, "1") == first
    assert {path: path.stat().st_mtime_ns for path in scene.stored.glob("*/*/data")} == times
    assert sorted(path for path in scene.stored.parents[1].rglob("*") if path.is_file()) == links
    assert scene.pushes(0, "2") == first
    assert scene.blobs() == {path.parent.name for path in times}
