"""A uv.lock as LOCK of every command: the packages that it has, and nothing resolved."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import envspec
from envspec.lockfile.folder import read_lock
from envspec.models import BuiltWheel, Lock, Package
from envspec.structs import replace
from tests.operations.test_build_projects import Repository
from tests.support.builders.adopted import lock_project, settings_of, write_project
from tests.support.builders.images import ImageServers, ImageUser, hold_base, image_servers, make_base, small_wheel
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import refused, succeeded

WHEELS = (
    small_wheel("alpha"),
    small_wheel("beta", requires=["alpha"]),
    small_wheel("gamma"),
    small_wheel("delta"),
    small_wheel("torch"),
)
TEXT = """
dependencies = ["beta"]

[project.optional-dependencies]
more = ["gamma"]
other = ["delta"]

[dependency-groups]
dev = ["delta"]
"""
WITHOUT_PROJECT = ("--project", "none")


@dataclass
class Scene:
    servers: ImageServers
    folder: Path
    lock: Path

    def user(self, name: str = "user") -> ImageUser:
        return self.servers.user_in(self.folder / name)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with image_servers(*WHEELS) as servers:
        folder = tmp_path / "project"
        lock = write_project(folder, TEXT + settings_of(servers.base), servers.index)
        yield Scene(servers, tmp_path, lock)


def adopted(user: ImageUser) -> Lock:
    """The one lock that was made of another tool's."""
    (folder,) = (user.cache / "adopted").iterdir()
    return read_lock(folder / "lock")


def names(lock: Lock) -> list[str]:
    (part,) = lock.resolutions
    return [f"{each.name} {each.version}" for each in part.packages]


def test_its_packages_are_those_of_the_lock(scene: Scene) -> None:
    user = scene.user()
    scene.servers.index.forget()
    ran = succeeded(user.runs("explain", scene.lock, "--extra", "more", "--format", "json"))
    lock = adopted(user)
    assert names(lock) == ["alpha 1.0", "beta 1.0", "gamma 1.0"]
    by_name = {each.name: each for each in WHEELS}
    for package in lock.resolutions[0].packages:
        assert package.file.index == "default"
        assert package.file.url is None
        assert package.file.sha256 == by_name[package.name].sha256
    assert [each.name for each in lock.resolutions[0].packages[0].required_by] == ["beta"]
    decisions = {each["what"]: each["value"] for each in json.loads(ran.stdout)["decisions"]}
    assert decisions["packages"] == "uv.lock"
    assert "left out: --extra other, --group dev" in ran.stderr
    assert scene.servers.index.requests == []


def test_one_image_whoever_builds_it_where_and_by_which_words(scene: Scene) -> None:
    scene.servers.index.forget()
    first = scene.user("first").id_of(scene.lock, *WITHOUT_PROJECT, "--extra", "more", "--extra", "other")
    other = scene.folder / "elsewhere" / "a folder"
    shutil.copytree(scene.lock.parent, other)
    user = scene.user("second")
    reversed_words = (*WITHOUT_PROJECT, "--extra", "other", "--extra", "more")
    assert user.id_of(other / "uv.lock", *reversed_words) == first
    assert user.id_of(other / "uv.lock", *WITHOUT_PROJECT, "--all-extras") == first
    assert user.id_of(other / "uv.lock", *WITHOUT_PROJECT, "--all-extras", "--extra", "more") == first
    assert user.id_of(other / "uv.lock", *WITHOUT_PROJECT, "--extra", "more", "--all-extras") == first
    assert user.id_of(other / "uv.lock", *WITHOUT_PROJECT, "--all-extras", "--offline") == first
    assert user.id_of(other / "uv.lock", *WITHOUT_PROJECT) != first
    pyproject = other / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('dev = ["delta"]', 'dev = ["torch"]'))
    before = (other / "uv.lock").read_text()
    lock_project(other, scene.servers.index)
    assert (other / "uv.lock").read_text() != before
    assert user.id_of(other / "uv.lock", *WITHOUT_PROJECT, "--all-extras") == first


def test_who_requires_a_package_does_not_count(scene: Scene) -> None:
    text = '\ndependencies = ["beta"]\n\n[dependency-groups]\ndev = ["alpha"]\n' + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "project2", text, scene.servers.index)
    user = scene.user()
    first = user.id_of(lock, *WITHOUT_PROJECT)
    assert user.id_of(lock, *WITHOUT_PROJECT, "--group", "dev") == first
    assert user.id_of(lock, *WITHOUT_PROJECT, "--default-groups", "--no-group", "dev") == first


def test_a_platform_that_it_is_locked_for_anyway_does_not_count(scene: Scene) -> None:
    user = scene.user()
    first = user.id_of(scene.lock, *WITHOUT_PROJECT)
    assert user.id_of(scene.lock, *WITHOUT_PROJECT, "--platform", "linux-64") == first


def test_platforms_without_cuda(scene: Scene) -> None:
    pyproject = scene.lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text().partition("[tool.envspec")[0])
    for platform in ("osx-arm64", "win-64"):
        succeeded(scene.user().runs("fit", scene.lock, "--platform", platform))
    pyproject.write_text(f'{pyproject.read_text()}\n[tool.envspec.cuda]\ngpus = ["H100"]\n')
    succeeded(scene.user().runs("export", scene.lock, "--platform", "osx-arm64"))


def test_its_path_leads_through_a_link(scene: Scene) -> None:
    user = scene.user()
    first = user.id_of(scene.lock, *WITHOUT_PROJECT)
    (scene.lock.parent / "inner").mkdir()
    (scene.folder / "link").symlink_to(scene.lock.parent / "inner")
    for path in (scene.folder / "link" / ".." / "uv.lock", Path("..") / "link" / ".." / "uv.lock"):
        assert user.id_of(path, *WITHOUT_PROJECT) == first


def test_lock_gives_the_same_image(scene: Scene) -> None:
    user = scene.user()
    pyproject = scene.lock.with_name("pyproject.toml")
    text = pyproject.read_text().replace("[tool.envspec.image]\n", '[tool.envspec.image]\nproject = "none"\n')
    pyproject.write_text(f'{text}\n[tool.envspec.pip]\nfrom = "uv.lock"\nextras = ["more"]\n')
    folder = scene.lock.parent / "locks" / "app"
    succeeded(user.runs("lock", pyproject, "--output", folder))
    assert user.id_of(folder) == user.id_of(scene.lock)


def test_mirrors_are_those_of_the_project(scene: Scene) -> None:
    pyproject = scene.lock.with_name("pyproject.toml")
    mirrors = f'\n[tool.envspec.registry.mirrors]\n"docker.io" = "{scene.servers.registry.host}"\n'
    pyproject.write_text(pyproject.read_text() + mirrors)
    user = scene.user()
    del user.environ["ENVSPEC_REGISTRY_MIRRORS"]
    user.id_of(scene.lock, *WITHOUT_PROJECT)


def test_its_folder_has_a_name_that_is_no_text(scene: Scene) -> None:
    lock = Path(os.fsdecode(os.fsencode(scene.folder) + b"/\xff"), "uv.lock")
    shutil.copytree(scene.lock.parent, lock.parent)
    assert scene.user().id_of(lock, *WITHOUT_PROJECT) == scene.user("other").id_of(scene.lock, *WITHOUT_PROJECT)


def test_settings_that_last_are_those_of_the_project(scene: Scene) -> None:
    user = scene.user()
    by_words = user.id_of(scene.lock, *WITHOUT_PROJECT, "--extra", "more")
    pyproject = scene.lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text() + '\n[tool.envspec.pip]\nfrom = "uv.lock"\nextras = ["more"]\n')
    assert user.id_of(scene.lock, *WITHOUT_PROJECT) == by_words
    assert user.id_of(scene.lock, *WITHOUT_PROJECT, "--extra", "other") != by_words


def test_install_and_verify(scene: Scene) -> None:
    user, prefix = scene.user(), scene.folder / "env"
    succeeded(user.runs("install", scene.lock, "--prefix", prefix, "--extra", "more", "--python", sys.executable))
    succeeded(user.runs("verify", scene.lock, "--prefix", prefix, "--extra", "more"))
    drifted = user.runs("verify", scene.lock, "--prefix", prefix)
    assert drifted.status == 8
    assert "gamma" in drifted.stdout


def workspace(scene: Scene) -> Path:
    """The lock of a project with a member `own`."""
    backend = Repository(scene.folder / "unused")
    files = {name: (backend.folder / name).read_text() for name in ("backend.py", "VERSION", "own.py")}
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    member = f'[project]\nname = "own"\nversion = "1.0"\ndependencies = ["gamma"]\n\n{build}'
    text = (
        'dependencies = ["own"]\n\n[tool.uv.workspace]\nmembers = ["own"]\n\n'
        "[tool.uv.sources]\nown = { workspace = true }\n" + settings_of(scene.servers.base)
    )
    inner = {f"own/{name}": content for name, content in files.items()} | {"own/pyproject.toml": member}
    return write_project(scene.folder / "workspace", text, scene.servers.index, inner)


@confined
def test_the_project_and_a_member_are_built(scene: Scene) -> None:
    lock, user = workspace(scene), scene.user()
    first = user.id_of(lock)
    assert names(adopted(user)) == ["gamma 1.0", "own 1.0"]
    assert user.id_of(lock) == first
    (lock.parent / "own" / "own.py").write_text("ANSWER = 2\n")
    assert user.id_of(lock) != first


@confined
def test_a_member_of_a_lock_that_is_not_beside_the_spec(scene: Scene) -> None:
    lock, user = workspace(scene), scene.user()
    (lock.parent.parent / ".git").mkdir()
    text = settings_of(scene.servers.base).replace("tool.envspec.", "").replace("[env]", '[env]\nname = "small"')
    spec, folder = scene.folder / "specs" / "small.toml", scene.folder / "locks" / "small"
    spec.parent.mkdir()
    spec.write_text(f'{text}\n[pip]\nfrom = "../workspace/uv.lock"\n')
    succeeded(user.runs("lock", spec, "--output", folder))
    succeeded(checked(user, spec, folder))
    assert scene.user("other").id_of(folder) == user.id_of(folder)
    (lock.parent / "own" / "own.py").write_text("ANSWER = 2\n")
    assert checked(user, spec, folder).status == 3


@confined
def test_a_member_that_has_changed_is_locked_again(scene: Scene) -> None:
    lock, user = workspace(scene), scene.user()
    pyproject, folder = lock.with_name("pyproject.toml"), lock.parent / "locks" / "app"
    pyproject.write_text(f'{pyproject.read_text()}\n[tool.envspec.pip]\nfrom = "uv.lock"\n')
    succeeded(user.runs("lock", pyproject, "--output", folder))
    first = user.id_of(folder)
    assert user.id_of(lock) == first
    succeeded(checked(user, pyproject, folder))
    succeeded(checked(scene.user("other"), pyproject, folder))
    assert "nothing changed" in succeeded(user.runs("lock", pyproject, "--output", folder)).stderr
    assert scene.user("third").id_of(folder) == first
    (lock.parent / "own" / "own.py").write_text("ANSWER = 2\n")
    message = refused(scene.user("fourth").image("build", folder), 5)
    assert "own 1.0 was built of the folder own, and its wheel is not here" in message
    assert checked(user, pyproject, folder).status == 3
    succeeded(user.runs("lock", pyproject, "--output", folder))
    succeeded(checked(user, pyproject, folder))
    assert user.id_of(folder) != first


@confined
def test_a_version_that_a_build_computes_is_no_difference(scene: Scene) -> None:
    backend = Repository(scene.folder / "unused")
    inner = {f"my own/{name}": (backend.folder / name).read_text() for name in ("backend.py", "VERSION", "own.py")}
    inner["my own/pyproject.toml"] = (
        '[project]\nname = "own"\ndynamic = ["version", "dependencies"]\n\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    scene.servers.index.add(File(small_wheel("lib")))
    text = 'dependencies = ["own"]\n\n[tool.uv.sources]\nown = { path = "my own" }\n' + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "a project", text, scene.servers.index, inner)
    user, prefix = scene.user(), scene.folder / "env"
    succeeded(user.runs("install", lock, "--prefix", prefix, "--python", sys.executable))
    succeeded(user.runs("verify", lock, "--prefix", prefix))


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_folder_outside_of_the_project_is_not_built(scene: Scene, through_a_link: bool) -> None:
    """A lock may come with a pull request, and this machine has other projects."""
    folder, source = scene.folder / "repository" / "app", "../../private"
    (scene.folder / "private").mkdir()
    (scene.folder / "private" / "pyproject.toml").write_text('[project]\nname = "own"\nversion = "1.0"\n')
    (scene.folder / "repository" / ".git").mkdir(parents=True)
    if through_a_link:
        folder.mkdir()
        (folder / "inner").symlink_to(scene.folder / "private")
        source = "inner"
    text = f'dependencies = ["own"]\n\n[tool.uv.sources]\nown = {{ path = "{source}" }}\n' + settings_of(
        scene.servers.base
    )
    lock = write_project(folder, text, scene.servers.index)
    user = scene.user()
    prefix = scene.folder / "env"
    for ran in (user.image("build", lock), user.runs("install", lock, "--prefix", prefix, "--python", sys.executable)):
        assert f"own is the folder {source} of the project in {folder}, which leads out of it" in refused(ran, 2)


@confined
def test_a_build_that_needs_a_compiler_says_where_to_allow_it(scene: Scene) -> None:
    on_build = "import subprocess; subprocess.check_call(['cc'])"
    # uv reads metadata of 2.2 without a build.
    scene.servers.index.add(File(sdist("sourced", "1.0", on_build=on_build, metadata_version="2.2")))
    text = 'dependencies = ["sourced"]\n' + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "with-compiler", text, scene.servers.index)
    message = refused(scene.user().image("build", lock), 4)
    assert 'add "sourced" to `packages` in [tool.envspec.pip.build]' in " ".join(message.split())


def test_extras_that_conflict_are_named(scene: Scene) -> None:
    text = (
        '\n[project.optional-dependencies]\ncpu = ["alpha"]\ngpu = ["gamma"]\n'
        '[tool.uv]\nconflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]\n' + settings_of(scene.servers.base)
    )
    lock = write_project(scene.folder / "conflicts", text, scene.servers.index)
    message = refused(scene.user().runs("fit", lock, "--all-extras"), 2)
    assert "uv exports nothing: Extras `cpu` and `gpu` are incompatible" in message


def test_options_of_a_lock_that_is_not_there(scene: Scene) -> None:
    missing = scene.folder / "poetry.lock"
    message = refused(scene.user().runs("fit", missing, "--extra", "more"), 2)
    assert f"there is no lock {missing}" in message


def test_a_lock_without_packages_beside_the_projects_is_a_warning(scene: Scene) -> None:
    """[tool.envspec] may have settings for `image build uv.lock` alone."""
    user, folder = scene.user(), scene.lock.parent
    text = 'no packages are locked: add `from = "uv.lock"` to [tool.envspec.pip]'
    assert text in succeeded(user.runs("lock", folder, "--output", scene.folder / "empty")).stderr
    pyproject = folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + '\n[tool.envspec.pip]\nfrom = "uv.lock"\n')
    assert text not in succeeded(user.runs("lock", folder, "--output", scene.folder / "whole")).stderr


def test_an_environment_that_differs_is_installed_again_from_the_lock_that_was_named(scene: Scene) -> None:
    user, prefix = scene.user(), scene.folder / "env"
    succeeded(user.runs("install", scene.lock, "--prefix", prefix, "--python", sys.executable))
    ran = user.runs("verify", scene.lock, "--extra", "more", "--prefix", prefix)
    assert ran.status == 8
    assert f"`envspec install {scene.lock} --prefix DIR`" in ran.stderr


def test_a_dockerfile_of_a_project_says_how_to_leave_it_out(scene: Scene) -> None:
    """Nobody wrote [image] project: it follows from the project's [build-system]."""
    build = '\n[build-system]\nrequires = []\nbuild-backend = "backend"\n'
    lock = write_project(scene.folder / "built", build + settings_of(scene.servers.base), scene.servers.index)
    user = scene.user()
    message = refused(user.runs("export", lock, "--format", "dockerfile"), 2)
    assert 'or leave the project out: `project = "none"` in [tool.envspec.image]' in message
    with lock.with_name("pyproject.toml").open("a") as file:
        file.write('project = "none"\n')
    assert "COPY" in succeeded(user.runs("export", lock, "--format", "dockerfile")).stdout


@confined
def test_tools_that_are_newer_than_all_packages_build_a_project(scene: Scene) -> None:
    """`uv init` requires the uv_build of its own release: the first date with one is the same on every machine."""
    backend = Repository(scene.folder / "unused")
    own = {name: (backend.folder / name).read_text() for name in ("backend.py", "VERSION", "own.py")}
    code = own["backend.py"].replace("own-{version}", "app-{version}").replace("Name: own", "Name: app")
    own["backend.py"] = "import tool\n" + code
    build = '\n[build-system]\nrequires = ["tool>=2"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    lock = write_project(
        scene.folder / "new-tools",
        'dependencies = ["gamma"]\n' + build + settings_of(scene.servers.base),
        scene.servers.index,
        own,
    )
    assert "tool>=2" in refused(scene.user().image("build", lock), 4)
    scene.servers.index.add(File(wheel("tool", "2.0", files={"tool.py": b""}), day("2026-03-01")))
    scene.servers.index.add(File(wheel("tool", "3.0", files={"tool.py": b"raise ValueError"}), day("2026-03-02")))
    done = succeeded(scene.user().image("build", lock))
    assert "is built with the build tools of 2026-03-01: those of 2024-01-01 are older than it requires" in done.stderr
    assert scene.user().id_of(lock) == scene.user("other").id_of(lock)


@confined
def test_a_commit_is_built(scene: Scene) -> None:
    repository = Repository(scene.folder / "own.git")
    commit = repository.git("rev-parse", "HEAD")
    text = f'dependencies = ["own @ {repository.url}"]\n' + settings_of(scene.servers.base)
    scene.servers.index.add(File(small_wheel("lib")))
    lock = write_project(scene.folder / "with-commit", text, scene.servers.index)
    user = scene.user()
    succeeded(user.runs("fit", lock, "--gpu", "H100"))
    first = user.id_of(lock)
    (package,) = (each for each in adopted(user).resolutions[0].packages if each.name == "own")
    assert package.file.url == f"{repository.url}@{commit}"
    assert scene.user("other").id_of(lock) == first


@confined
def test_an_sdist_is_built_unless_that_is_not_allowed(scene: Scene) -> None:
    source = sdist("sourced", "1.0")
    scene.servers.index.add(File(source))
    text = 'dependencies = ["sourced"]\n' + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "with-sdist", text, scene.servers.index)
    user = scene.user()
    assert user.id_of(lock) == scene.user("other").id_of(lock)
    pyproject = lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text() + "\n[tool.envspec.pip.build]\npure = false\n")
    message = refused(user.image("build", lock), 4)
    assert "sourced 1.0: only an sdist" in message


def test_packages_of_another_index_are_fetched_from_there(scene: Scene) -> None:
    with IndexServer([File(small_wheel("epsilon"))]) as other:
        text = (
            f'dependencies = ["epsilon"]\n\n[[tool.uv.index]]\nname = "other"\nurl = "{other.url}"\nexplicit = true\n\n'
            '[tool.uv.sources]\nepsilon = { index = "other" }\n' + settings_of(scene.servers.base)
        )
        lock = write_project(scene.folder / "two-indexes", text, scene.servers.index)
        user = scene.user()
        user.id_of(lock)
        (package,) = adopted(user).resolutions[0].packages
        assert package.file.url == other.file_url(package.file.filename)
        assert package.file.index.startswith("127-0-0-1-")


CONFLICT = """
[project.optional-dependencies]
one = ["own"]
two = ["own"]

[tool.uv]
conflicts = [[{ extra = "one" }, { extra = "two" }]]
"""


def test_conflicting_extras_have_one_version_of_two_indexes(scene: Scene) -> None:
    wheels = [small_wheel("own"), small_wheel("own", requires=["alpha"])]
    scene.servers.index.add(File(wheels[0]))
    with IndexServer([File(wheels[1])]) as other:
        text = (
            f'{CONFLICT}\n[[tool.uv.index]]\nname = "other"\nurl = "{other.url}"\nexplicit = true\n\n'
            '[tool.uv.sources]\nown = [{ index = "other", extra = "two" }]\n' + settings_of(scene.servers.base)
        )
        lock = write_project(scene.folder / "conflict", text, scene.servers.index)
        for number, extra in enumerate(("one", "two")):
            user = scene.user(extra)
            succeeded(user.runs("explain", lock, "--extra", extra))
            (package,) = (each for each in adopted(user).resolutions[0].packages if each.name == "own")
            assert package.file.sha256 == wheels[number].sha256


def test_conflicting_extras_have_two_repositories(scene: Scene) -> None:
    repositories = [Repository(scene.folder / f"{name}.git") for name in ("one", "two")]
    scene.servers.index.add(File(small_wheel("lib")))
    sources = [f'{{ git = "{each.url[4:]}", extra = "{each.folder.stem}" }}' for each in repositories]
    text = f"{CONFLICT}\n[tool.uv.sources]\nown = [{', '.join(sources)}]\n" + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "conflict", text, scene.servers.index)
    for repository in repositories:
        user = scene.user(repository.folder.stem)
        succeeded(user.runs("explain", lock, "--extra", repository.folder.stem))
        (package,) = (each for each in adopted(user).resolutions[0].packages if each.name == "own")
        assert package.file.url == f"{repository.url}@{repository.git('rev-parse', 'HEAD')}"


def changed(lock: Path, pattern: str, replacement: str, count: int = 1) -> None:
    text, found = re.subn(pattern, replacement, lock.read_text(), count=count, flags=re.DOTALL)
    assert found
    lock.write_text(text)


def test_a_row_without_a_hash_is_refused(scene: Scene) -> None:
    changed(scene.lock, r'(name = "alpha".*?), hash = "sha256:[0-9a-f]+"', r"\1")
    message = refused(scene.user().image("build", scene.lock), 4)
    assert "alpha 1.0: it has no hash of alpha-1.0-py3-none-any.whl" in message


def test_a_hash_of_another_kind_is_none(scene: Scene) -> None:
    changed(scene.lock, r'(name = "alpha".*?hash = ")sha256:[0-9a-f]+', rf"\1md5:{'0' * 32}")
    message = refused(scene.user().image("build", scene.lock), 4)
    assert "alpha 1.0: it has no hash of alpha-1.0-py3-none-any.whl" in message


def test_an_index_that_is_a_folder_is_refused(scene: Scene) -> None:
    changed(scene.lock, r'(name = "alpha".*?registry = ")[^"]+', r"\1file:///etc")
    message = refused(scene.user().image("build", scene.lock), 2)
    assert "alpha comes from the folder file:///etc, which no other machine has" in message


def test_a_package_without_a_file_for_the_platform_is_refused(scene: Scene) -> None:
    changed(scene.lock, "alpha-1.0-py3-none-any", "alpha-1.0-cp39-cp39-win_amd64")
    message = refused(scene.user().runs("fit", scene.lock), 4)
    assert "uv.lock can't be installed on linux-64 with Python" in message
    assert "and glibc 2.36 as it is locked:\n  alpha 1.0: no wheel for that, only cp39-cp39-win_amd64" in message


def test_another_hash_is_found_when_the_file_is_fetched(scene: Scene) -> None:
    changed(scene.lock, r'(name = "alpha".*?hash = "sha256:)[0-9a-f]{4}', r"\g<1>0000")
    message = refused(scene.user().image("build", scene.lock, *WITHOUT_PROJECT), 5)
    assert "alpha" in message


def test_torch_in_what_is_not_selected(scene: Scene) -> None:
    text = '\n[project.optional-dependencies]\ngpu = ["torch"]\ncpu = ["torch"]\n' + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "with-torch", text, scene.servers.index)
    user = scene.user()
    message = refused(user.image("build", lock), 2)
    assert "torch is only in extra cpu, extra gpu, and none is selected" in message
    assert "--extra cpu or --extra gpu" in message
    succeeded(user.image("build", lock, "--extra", "gpu", *WITHOUT_PROJECT))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--extra", "nope"), "app has no extra nope"),
        (("--group", "nope"), "nope"),
        (("--package", "nope"), "there is no package nope in the workspace"),
        (("--python-version", "3.9"), "image.python: the base has Python"),
    ],
)
def test_what_is_not_in_the_lock_is_refused(scene: Scene, words: tuple[str, ...], problem: str) -> None:
    ran = scene.user().runs("fit", scene.lock, *words)
    assert ran.status != 0
    assert problem in ran.error
    assert "\n  hint: " in ran.error


def test_a_lock_without_its_project_is_refused(scene: Scene) -> None:
    scene.lock.with_name("pyproject.toml").unlink()
    assert "there is no pyproject.toml beside it" in refused(scene.user().runs("fit", scene.lock), 2)


def test_words_that_select_are_for_locks_of_other_tools(scene: Scene) -> None:
    user = scene.user()
    folder = user.writes_lock(scene.servers.lock_of(WHEELS[0]))
    assert "is no lock of another tool" in refused(user.image("id", folder, "--extra", "more"), 2)


def spec_beside(scene: Scene, rest: str = "") -> Path:
    path = scene.lock.with_name("spec.toml")
    base = settings_of(scene.servers.base).replace("tool.envspec.", "")
    text = base.replace("[env]", '[env]\nname = "small"') + f'\n[pip]\nfrom = "uv.lock"\n{rest}'
    path.write_text(text)
    return path


def checked(user: ImageUser, spec: Path, lock: Path) -> Any:
    return user.runs("lock", "--check", spec, "--output", lock)


def test_lock_copies_the_rows_and_check_compares_them(scene: Scene) -> None:
    user, folder = scene.user(), scene.folder / "locked"
    spec = spec_beside(scene, 'extras = ["more"]\n')
    succeeded(user.runs("lock", spec, "--output", folder))
    assert names(read_lock(folder)) == ["alpha 1.0", "beta 1.0", "gamma 1.0"]
    written = (folder / "envspec.lock").read_bytes()
    succeeded(checked(user, spec, folder))
    # Another machine compares every row.
    succeeded(checked(scene.user("other"), spec, folder))
    succeeded(user.runs("lock", spec, "--output", folder))
    assert (folder / "envspec.lock").read_bytes() == written
    changed(scene.lock, r'(name = "alpha".*?hash = "sha256:)[0-9a-f]{4}', r"\g<1>0000")
    assert checked(user, spec, folder).status == 3
    succeeded(user.runs("lock", spec, "--output", folder))
    succeeded(checked(scene.user("other"), spec, folder))


def with_packages(folder: Path, lock: Lock, packages: Iterable[Package]) -> None:
    """Write a lock with other packages, and the right checksums."""
    from envspec.operations.lock.complete import lock_files

    (part,) = lock.resolutions
    other = replace(lock, resolutions=(replace(part, packages=tuple(packages)),))
    for name, content in lock_files(other).items():
        (folder / name).write_bytes(content)


def test_lock_and_check_find_what_the_packages_hash_does_not_cover(scene: Scene) -> None:
    """Another time of an upload is another date of the lock."""
    user, folder = scene.user(), scene.folder / "locked"
    spec = spec_beside(scene)
    succeeded(user.runs("lock", spec, "--output", folder))
    for _ in range(2):
        succeeded(user.runs("lock", spec, "--output", folder))
        succeeded(checked(user, spec, folder))
    # With one, `python -m envspec` would compare the spec alone.
    assert list((user.cache / "index").glob("up-to-date-*")) == []
    changed(scene.lock, r'(name = "alpha".*?upload-time = ")2024', r"\g<1>2025")
    assert checked(user, spec, folder).status == 3
    succeeded(user.runs("lock", spec, "--output", folder))
    assert read_lock(folder).as_of.year == 2025
    succeeded(checked(user, spec, folder))


def test_check_finds_a_row_that_is_not_the_locks(scene: Scene) -> None:
    """As somebody would who edits the lock and its checksums: nothing but the rows tells."""
    user, folder = scene.user(), scene.folder / "locked"
    spec = spec_beside(scene)
    succeeded(user.runs("lock", spec, "--output", folder))
    lock = read_lock(folder)
    (part,) = lock.resolutions
    alpha = part.packages[0]
    for packages in (
        (replace(alpha, version="1.1"), *part.packages[1:]),
        (replace(alpha, file=replace(alpha.file, sha256="0" * 64)), *part.packages[1:]),
        part.packages[1:],
        (*part.packages, replace(alpha, name="zeta")),
        (replace(alpha, extras=("more",)), *part.packages[1:]),
        (replace(alpha, built=BuiltWheel(alpha.file.filename, "0" * 64, 1)), *part.packages[1:]),
    ):
        with_packages(folder, lock, packages)
        ran = checked(scene.user("other"), spec, folder)
        assert ran.status == 3, ran
        assert "differ" in ran.stdout + ran.stderr


def test_keys_that_choose_packages_can_not_stand_beside_from(scene: Scene) -> None:
    spec = spec_beside(scene, 'dependencies = ["gamma"]\n')
    message = refused(scene.user().runs("lock", spec), 2)
    assert 'pip.dependencies: chooses packages, and `from = "uv.lock"` has them all' in message


def test_two_bases_are_two_images(scene: Scene) -> None:
    other = make_base(layers=3)
    user = scene.user()
    first = user.id_of(scene.lock, *WITHOUT_PROJECT)
    pyproject = scene.lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text().replace(scene.servers.base.digest, other.digest))
    hold_base(scene.servers.registry.held, other)
    assert user.id_of(scene.lock, *WITHOUT_PROJECT) != first


def test_what_torch_of_another_index_is_built_for_is_unknown(scene: Scene) -> None:
    """Red Hat's wheels have neither a label nor NVIDIA's packages: they are no CPU builds for that."""
    with IndexServer([File(small_wheel("torch", "2.11.0"))]) as other:
        text = (
            f'dependencies = ["torch"]\n\n[[tool.uv.index]]\nname = "other"\nurl = "{other.url}"\nexplicit = true\n\n'
            '[tool.uv.sources]\ntorch = { index = "other" }\n' + settings_of(scene.servers.base)
        )
        lock = write_project(scene.folder / "rebuilt", text, scene.servers.index)
        ran = scene.user().runs("fit", lock, "--gpu", "H100", "--driver", "580")
        assert ran.status == 6
        assert re.search(r"unknown +gpu +what torch 2.11.0 of 127-0-0-1-\d+ is built for is unknown", ran.stdout)
        assert '[cuda] version = "13.0"' in ran.stdout


def test_a_comparison_of_images_names_the_lock_itself(scene: Scene) -> None:
    user = scene.user()
    words = '\n[tool.envspec.pip]\nfrom = "uv.lock"\nextras = ["more"]\n'
    other = scene.folder / "other" / "uv.lock"
    shutil.copytree(scene.lock.parent, other.parent)
    pyproject = other.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text() + words)
    ran = user.image("diff", scene.lock, other)
    assert ran.status == 10
    shown = [line.split()[0] for line in ran.stdout.splitlines()[:2]]
    assert [(user.folder / each).resolve() for each in shown] == [scene.lock, other]


@confined
def test_lock_records_the_wheels_that_it_builds(scene: Scene) -> None:
    repository = Repository(scene.folder / "own.git")
    commit = repository.git("rev-parse", "HEAD")
    scene.servers.index.add(File(sdist("sourced", "1.0")), File(small_wheel("lib")))
    text = f'dependencies = ["sourced", "own @ {repository.url}"]\n' + settings_of(scene.servers.base)
    lock = write_project(scene.folder / "project2", text, scene.servers.index)
    spec = spec_beside(scene).rename(lock.with_name("spec.toml"))
    user, folder = scene.user(), lock.with_name("locks") / "small"
    succeeded(user.runs("lock", spec, "--output", folder))
    locked = {each.name: each for each in read_lock(folder).resolutions[0].packages}
    assert locked["sourced"].built is not None
    assert locked["own"].file.sha256 == (locked["own"].built and locked["own"].built.sha256)
    assert locked["own"].file.url == f"{repository.url}@{commit}"
    assert locked["own"].version == "1.0"
    written = (folder / "envspec.lock").read_bytes()
    succeeded(checked(user, spec, folder))
    succeeded(checked(scene.user("other"), spec, folder))
    succeeded(scene.user("third").runs("lock", spec, "--output", folder))
    assert (folder / "envspec.lock").read_bytes() == written
    user.id_of(folder)
    with_packages(folder, read_lock(folder), [replace(locked["own"], version="9.9"), locked["lib"], locked["sourced"]])
    assert checked(scene.user("other"), spec, folder).status == 3


def test_python_code_takes_it_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVSPEC_CACHE_DIR", str(scene.folder / "cache"))
    lock = envspec.read_lock(scene.lock, settings={"pip": {"extras": ["more"]}})
    assert names(lock) == ["alpha 1.0", "beta 1.0", "gamma 1.0"]
    assert envspec.fit(lock, gpus=["H100"]).verdict.value == "fits"


def test_a_lock_that_is_older_than_its_project_is_refused(scene: Scene) -> None:
    user = scene.user()
    first = user.id_of(scene.lock, *WITHOUT_PROJECT)
    pyproject = scene.lock.with_name("pyproject.toml")
    pyproject.write_text(pyproject.read_text().replace('dependencies = ["beta"]', 'dependencies = ["beta", "gamma"]'))
    message = refused(user.image("build", scene.lock, *WITHOUT_PROJECT), 3)
    assert "is older than its project" in message
    assert "gamma" in message
    assert "`uv lock`, or use it as it is with `--frozen`" in message
    assert "gamma" in refused(user.runs("lock", spec_beside(scene)), 3)
    assert user.id_of(scene.lock, *WITHOUT_PROJECT, "--frozen") == first
    refused(user.image("build", scene.lock, *WITHOUT_PROJECT), 3)


def test_a_member_that_is_new_makes_a_lock_older_than_its_project(scene: Scene) -> None:
    member = '[project]\nname = "{}"\nversion = "1.0"\n'
    text = '\n[tool.uv.workspace]\nmembers = ["members/*"]\n' + settings_of(scene.servers.base)
    inner = {"members/one/pyproject.toml": member.format("one")}
    lock = write_project(scene.folder / "workspace", text, scene.servers.index, inner)
    user = scene.user()
    succeeded(user.runs("explain", lock))
    (lock.parent / "members" / "two").mkdir()
    (lock.parent / "members" / "two" / "pyproject.toml").write_text(member.format("two"))
    assert "two is a member of the workspace" in refused(user.runs("explain", lock), 3)


def test_a_file_that_uv_cannot_read_is_locked_again(scene: Scene) -> None:
    scene.lock.write_text("version = 9\n")
    message = refused(scene.user().runs("fit", scene.lock), 2)
    assert "uv can't read it: Failed to parse `uv.lock`" in message
    assert "hint: run `uv lock`" in message
