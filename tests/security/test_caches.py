"""What other users of a machine left in envspec's cache is never used, and what envspec keeps there they can't read.

Attackers are other users where the tests run as root; elsewhere a folder that all may write to stands for theirs.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.facts import load_facts
from envspec.installer.staging import staging_path
from envspec.io.cache import UnsafeCache, cache_problem, cache_root
from envspec.models import Python
from tests.conftest import Serve
from tests.support.builders.environments import BASE, installs, make_lock, pin, write_lock
from tests.support.builders.images import image_servers, small_wheel
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.user import Ran, User, refused, routed, succeeded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="not run: modes are of Unix")

IS_ROOT = sys.platform != "win32" and os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="not run: only root can give files to another user")
#: Of nobody that has files on the machine.
OTHER = 54321
APP = wheel("app", "1.0.0")
SPEC = ("app",)
AS_OF = "2026-11-15T00:00:00Z"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder for temporary files that all users have: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def of_another(folder: Path) -> None:
    """Make all of a folder another user's, or what everybody could have written."""
    for path in (folder, *folder.rglob("*")):
        if IS_ROOT:
            os.chown(path, OTHER, OTHER, follow_symlinks=False)
        elif not path.is_symlink():
            path.chmod(0o777)


def folder_in(place: Path, mode: int, owner: int | None = None) -> Path:
    place.mkdir()
    place.chmod(mode)
    if owner is not None:
        os.chown(place, owner, owner)
    return place


def lay(place: Path, steps: str) -> Path:
    """Make what the steps name below a folder, and return its `cache`, or the path after `=`.

    A step is `PATH MODE` for a folder, `PATH MODE file` or `PATH MODE pipe`, or `PATH -> TARGET` for a link, each with
    ` !` at its end for what belongs to another user. `<>` stands for the folder in targets.
    """
    root = place / "cache"
    for step in filter(None, map(str.strip, steps.split(","))):
        words, is_other = step.removesuffix(" !").split(), step.endswith(" !")
        path = place / words[0]
        if words[0] == "=":
            root = place / words[1]
            continue
        if words[1] == "->":
            path.symlink_to(words[2].replace("<>", str(place)))
        elif words[2:] == ["file"]:
            path.touch()
        elif words[2:] == ["pipe"]:
            os.mkfifo(path)
        else:
            path.mkdir()
        if words[1] != "->":
            path.chmod(int(words[1], 8))
        if is_other:
            os.lchown(path, OTHER, OTHER)
    return root


# The folder

BY_ANYBODY = (
    *("cache 777", "cache 1777", "above 777, = above/cache", "above 777, above/cache 700, = above/cache"),
    *("real 777, cache -> <>/real", "above 777, above/real 700, cache -> link/real, link -> <>/above"),
    *("cache 700, above 777, = above/../cache", "cache 755, cache/index 755, cache/index/v1.sqlite 666 file"),
    "cache 755, cache/pythons 777",
)
BY_ROOT = (
    *("cache 700 !", "above 755 !, = above/cache", "real 700, cache -> <>/real !", "cache 644 pipe !"),
    *("cache 755, cache/conda-packages 755 !", "cache 755, cache/index -> <> !"),
)


@pytest.mark.parametrize("steps", [*BY_ANYBODY, *(pytest.param(each, marks=as_root) for each in BY_ROOT)])
def test_a_folder_that_others_could_write_to_is_refused(steps: str, shared: Path) -> None:
    is_refused(lay(shared, steps))


@as_root
def test_a_folder_of_another_group_is_refused(shared: Path) -> None:
    root = folder_in(shared / "cache", 0o770)
    os.chown(root, -1, OTHER)
    is_refused(root)


def is_refused(root: Path) -> None:
    with pytest.raises(UnsafeCache) as found:
        cache_root({"ENVSPEC_CACHE_DIR": str(root)})
    assert found.value.exit_code == 6
    assert str(root) in found.value.message and "mode " in found.value.message
    assert found.value.hint is not None and "ENVSPEC_CACHE_DIR" in found.value.hint


#: In a sticky folder, readable, by a link, below new folders, and with what containers wrote.
OWN = (
    *("", "cache 755, cache/index 755", "elsewhere 755, elsewhere/real 755, cache -> elsewhere/real", "= a/b/cache"),
    "cache 755, cache/compiled 755, cache/compiled/0123 755, cache/compiled/0123/kernel 666 file",
)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("steps", OWN)
def test_a_folder_of_ones_own_is_closed(steps: str, umask: int, shared: Path) -> None:
    root = lay(shared, steps)
    before = os.umask(umask)
    try:
        assert cache_root({"ENVSPEC_CACHE_DIR": str(root)}) == root
        assert cache_root({"ENVSPEC_CACHE_DIR": str(root)}) == root
    finally:
        os.umask(before)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for folder in root.resolve().parents:
        assert not folder.stat().st_mode & 0o022 or folder.stat().st_mode & stat.S_ISVTX


def test_what_is_below_conda_packages_brings_modes_of_its_own(shared: Path) -> None:
    package = "cache/conda-packages/thing-1.0-0"
    steps = f"cache 755, cache/conda-packages 755, {package} 775, {package}/data 666 file"
    cache_root({"ENVSPEC_CACHE_DIR": str(lay(shared, steps))})


@as_root
def test_a_folder_that_another_renames_to_the_caches_name(shared: Path) -> None:
    """In a sticky folder everybody may make the cache first, or put theirs there when it is not there yet."""
    folder_in(shared / "theirs", 0o755, OTHER)
    (shared / "theirs").rename(shared / "cache")
    assert cache_problem(shared / "cache") is not None
    with pytest.raises(UnsafeCache, match="owner 54321, mode 0755"):
        cache_root({"ENVSPEC_CACHE_DIR": str(shared / "cache")})


def test_the_doctor_says_so_and_changes_nothing(shared: Path, tmp_path: Path) -> None:
    folder_in(shared / "cache", 0o777)
    ran = User(tmp_path, "http://127.0.0.1:9", ENVSPEC_CACHE_DIR=str(shared / "cache")).runs("doctor")
    assert ran.status == 6
    assert f"{shared}/cache is writable by others" in ran.stdout and f"rm -r {shared}/cache" in ran.stdout
    assert stat.S_IMODE((shared / "cache").stat().st_mode) == 0o777


# What is in it


def victim_of(tmp_path: Path, url: str, planted: Path) -> User:
    user = User(tmp_path / "victim", url, ENVSPEC_CACHE_DIR=str(planted))
    user.wants(*SPEC, as_of=AS_OF)
    return user


def _poison_answers(store: sqlite3.Connection) -> None:
    store.execute("UPDATE entry SET value = replace(value, ?, ?) WHERE kind = 'result'", (APP.sha256, "0" * 64))


def _poison_pages(store: sqlite3.Connection) -> None:
    store.execute("DELETE FROM entry WHERE kind != 'page'")
    for key, name, body in store.execute("SELECT key, name, body FROM entry").fetchall():
        bad = bytes(body).replace(APP.sha256.encode(), b"0" * 64)
        store.execute("UPDATE entry SET body = ? WHERE key = ? AND name = ?", (bad, key, name))


@pytest.mark.parametrize("poison", [_poison_answers, _poison_pages])
def test_planted_rows_give_no_lock(
    poison: Callable[[sqlite3.Connection], None], shared: Path, tmp_path: Path, serve: Serve
) -> None:
    index = serve([File(APP)])
    user = victim_of(tmp_path, index.url, shared / "cache")
    assert user.locks().status == 0
    shutil.rmtree(user.lock.parent)
    (database,) = (shared / "cache").rglob("*.sqlite")
    with sqlite3.connect(database) as store:
        poison(store)
        assert store.total_changes
    store.close()
    of_another(shared / "cache")
    assert "not safe from other users" in refused(user.locks(), 6)
    assert not user.files()


def image_id(user: User, lock: Path) -> Ran:
    return user.runs("image", "id", lock)


def test_a_planted_image_is_not_told(shared: Path, tmp_path: Path) -> None:
    with image_servers(small_wheel("one")) as servers:
        user = servers.user_in(tmp_path / "victim", ENVSPEC_CACHE_DIR=str(shared / "cache"))
        lock = user.writes_lock(servers.lock_of(small_wheel("one")))
        assert image_id(user, lock).status == 0
    (note,) = (shared / "cache" / "image-known").iterdir()
    row = json.loads(note.read_bytes())
    note.write_text(json.dumps(row | {"ids": [[platform, "sha256:" + "0" * 64] for platform, _ in row["ids"]]}))
    of_another(shared / "cache")
    refused(image_id(user, lock), 6)


def test_a_planted_python_is_not_run(shared: Path, tmp_path: Path) -> None:
    """One that envspec's own data names is trusted, and run without being confined."""
    here = this_platform()
    row = load_facts().standalone_pythons("3.11", here)[-1]
    series = ".".join(row.version.split(".")[:2])
    program = shared / "cache" / "pythons" / row.sha256 / "python" / "bin" / f"python{series}"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho owned >{tmp_path}/owned\n")
    program.chmod(0o755)
    of_another(shared / "cache")
    with image_servers(small_wheel("one")) as servers:
        user = servers.user_in(tmp_path / "victim", ENVSPEC_CACHE_DIR=str(shared / "cache"))
        python = Python(row.version, "system")
        lock = user.writes_lock(servers.lock_of(small_wheel("one"), python=python))
        ran = user.runs("image", "build", lock)
    assert not (tmp_path / "owned").exists()
    refused(ran, 6)


# Who reads it


@pytest.mark.parametrize("umask", [0o000, 0o022], ids=oct)
def test_a_private_page_is_closed_to_others(umask: int, shared: Path, tmp_path: Path, serve: Serve) -> None:
    public, private = serve([]), serve([File(wheel("secret", "1.0.0"))], credentials=("me", "hunter2"))
    user = User(tmp_path, public.url, ENVSPEC_CACHE_DIR=str(shared / "cache"))
    user.wants("secret", as_of=AS_OF, rest=routed("own", private.url_with_credentials, "secret"))
    assert user.runs_anew("lock", user.spec.name, umask=umask).status == 0
    (database,) = (shared / "cache").rglob("*.sqlite")
    assert b"secret" in database.read_bytes()
    if IS_ROOT:
        read = subprocess.run(["cat", database], user=OTHER, group=OTHER, capture_output=True, check=False)
        assert (read.stdout, read.returncode) == (b"", 1)
    assert stat.S_IMODE((shared / "cache").stat().st_mode) == 0o700


# What leads back into it


def test_a_file_of_an_environment_is_not_everybodys(tmp_path: Path, serve: Serve) -> None:
    """uv links environments to its cache: who writes to a file of one would write to all that are made later."""
    index = serve([File(APP)])
    user = User(tmp_path, index.url)
    lock = write_lock(tmp_path / "lock", make_lock(wheels=[pin(APP)]))
    succeeded(user.runs_anew("install", lock, "--prefix", "env", "--python", BASE, umask=0o000))
    cached = {path.stat().st_ino for path in (user.cache / "uv").rglob("*.py")}
    for path in (tmp_path / "env").rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o022 or path.stat().st_ino not in cached, path


@as_root
def test_an_environment_is_not_built_in_a_folder_of_another(shared: Path, tmp_path: Path, serve: Serve) -> None:
    index = serve([File(APP)])
    user = User(tmp_path, index.url)
    lock = write_lock(tmp_path / "lock", make_lock(wheels=[pin(APP)]))
    folder_in(staging_path(shared / "env"), 0o777, OTHER)
    text = refused(installs(user, lock, "--python", BASE, prefix=str(shared / "env")), 2)
    assert "belongs to another user" in text
    assert not (shared / "env").exists()
