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
from tests.support.builders.images import small_wheel, standing
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.user import Ran, User, refused, routed

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


# The folder


def _writable(place: Path) -> Path:
    return folder_in(place / "cache", 0o777)


def _sticky(place: Path) -> Path:
    return folder_in(place / "cache", 0o1777)


def _below_writable(place: Path) -> Path:
    return folder_in(place / "above", 0o777) / "cache"


def _closed_below_writable(place: Path) -> Path:
    return folder_in(folder_in(place / "above", 0o777) / "cache", 0o700)


def _link_to_writable(place: Path) -> Path:
    (place / "cache").symlink_to(folder_in(place / "real", 0o777))
    return place / "cache"


def _link_through_writable(place: Path) -> Path:
    folder_in(folder_in(place / "above", 0o777) / "real", 0o700)
    (place / "cache").symlink_to("link/real")
    (place / "link").symlink_to(place / "above")
    return place / "cache"


def _up_from_writable(place: Path) -> Path:
    folder_in(place / "cache", 0o700)
    return folder_in(place / "above", 0o777) / ".." / "cache"


def _holds_a_writable_file(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o755)
    folder_in(folder / "index", 0o755)
    (folder / "index" / "v1.sqlite").touch()
    (folder / "index" / "v1.sqlite").chmod(0o666)
    return folder


def _holds_a_writable_folder(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o755)
    folder_in(folder / "pythons", 0o777)
    return folder


def _of_another(place: Path) -> Path:
    return folder_in(place / "cache", 0o700, OTHER)


def _of_another_group(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o770)
    os.chown(folder, -1, OTHER)
    return folder


def _below_another(place: Path) -> Path:
    return folder_in(place / "above", 0o755, OTHER) / "cache"


def _link_of_another(place: Path) -> Path:
    (place / "cache").symlink_to(folder_in(place / "real", 0o700))
    os.lchown(place / "cache", OTHER, OTHER)
    return place / "cache"


def _pipe_of_another(place: Path) -> Path:
    os.mkfifo(place / "cache")
    os.chown(place / "cache", OTHER, OTHER)
    return place / "cache"


def _holds_of_another(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o755)
    folder_in(folder / "conda-packages", 0o755, OTHER)
    return folder


def _holds_a_link_of_another(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o755)
    (folder / "index").symlink_to(place)
    os.lchown(folder / "index", OTHER, OTHER)
    return folder


_BY_ANYBODY = (
    *(_writable, _sticky, _below_writable, _closed_below_writable, _link_to_writable, _link_through_writable),
    *(_up_from_writable, _holds_a_writable_file, _holds_a_writable_folder),
)
_BY_ROOT = (
    *(_of_another, _of_another_group, _below_another, _link_of_another, _pipe_of_another, _holds_of_another),
    _holds_a_link_of_another,
)
_CASES = [*_BY_ANYBODY, *(pytest.param(case, marks=as_root) for case in _BY_ROOT)]


@pytest.mark.parametrize("case", _CASES)
def test_a_folder_that_others_could_write_to_is_refused(case: Callable[[Path], Path], shared: Path) -> None:
    root = case(shared)
    with pytest.raises(UnsafeCache) as found:
        cache_root({"ENVSPEC_CACHE_DIR": str(root)})
    assert found.value.exit_code == 6
    assert str(root) in found.value.message and "mode " in found.value.message
    assert found.value.hint is not None and "ENVSPEC_CACHE_DIR" in found.value.hint


def _in_a_sticky_folder(place: Path) -> Path:
    return place / "cache"


def _readable(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o755)
    folder_in(folder / "index", 0o755)
    return folder


def _linked(place: Path) -> Path:
    (place / "cache").symlink_to("elsewhere/real")
    (folder_in(place / "elsewhere", 0o755) / "real").mkdir()
    return place / "cache"


def _deep(place: Path) -> Path:
    return place / "a" / "b" / "cache"


def _holds_what_containers_wrote(place: Path) -> Path:
    folder = folder_in(place / "cache", 0o755)
    kernels = folder_in(folder_in(folder / "compiled", 0o755) / "0123", 0o755)
    (kernels / "kernel").touch()
    (kernels / "kernel").chmod(0o666)
    return folder


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("case", [_in_a_sticky_folder, _readable, _linked, _deep, _holds_what_containers_wrote])
def test_a_folder_of_ones_own_is_closed(case: Callable[[Path], Path], umask: int, shared: Path) -> None:
    root = case(shared)
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
    folder = folder_in(shared / "cache", 0o755)
    folder_in(folder_in(folder / "conda-packages", 0o755) / "thing-1.0-0", 0o775).joinpath("data").touch(0o666)
    cache_root({"ENVSPEC_CACHE_DIR": str(folder)})


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
    (database,) = (shared / "cache").glob("index/*.sqlite")
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
    with standing(small_wheel("one")) as around:
        user = around.builder_in(tmp_path / "victim", ENVSPEC_CACHE_DIR=str(shared / "cache"))
        lock = user.writes_lock(around.lock_of(small_wheel("one")))
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
    with standing(small_wheel("one")) as around:
        user = around.builder_in(tmp_path / "victim", ENVSPEC_CACHE_DIR=str(shared / "cache"))
        python = Python(row.version, "system")
        lock = user.writes_lock(around.lock_of(small_wheel("one"), python=python))
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
    (database,) = (shared / "cache").glob("index/*.sqlite")
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
    ran = user.runs_anew("install", lock, "--prefix", "env", "--python", BASE, umask=0o000)
    assert ran.status == 0, ran.stderr
    cached = {path.stat().st_ino for path in (user.cache / "uv").rglob("*.py")}
    for path in (tmp_path / "env").rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o022 or path.stat().st_ino not in cached, path


@as_root
def test_an_environment_is_not_built_in_a_folder_of_another(shared: Path, tmp_path: Path, serve: Serve) -> None:
    index = serve([File(APP)])
    user = User(tmp_path, index.url)
    lock = write_lock(tmp_path / "lock", make_lock(wheels=[pin(APP)]))
    folder_in(staging_path(shared / "env"), 0o777, OTHER)
    told = refused(installs(user, lock, "--python", BASE, prefix=str(shared / "env")), 2)
    assert "belongs to another user" in told
    assert not (shared / "env").exists()
