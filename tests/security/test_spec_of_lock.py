"""The path of its spec in a lock decides whose files an image contains: it is followed in the lock's project only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from envspec.models import BaseImage, ImageSettings, PinnedDigest
from envspec.spec.owner import find_spec_of
from tests.support import preloaded
from tests.support.builders.environments import pin
from tests.support.builders.images import X86, ImageUser, image_lock, small_wheel
from tests.support.builders.locks import sha256
from tests.support.user import refused, succeeded

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

BASE: Final = BaseImage("docker.io/library/debian", "12", "", "", "", (PinnedDigest(X86, f"sha256:{sha256('x')}", ""),))
SPEC: Final = '[env]\nname = "small"\npython = "3.11"\n[variants.other]\n'
COPIES: Final = ImageSettings(copy=(".",))


@dataclass
class Scene:
    """Somebody's repository in `work/repository`, beside the home folder of a victim."""

    builder: ImageUser
    victim: Path

    @property
    def repository(self) -> Path:
        return self.builder.folder

    def lock(self, spec: str, name: str = "small", image: ImageSettings = COPIES, folder: str = "locks/small") -> Path:
        rows = {X86: [pin(small_wheel("alpha"))]}
        return self.builder.writes_lock(image_lock(rows, BASE, image=image, spec=spec, name=name), folder)


@pytest.fixture(params=["git", "locks"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    """In a git repository, or in a folder that is known by `locks` alone."""
    victim = tmp_path / "victim"
    for name in (".netrc", ".ssh/id_rsa", "src/secret.txt"):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("secret")
    (victim / "spec.toml").write_text(SPEC)
    builder = ImageUser(tmp_path / "work" / "repository", "http://127.0.0.1:9/simple/")
    builder.writes(SPEC)
    (builder.folder / "src").mkdir()
    (builder.folder / "src" / "main.py").write_text("")
    if request.param == "git":
        subprocess.run(["git", "init", "--quiet", "."], cwd=builder.folder, check=True)
    return Scene(builder, victim)


def _link(scene: Scene, name: str, to: str) -> None:
    (scene.repository / name).symlink_to(to)


def _two_links(scene: Scene) -> None:
    _link(scene, "a", ".")
    _link(scene, "b", "../../victim")


LEADS_OUT: Final[dict[str, tuple[str, Callable[[Scene], object]]]] = {
    "a file of a home folder": ("../../../../victim/.netrc", lambda _: None),
    "a key": ("../../../../victim/.ssh/id_rsa", lambda _: None),
    "a spec of the same name": ("../../../../victim/spec.toml", lambda _: None),
    "a file that is not there": ("../../../../victim/none.toml", lambda _: None),
    "the folder above": ("../../../x.toml", lambda _: None),
    "a link to a folder": ("../../home2/spec.toml", lambda scene: _link(scene, "home2", "../../victim")),
    "a link to a file": ("../../spec2.toml", lambda scene: _link(scene, "spec2.toml", "../../victim/spec.toml")),
    "links between": ("../../a/b/spec.toml", _two_links),
    "out and in again": ("../../../repository/../../victim/spec.toml", lambda _: None),
}


@pytest.mark.parametrize("case", LEADS_OUT)
def test_a_path_that_leads_out_is_refused(case: str, scene: Scene) -> None:
    spec, change = LEADS_OUT[case]
    change(scene)
    for image in (
        COPIES,
        ImageSettings(copy=("src",)),
        ImageSettings(project="wheel"),
        ImageSettings(project="editable"),
    ):
        lock = scene.lock(spec, image=image)
        for words in (("image", "build", lock, "--output", "x.tar"), ("image", "id", lock)):
            error = refused(scene.builder.runs(*words), 2)
            assert f"names {spec} as its spec, and that leads out of {scene.repository}" in error
    assert not (scene.repository / "x.tar").exists()
    # What contains no code of a project needs none.
    succeeded(scene.builder.runs("explain", lock))
    succeeded(scene.builder.runs("install", lock, "--prefix", "env", "--dry-run"))


def test_an_absolute_path_is_refused(scene: Scene) -> None:
    for path in (scene.victim / "spec.toml", scene.repository / "spec.toml"):
        error = refused(scene.builder.runs("image", "build", scene.lock(str(path))), 2)
        assert f"names {path} as its spec, and an absolute path" in error


OTHERS: Final[dict[str, tuple[str, str]]] = {
    "another environment": ('[env]\nname = "other"\n', "small"),
    "a variant that it lacks": (SPEC, "small-gpu"),
    "no spec": ("secret\n", "small"),
    "no environment": ("[tool]\n", "small"),
    "a name that is none": ("[env]\nname = 1\n", "small"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_spec_of_something_else_is_refused(case: str, scene: Scene) -> None:
    text, name = OTHERS[case]
    (scene.repository / "other.toml").write_text(text)
    error = refused(scene.builder.runs("image", "build", scene.lock("../../other.toml", name)), 2)
    assert f"{scene.repository}/other.toml is not a spec of {name}" in error.replace(
        "and other", f"and {scene.repository}/other"
    )


def test_run_refuses_it_too(scene: Scene) -> None:
    ran = scene.builder.runs("run", scene.lock("../../../../victim/.netrc"), "true")
    assert ran.status != 0 and "secret" not in ran.stderr + ran.stdout


@pytest.mark.parametrize("name", ["small", "small-other"])
def test_the_locks_own_spec_is_followed(name: str, scene: Scene) -> None:
    """Its folder is then the project's: the next error is that this has no such path."""
    error = refused(
        scene.builder.runs("image", "build", scene.lock("../../spec.toml", name, ImageSettings(copy=("x",)))), 2
    )
    assert f"there is no x in {scene.repository}" in error


def test_links_inside_of_the_repository_are_followed(scene: Scene) -> None:
    (scene.repository / "project").mkdir()
    (scene.repository / "project" / "spec.toml").write_text(SPEC)
    _link(scene, "link", "project")
    lock = scene.lock("../../link/spec.toml", image=ImageSettings(copy=("x",)))
    assert "there is no x in" in refused(scene.builder.runs("image", "build", lock), 2)


def test_which_project_a_lock_belongs_to(tmp_path: Path) -> None:
    """The git repository around it; else the folder that contains `locks`; else the folder above the lock's."""
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC)
    for folder, is_inside in (("lock", True), ("a/lock", False), ("locks", True), ("locks/team/lock", True)):
        directory = tmp_path / folder
        path = os.path.relpath(spec, directory)
        if is_inside:
            assert find_spec_of(path, directory) == Path(os.path.relpath(spec))
            continue
        with pytest.raises(Exception, match="leads out of"):
            find_spec_of(path, directory)
    # A file stands for the repository of a worktree, and of a submodule.
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n")
    assert find_spec_of("../../spec.toml", tmp_path / "a" / "lock") == Path(os.path.relpath(spec))
    assert find_spec_of("../../none.toml", tmp_path / "a" / "lock") is None
    assert find_spec_of("", tmp_path / "a" / "lock") is None
    assert find_spec_of("../\0", tmp_path / "a" / "lock") is None


def test_a_repository_called_specs_is_not_left(tmp_path: Path) -> None:
    """A spec in `specs` has its project in the folder above, which is none of this repository's."""
    repository = tmp_path / "specs"
    (repository / ".git").mkdir(parents=True)
    (repository / "spec.toml").write_text(SPEC)
    with pytest.raises(Exception, match="leads out of"):
        find_spec_of("../../spec.toml", repository / "locks" / "small")
