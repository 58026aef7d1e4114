"""`image verify` with locks of other tools: what they select, and sources that are built only for an image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.operations.test_build_projects import Repository
from tests.support import preloaded
from tests.support.builders.adopted import TEXT, lock_project, settings_of, write_project
from tests.support.builders.images import ImageServers, ImageUser, hold_base, image_servers, make_base, small_wheel
from tests.support.builders.projects import File
from tests.support.builders.wheels import sdist
from tests.support.machines.confinement import confined
from tests.support.servers.registry import digest
from tests.support.user import succeeded

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")


@dataclass
class Scene:
    servers: ImageServers
    folder: Path

    def user(self, name: str) -> ImageUser:
        return self.servers.user_in(self.folder / name)

    def project(self, name: str, text: str, files: dict[str, str] | None = None) -> Path:
        return write_project(self.folder / name, text + settings_of(self.servers.base), self.servers.index, files or {})

    def pushed(self, user: ImageUser, *words: str | Path) -> str:
        name = f"{self.servers.registry.host}/team/app:1"
        succeeded(user.image("build", *words, "--push", name))
        return name


def verified(user: ImageUser, status: int, *words: str | Path) -> dict[str, Any]:
    ran = user.image("verify", *words, "--format", "json")
    assert ran.status == status, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with image_servers(*map(small_wheel, ("alpha", "beta", "gamma", "delta"))) as servers:
        yield Scene(servers, tmp_path)


def test_an_image_is_compared_with_what_is_selected(scene: Scene) -> None:
    lock = scene.project("project", TEXT)
    builder, reader = scene.user("builder"), scene.user("reader")
    name = scene.pushed(builder, lock, "--project", "none", "--extra", "more")
    words = (name, lock, "--project", "none")
    assert "image ID" in verified(builder, 0, *words, "--extra", "more")["compared"]
    assert "image ID" not in verified(reader, 0, *words, "--all-extras")["compared"]
    [found] = [each for each in verified(reader, 8, *words)["findings"] if each["field"] == "package"]
    assert (found["code"], found["package"], found["found"]) == ("extra", "gamma", "1.0")
    assert "files" in verified(reader, 0, *words, "--all-extras", "--deep")["compared"]
    # What is not in the image may change.
    pyproject = lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text().replace('dev = ["delta"]', "dev = []"))
    lock_project(lock.parent, scene.servers.index)
    verified(scene.user("third"), 0, *words, "--extra", "more")
    text = reader.image("verify", *words).stderr
    assert "cache" not in text, "the lock's own name, not that of a folder in the cache"


def test_a_tag_of_the_base_that_moved_is_no_difference(scene: Scene) -> None:
    servers = scene.servers
    held = servers.registry.held
    hold_base(held, make_base(), tag="1")
    text = TEXT + settings_of(servers.base).replace(f"@{servers.base.digest}", "")
    lock = write_project(scene.folder / "project", text, servers.index)
    builder, reader = scene.user("builder"), scene.user("reader")
    words = (scene.pushed(builder, lock, "--project", "none"), lock, "--project", "none")
    other = scene.pushed(builder, lock, "--project", "none", "--extra", "more").replace(":1", ":2")
    held.tags["team/app"]["2"] = held.tags["team/app"]["1"]
    scene.pushed(builder, lock, "--project", "none")
    hold_base(held, make_base(layers=3), tag="1")
    _, moved = held.tags["nvidia/cuda"]["1"]
    for options in ((), ("--deep",)):
        found = verified(reader, 0, *words, *options)
        assert "base" in found["compared"]
        assert "by its tag" in found["not_compared"][-1]["why"]
    assert "files" in found["compared"]
    [found] = [each for each in verified(reader, 8, other, *words[1:])["findings"] if each["field"] == "package"]
    assert found["package"] == "gamma"
    # A digest in the settings counts.
    pyproject = lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text().replace("nvidia/cuda:1", f"nvidia/cuda:1@{digest(moved)}"))
    assert "base" in [each["field"] for each in verified(reader, 8, *words)["findings"]]


def sources(scene: Scene, kind: str) -> tuple[str, dict[str, str]]:
    """The text of a project with a package that must be built, and its files."""
    if kind == "sdist":
        scene.servers.index.add(File(sdist("sourced", "1.0")))
        return 'dependencies = ["sourced"]\n', {}
    repository = Repository(scene.folder / "own.git")
    scene.servers.index.add(File(small_wheel("lib")))
    if kind == "commit":
        return f'dependencies = ["own @ {repository.url}"]\n', {}
    files = {f"own/{name}": (repository.folder / name).read_text() for name in ("backend.py", "VERSION", "own.py")}
    files["own/pyproject.toml"] = (
        '[project]\nname = "own"\nversion = "1.0"\ndependencies = ["gamma"]\n\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    text = 'dependencies = ["own"]\n\n[tool.uv.workspace]\nmembers = ["own"]\n\n'
    return text + "[tool.uv.sources]\nown = { workspace = true }\n", files


@confined
@pytest.mark.parametrize("kind", ["sdist", "commit", "member"])
def test_wheels_that_no_lock_records_are_no_difference(kind: str, scene: Scene) -> None:
    lock = scene.project("project", *sources(scene, kind))
    builder, reader = scene.user("builder"), scene.user("reader")
    name = scene.pushed(builder, lock)
    assert "image ID" in verified(builder, 0, name, lock)["compared"]
    assert "image ID" not in verified(reader, 0, name, lock)["compared"]
    assert "files" in verified(reader, 0, name, lock, "--deep")["compared"]
    assert "image ID" in verified(reader, 0, name, lock)["compared"]
    if kind == "member":
        (lock.parent / "own" / "own.py").write_text("ANSWER = 2\n")
        found = verified(reader, 8, name, lock, "--deep")["findings"]
        assert "/own.py" in " ".join(each["path"] for each in found if each["package"] == "own")
