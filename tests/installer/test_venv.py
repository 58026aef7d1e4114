"""`envspec install` of a lock without conda: a venv of the right Python, and wheels with their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from envspec.diagnostics.machine import this_platform
from envspec.installer.uv import changed_in_cache
from envspec.models import Platform, Python
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders import environments, standalone
from tests.support.builders.environments import (
    BASE,
    RUNNING,
    SERIES,
    left_beside,
    make_lock,
    names_of_site,
    pin,
    pip_check,
    run_in,
    tree,
    write_lock,
    wrong_rows,
)
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, core_metadata, wheel
from tests.support.servers.faults import Corrupt, Drop, Stall, Status, Truncate
from tests.support.servers.index import IndexServer
from tests.support.user import SHORT_TIMEOUTS, Ran, User, on_a_terminal, refused, succeeded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="envspec installs on Linux and macOS only")


def tool() -> Artifact:
    """A wheel with an entry point, a script of its own and one that is no Python."""
    info = "tool-1.0.dist-info"
    return wheel(
        "tool",
        "1.0",
        files={
            "tool/__init__.py": b"def main():\n    import sys\n    print('tool of', sys.prefix)\n",
            f"{info}/entry_points.txt": b"[console_scripts]\ntool = tool:main\n",
            "tool-1.0.data/scripts/script": b"#!python\nimport sys\nprint('script of', sys.executable)\n",
            "tool-1.0.data/scripts/shell": b"#!/bin/sh\necho shell\n",
        },
        metadata=core_metadata("tool", "1.0", requires=["other"]),
    )


OTHER: Final = wheel("other", "2.0")


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(tool()), File(OTHER), File(wheel("other", "3.0"))])


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url)


@pytest.fixture
def lock(user: User) -> Path:
    return write_lock(user.folder / "lock", make_lock(wheels=[pin(tool()), pin(OTHER)]))


def installs(user: User, lock: Path, *words: str | Path, prefix: str = "env", **environ: str) -> Ran:
    return environments.installs(user, lock, "--python", BASE, *words, prefix=prefix, **environ)


def nothing_is_left(user: User, prefix: str = "env") -> bool:
    return not (user.folder / prefix).exists() and left_beside(user.folder / prefix) == []


@pytest.mark.parametrize("name", ["env", "an env", "it's $HOME"])
def test_programs_name_the_environment_and_run(user: User, lock: Path, name: str) -> None:
    ran = installs(user, lock, prefix=name)
    prefix = user.folder / name
    assert (ran.status, ran.stdout) == (0, f"{prefix}\n"), ran.stderr
    assert run_in(prefix, "tool") == f"tool of {prefix}"
    assert run_in(prefix, "script") == f"script of {prefix}/bin/python"
    assert run_in(prefix, "shell") == "shell"
    assert run_in(prefix, "python", "-c", "import other; print(other.__version__)") == "2.0"
    assert names_of_site(prefix) == [] and wrong_rows(prefix) == [] and left_beside(prefix) == []
    done = pip_check(prefix, user.environ)
    assert done.returncode == 0, done.stderr
    words = ["/bin/sh", "-c", '. "$1/bin/activate" && command -v tool && echo "$VIRTUAL_ENV"', "sh", str(prefix)]
    activated = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert activated.splitlines() == [f"{prefix}/bin/tool", str(prefix)]


def test_a_second_time_nothing_is_done(user: User, lock: Path, index: IndexServer) -> None:
    assert installs(user, lock).status == 0
    before, asked = tree(user.folder / "env"), len(index.requests)
    ran = installs(user, lock)
    assert (ran.status, ran.stdout) == (0, f"{user.folder}/env\n")
    assert "already installed" in ran.stderr
    assert tree(user.folder / "env") == before and len(index.requests) == asked


def test_a_folder_of_someone_elses_stays(user: User, lock: Path) -> None:
    (user.folder / "env").mkdir()
    (user.folder / "env" / "mine.txt").write_text("mine")
    assert "it is not empty; nothing was changed" in refused(installs(user, lock), 2)
    assert tree(user.folder / "env") == {"mine.txt": hashlib.sha256(b"mine").hexdigest()}
    # An empty one is used.
    (user.folder / "env" / "mine.txt").unlink()
    assert installs(user, lock).status == 0


def test_a_file_is_no_folder(user: User, lock: Path) -> None:
    (user.folder / "env").write_text("mine")
    assert "it is a file" in refused(installs(user, lock), 2)
    assert "a part of that path is a file" in refused(installs(user, lock, prefix="env/below"), 2)
    assert "can't be created" in refused(installs(user, lock, prefix="/proc/nowhere/env"), 2)


def test_an_environment_of_another_lock_or_that_was_moved_stays(user: User, lock: Path) -> None:
    assert installs(user, lock).status == 0
    before = tree(user.folder / "env")
    other = write_lock(user.folder / "other", make_lock(wheels=[pin(OTHER)], name="second"))
    assert "it has the environment of another lock (small)" in refused(installs(user, other), 2)
    assert tree(user.folder / "env") == before
    (user.folder / "env").rename(user.folder / "moved")
    assert f"was made for {user.folder}/env and moved since" in refused(installs(user, lock, prefix="moved"), 2)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere: run the tests as somebody else to see this")
def test_a_parent_that_may_not_be_written(user: User, lock: Path) -> None:
    (user.folder / "closed").mkdir(mode=0o555)
    message = refused(installs(user, lock, prefix="closed/env"), 2)
    assert "closed writable" in message and list((user.folder / "closed").iterdir()) == []


def test_offline_with_a_full_cache_and_with_an_empty_one(user: User, lock: Path, index: IndexServer) -> None:
    message = refused(installs(user, lock, "--offline"), 5)
    assert "run once with a network" in message and index.requests == [] and nothing_is_left(user)
    assert installs(user, lock).status == 0
    asked = len(index.requests)
    assert installs(user, lock, "--offline", prefix="second").status == 0
    assert len(index.requests) == asked


def edit(user: User, prefix: str) -> Path:
    """An installed file of `other` with a line more, as somebody writes it who looks for a bug."""
    file = next((user.folder / prefix).glob("lib/python3*/site-packages/other/__init__.py"))
    with file.open("a") as text:
        text.write("print('debug')\n")
    return file


def test_an_edit_in_one_environment_does_not_reach_the_next(user: User, lock: Path, index: IndexServer) -> None:
    """uv links files to its cache."""
    succeeded(installs(user, lock, prefix="one"))
    edited = edit(user, "one")
    before = len(index.requests_for(index.file_path(OTHER.filename)))
    ran = installs(user, lock, prefix="two")
    succeeded(ran)
    assert (
        "warning: other: edited in another environment" in ran.stderr and "tool" not in ran.stderr.split("warning")[1]
    )
    assert len(index.requests_for(index.file_path(OTHER.filename))) == before + 1
    assert "debug" not in (user.folder / "two" / edited.relative_to(user.folder / "one")).read_text()
    assert user.runs("verify", lock, "--prefix", "two").status == 0
    third = installs(user, lock, prefix="three")
    succeeded(third)
    assert "edited" not in third.stderr


def test_what_describes_a_package_is_no_link_into_the_cache(user: User, lock: Path) -> None:
    succeeded(installs(user, lock))
    (site,) = (user.folder / "env").glob("lib/python3*/site-packages")
    files = [path for folder in site.glob("*.dist-info") for path in folder.rglob("*") if path.is_file()]
    assert {"METADATA", "WHEEL", "RECORD", "entry_points.txt"} <= {path.name for path in files}
    assert [path for path in files if path.stat().st_nlink > 1] == []
    assert wrong_rows(user.folder / "env") == []


@pytest.mark.parametrize("file", ["METADATA", "WHEEL"])
def test_damaged_metadata_in_the_cache_is_fetched_again(user: User, lock: Path, index: IndexServer, file: str) -> None:
    """An environment of an earlier version links it to the cache, or a disk lost it."""
    succeeded(installs(user, lock, prefix="one"))
    (cached,) = user.cache.glob(f"uv/archive-v*/*/other-2.0.dist-info/{file}")
    cached.write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    before = len(index.requests_for("*.whl"))
    ran = succeeded(installs(user, lock, prefix="two"))
    assert "warning: other: " in ran.stderr and "fetched again" in ran.stderr
    assert len(index.requests_for("*.whl")) == before + 1
    assert user.runs("verify", lock, "--prefix", "two").status == 0
    assert "warning" not in succeeded(installs(user, lock, prefix="three")).stderr


def test_a_file_of_two_packages_is_not_edited(user: User) -> None:
    """Which of them is unpacked first, and linked last, is different in each run."""
    lock = write_lock(user.folder / "lock", make_lock(wheels=[pin(OTHER)]))
    succeeded(installs(user, lock))
    prefix = user.folder / "env"
    file = next(prefix.glob("lib/python3*/site-packages/other/__init__.py"))
    rival = file.parents[1] / "rival-1.0.dist-info"
    rival.mkdir()
    for name in ("METADATA", "WHEEL"):
        (rival / name).write_text("")
        os.utime(rival / name, (0, 0))
    (rival / "RECORD").write_text(f"other/__init__.py,sha256={'A' * 43},1\n")
    assert changed_in_cache(prefix, {}) == []
    edit(user, "env")
    assert changed_in_cache(prefix, {}) == ["other", "rival"]


def test_an_edit_is_not_installed_offline(user: User, lock: Path) -> None:
    succeeded(installs(user, lock, prefix="one"))
    edit(user, "one")
    ran = installs(user, lock, "--offline", prefix="two")
    assert "offline, and a file of other" in refused(ran, 5)
    assert "edited in another environment" in ran.stderr
    assert nothing_is_left(user, "two")


def test_wheels_of_a_url(user: User, index: IndexServer) -> None:
    url = f"{index.root}{index.file_path(OTHER.filename)}"
    lock = write_lock(user.folder / "lock", make_lock(wheels=[pin(OTHER, url=url)]))
    assert installs(user, lock).status == 0
    assert run_in(user.folder / "env", "python", "-c", "import other; print(other.__version__)") == "2.0"


def test_a_login_of_a_netrc_file_in_the_current_folder(user: User, index: IndexServer) -> None:
    index.credentials = ("me", "secret")
    lock = write_lock(user.folder / "lock", make_lock(wheels=[pin(OTHER, url=index.file_url(OTHER.filename))]))
    message = refused(installs(user, lock), 5)
    assert "HTTP 401" in message and "~/.netrc" in message and "plain http" not in message
    assert "http-status" in installs(user, lock, "--format", "json").stdout
    (user.folder / "team.netrc").write_text("machine 127.0.0.1 login me password secret\n")
    succeeded(installs(user, lock, NETRC="team.netrc"))


def test_a_dry_run_requests_and_installs_nothing(user: User, lock: Path, index: IndexServer) -> None:
    before = len(index.requests)
    words = ("--dry-run", "--format", "json")
    planned = json.loads(succeeded(installs(user, lock, *words)).stdout)
    assert (planned["dry_run"], planned["outcome"]) == (True, "would install")
    assert len(index.requests) == before and not (user.folder / "env").exists()
    assert json.loads(succeeded(installs(user, lock, "--format", "json")).stdout)["outcome"] == "installed"
    assert json.loads(succeeded(installs(user, lock, *words)).stdout)["outcome"] == "unchanged"


def test_nothing_of_the_users_uv_and_pip_is_read(user: User, lock: Path, serve: Serve) -> None:
    hostile = serve([])
    config = user.home / ".config" / "uv"
    config.mkdir(parents=True)
    (config / "uv.toml").write_text(f'index-url = "{hostile.url}"\nlink-mode = "symlink"\n')
    settings = {"UV_DEFAULT_INDEX": hostile.url, "UV_INDEX_URL": hostile.url, "PIP_INDEX_URL": hostile.url}
    succeeded(installs(user, lock, **settings, UV_TARGET=str(user.folder / "elsewhere"), VIRTUAL_ENV="/nowhere"))
    assert hostile.requests == [] and not (user.folder / "elsewhere").exists()


# What is wrong with files


def test_a_wheel_of_other_content_is_refused_with_both_hashes(user: User, index: IndexServer) -> None:
    claimed = "0" * 64
    lock = write_lock(user.folder / "lock", make_lock(wheels=[pin(OTHER, sha256=claimed)]))
    message = refused(installs(user, lock), 5)
    assert "other 2.0" in message and claimed in message and OTHER.sha256 in message
    assert nothing_is_left(user)


@pytest.mark.parametrize("fault", [Drop(100), Status(503), Truncate(60)], ids=str)
def test_what_passes_is_tried_again(user: User, lock: Path, index: IndexServer, fault: object) -> None:
    index.fail(index.file_path(OTHER.filename), fault, times=1)  # type: ignore[arg-type]
    succeeded(installs(user, lock))


@pytest.mark.parametrize("fault", [Drop(100), Status(500), Status(404), Status(401), Corrupt(), Stall()], ids=str)
def test_what_stays_ends_in_one_message(user: User, lock: Path, index: IndexServer, fault: object) -> None:
    index.fail(index.file_path(OTHER.filename), fault)  # type: ignore[arg-type]
    message = refused(installs(user, lock, **SHORT_TIMEOUTS, ENVSPEC_HTTP_ATTEMPTS="1"), 5)
    assert message.startswith("other 2.0: ") and nothing_is_left(user)
    assert not isinstance(fault, Stall) or "the server stalled" in message


def test_an_index_that_is_not_there(user: User, lock: Path) -> None:
    ran = installs(user, lock, ENVSPEC_DEFAULT_INDEX="http://me:secret@127.0.0.1:9/simple/", ENVSPEC_HTTP_ATTEMPTS="1")
    message = refused(ran, 5)
    assert "127.0.0.1:9" in message and "secret" not in ran.stderr


@pytest.mark.parametrize("is_same", [True, False])
def test_two_wheels_with_one_file(user: User, serve: Serve, is_same: bool) -> None:
    """NVIDIA's wheels have the same one: an empty `nvidia/__init__.py` in each."""
    wheels = [
        wheel(name, "1.0", files={"shared/__init__.py": b"" if is_same else name.encode(), "shared/empty.py": b""})
        for name in ("one", "two")
    ]
    index = serve(map(File, wheels))
    lock = write_lock(user.folder / "lock", make_lock(wheels=list(map(pin, wheels))))
    ran = installs(user, lock, ENVSPEC_DEFAULT_INDEX=index.url)
    if is_same:
        succeeded(ran)
    else:
        assert "shared/__init__.py belongs to the wheel one 1.0 and to the wheel two 1.0" in refused(ran, 4)
        assert nothing_is_left(user)


# This machine


def test_a_lock_for_another_platform(user: User) -> None:
    elsewhere = next(each for each in Platform if each is not this_platform())
    lock = write_lock(user.folder / "lock", make_lock(where=elsewhere))
    message = refused(installs(user, lock), 6)
    assert f"small is locked for {elsewhere.value}, and this machine is {this_platform().value}" in message
    message = refused(installs(user, lock, "--platform", elsewhere.value), 6)
    assert f"an environment for {elsewhere.value} can't be installed on this machine" in message


@pytest.mark.skipif(not this_platform().is_linux, reason="glibc is Linux's")
def test_a_wheel_for_a_newer_glibc_is_told_before_anything_is_fetched(user: User, index: IndexServer) -> None:
    late = pin(OTHER, filename="other-2.0-py3-none-manylinux_2_99_x86_64.whl")
    message = refused(installs(user, write_lock(user.folder / "lock", make_lock(wheels=[late]))), 6)
    assert "other 2.0 needs glibc 2.99, it has 2." in message
    assert index.requests == [] and nothing_is_left(user)


# Which Python


def test_a_python_of_that_very_version_is_found(user: User, lock: Path) -> None:
    path = f"{BASE.parent}:{os.defpath}"
    succeeded(user.runs("install", lock, "--prefix", "env", environ={"PATH": path}))
    assert run_in(user.folder / "env", "python", "-c", "import platform; print(platform.python_version())") == RUNNING


def test_without_that_version_it_says_what_to_do(user: User) -> None:
    lock = write_lock(user.folder / "lock", make_lock(python=Python(f"{SERIES}.99", "spec")))
    ran = user.runs("install", lock, "--prefix", "env", environ={"PATH": f"{BASE.parent}:{os.defpath}"})
    message = refused(ran, 6)
    assert f"the lock is for Python {SERIES}.99" in message and f"--python {BASE.parent}" in message
    assert nothing_is_left(user)


def test_another_patch_is_a_warning_and_another_series_is_refused(user: User) -> None:
    lock = write_lock(user.folder / "lock", make_lock(python=Python(f"{SERIES}.99", "spec")))
    ran = installs(user, lock)
    assert ran.status == 0
    assert ran.warnings == [f"{BASE} is Python {RUNNING}; the lock was made for {SERIES}.99"]
    lock = write_lock(user.folder / "later", make_lock(python=Python("3.99.1", "spec")))
    assert f"is Python {RUNNING}; the lock is for 3.99.1" in refused(installs(user, lock, prefix="second"), 2)


def test_a_python_that_is_none(user: User, lock: Path) -> None:
    message = refused(user.runs("install", lock, "--prefix", "env", "--python", "/bin/sh"), 2)
    assert "/bin/sh is not a CPython that runs here" in message


#: A standalone build with the interpreter that runs the tests, which finds its own library.
BUILD: Final[dict[str, standalone.Content]] = {
    f"python/bin/python{SERIES}": standalone.Program(BASE.read_bytes()),
    "python/bin/python3": standalone.Link(f"python{SERIES}"),
}


def build_of(user: User, files: dict[str, standalone.Content]) -> Python:
    path = user.folder / "cpython.tar.gz"
    return Python(RUNNING, "standalone", path.as_uri(), standalone.write(path, files))


@pytest.fixture
def build(user: User) -> Python:
    return build_of(user, BUILD)


def test_the_build_that_the_lock_names(user: User, build: Python) -> None:
    """It is in the environment: the cache may be removed."""
    lock = write_lock(user.folder / "lock", make_lock(wheels=[pin(tool()), pin(OTHER)], python=build))
    succeeded(environments.installs(user, lock))
    prefix = user.folder / "env"
    assert (prefix / "bin/python").resolve() == prefix / f".envspec/python/bin/python{SERIES}"
    assert names_of_site(prefix) == []
    assert f"home = {prefix}/.envspec/python/bin\n" in (prefix / "pyvenv.cfg").read_text()
    shutil.rmtree(user.cache)
    assert "tool of" in run_in(prefix, "tool")


def test_a_build_that_is_not_to_be_had(user: User, build: Python) -> None:
    gone = replace(build, url="http://127.0.0.1:9/cpython.tar.gz")
    lock = write_lock(user.folder / "lock", make_lock(python=gone))
    ran = user.runs("install", lock, "--prefix", "env", environ={"ENVSPEC_HTTP_ATTEMPTS": "1"})
    message = refused(ran, 5)
    assert "no connection" in message and f"; or use a Python {SERIES} of this machine: --python PATH" in message
    assert "--python PATH" in refused(user.runs("install", lock, "--prefix", "env", "--offline"), 5)
    assert nothing_is_left(user)


def test_another_build_than_the_locked_one(user: User, build: Python) -> None:
    path = user.folder / "cpython.tar.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    lock = write_lock(user.folder / "lock", make_lock(python=build))
    message = refused(environments.installs(user, lock), 5)
    assert f"Python {RUNNING}" in message and "is not the locked file" in message
    assert nothing_is_left(user)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (None, "can't be unpacked"),
        ({"python/bin/python3.99": BUILD[f"python/bin/python{SERIES}"]}, f"has no bin/python{SERIES}"),
        ({"python/../../outside": b""}, "not below python/"),
    ],
    ids=["junk", "another", "elsewhere"],
)
def test_a_build_that_is_none(user: User, files: dict[str, standalone.Content] | None, words: str) -> None:
    build = build_of(user, files or {})
    if files is None:
        (user.folder / "cpython.tar.gz").write_bytes(b"no archive")
        build = replace(build, sha256=hashlib.sha256(b"no archive").hexdigest())
    ran = environments.installs(user, write_lock(user.folder / "lock", make_lock(python=build)))
    assert words in refused(ran, 5) and nothing_is_left(user)


def test_the_record_says_which_lock_it_is(user: User, lock: Path) -> None:
    assert installs(user, lock).status == 0
    record = json.loads((user.folder / "env/.envspec/installed.json").read_text())
    assert record == {
        "name": "small",
        "platform": this_platform().value,
        "input_sha256": hashlib.sha256(b"small").hexdigest(),
        "lock_sha256": hashlib.sha256((lock / "envspec.lock").read_bytes()).hexdigest(),
        "prefix": str(user.folder / "env"),
    }


def test_a_terminal_sees_bars(user: User, lock: Path) -> None:
    seen = on_a_terminal(
        user.folder, "install", str(lock), "--prefix", "env", "--python", str(BASE), environ=user.environ
    )
    assert "small: installing wheels" in seen and seen.rstrip().endswith(str(user.folder / "env"))
