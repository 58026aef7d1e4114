"""sdists that were locked without a build, where a container confines builds and bubblewrap is not installed."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.build.test_container import index_of, pythons, user_of
from tests.support.builders.wheels import sdist
from tests.support.machines.confinement import confined, prey
from tests.support.machines.standin import Pushed
from tests.support.user import refused, succeeded

pytestmark = [pytest.mark.engine, confined]
__all__ = ["pythons"]


def path_without_bubblewrap(folder: Path) -> str:
    """A PATH with all of this machine's programs but one."""
    folder.mkdir()
    for name in os.defpath.split(os.pathsep):
        for each in Path(name or ".").iterdir():
            if each.name != "bwrap" and not (folder / each.name).exists():
                (folder / each.name).symlink_to(each)
    return str(folder)


def test_it_is_built_in_the_base_and_the_image_is_the_same(standin_base: Pushed, pythons: str, tmp_path: Path) -> None:
    """The base has no compilers: the wheel is the one that bubblewrap gives, without those of the machine."""
    bare = {"PATH": path_without_bubblewrap(tmp_path / "bin")}
    with prey(tmp_path / "home", tmp_path / "cache") as victim, index_of(victim.source()) as index:
        user = user_of(tmp_path, index, standin_base, pythons, pip="")
        assert "built" in user.packages()["own"]
        confined_id = succeeded(user.runs("image", "build", user.lock)).stdout
        for name in ("locks", "cache"):
            shutil.rmtree(tmp_path / name)
        succeeded(user.runs("lock", "spec.toml", environ=bare))
        assert user.packages()["own"]["unbuilt"] == "static"
        ran = succeeded(user.runs("image", "build", user.lock, environ=victim.environ | bare))
        [made] = (tmp_path / "cache" / "archives").glob("*/own-1.0.0-*.whl")
        with zipfile.ZipFile(made) as archive:
            assert archive.read("own/__init__.py") == b"GOT = []\n"
        assert victim.is_unharmed()
    assert ran.stdout == confined_id


def test_a_build_that_needs_a_compiler_finds_none_in_the_base(
    standin_base: Pushed, pythons: str, tmp_path: Path
) -> None:
    bare = {"PATH": path_without_bubblewrap(tmp_path / "bin")}
    compiling = 'import shutil\nif not shutil.which("cc"):\n    raise SystemExit("no cc is here")\n'
    with index_of(sdist("own", "1.0.0", on_build=compiling)) as index:
        user = user_of(tmp_path, index, standin_base, pythons, pip="", environ=bare)
        message = refused(user.runs("image", "build", user.lock, environ=bare), 4)
    assert "own 1.0.0: its build failed" in message and "no cc is here" in message
