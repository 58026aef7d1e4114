"""A lock that builds is code. What builds, and a Python that only a lock names, reach nothing of the user's.

Each attack is run unconfined as well, where it gets everything: a test of it can fail.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envspec.io.confine import PROXY
from envspec.models import Python
from tests.operations.test_build_sdists import builder, index_of, wheel_in
from tests.support.builders import standalone
from tests.support.builders.images import ImageUser, image_servers, small_wheel
from tests.support.builders.standalone import SERIES, VERSION, Program
from tests.support.builders.wheels import sdist
from tests.support.machines.confinement import ALL, Prey, confined, path_with_bubblewrap, prey, running
from tests.support.user import refused, succeeded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what confines is Linux's")
#: Programs of a machine where nothing confines: neither bubblewrap nor an engine.
NOTHING = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Prey]:
    with prey(tmp_path / "home", tmp_path / "cache") as found:
        yield found


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is found that confines."""
    (tmp_path / "bin").mkdir()
    return {**NOTHING, "PATH": str(tmp_path / "bin")}


def got(user: ImageUser) -> str:
    with zipfile.ZipFile(wheel_in(user)) as archive:
        return archive.read("own/__init__.py").decode()


def said(stderr: str) -> list[str]:
    """What a failing build says that it reached, in a resolver's words with their line breaks."""
    found = re.search(r"GOT\(([^)]*)\)", re.sub(r"[\s\u2502]", "", stderr))
    assert found, stderr
    return [name for name in found[1].split("+") if name]


# Builds


@pytest.mark.parametrize("unconfined", [pytest.param((), marks=confined), ("--no-sandbox",)], ids=["confined", "not"])
def test_a_build_reaches_nothing_unless_unconfined(
    unconfined: tuple[str, ...], tmp_path: Path, victim: Prey, bare: dict[str, str]
) -> None:
    environ = victim.environ | (bare if unconfined else {})
    with index_of(victim.source()) as index:
        user = builder(tmp_path, index, "own")
        succeeded(user.runs_anew("lock", "spec.toml", "--image", *unconfined, environ=environ))
        assert got(user) == f"GOT = {ALL if unconfined else []}\n"
        assert victim.is_unharmed() is not bool(unconfined)


@pytest.mark.parametrize("unconfined", [pytest.param((), marks=confined), ("--no-sandbox",)], ids=["confined", "not"])
def test_a_build_of_a_lock_reaches_nothing_unless_unconfined(
    unconfined: tuple[str, ...], tmp_path: Path, victim: Prey, bare: dict[str, str]
) -> None:
    environ = victim.environ | (bare if unconfined else {})
    with index_of(victim.unresolved()) as index:
        user = builder(tmp_path, index, "own")
        ran = user.runs_anew("lock", "spec.toml", *unconfined, environ=environ)
    assert said(refused(ran, 4)) == (ALL if unconfined else [])
    assert victim.is_unharmed() is not bool(unconfined)


@pytest.mark.parametrize("words", [(), pytest.param(("--image",), marks=confined)], ids=["locking", "building"])
def test_where_nothing_confines_nothing_is_run(
    words: tuple[str, ...], tmp_path: Path, victim: Prey, bare: dict[str, str]
) -> None:
    """Of a recorded wheel that is gone, `--image` would need another build."""
    source = victim.source() if words else victim.unresolved()
    with index_of(source) as index:
        user = builder(tmp_path, index, "own")
        if words:
            assert user.locks().status == 0
            for name in ("archives", "built"):
                shutil.rmtree(user.cache / name)
        message = refused(user.runs_anew("lock", "spec.toml", *words, environ=victim.environ | bare), 6)
    assert "runs foreign code" in message and "bubblewrap is not installed" in message
    assert "install bubblewrap" in message and "--no-sandbox" in message
    assert victim.is_unharmed()
    assert not words or "DOCKER_HOST" in message or "engine" in message


@pytest.mark.parametrize("version", ["1.0", "2.1", "2.2"])
def test_reading_what_an_sdist_states_runs_nothing(
    version: str, tmp_path: Path, victim: Prey, bare: dict[str, str]
) -> None:
    source = sdist("own", "1.0.0", requires=["lib"], on_build=victim.probe() + "probe()", metadata_version=version)
    with index_of(source) as index:
        user = builder(tmp_path, index, "own")
        user.writes(user.spec.read_text().replace("build.packages = ['own']\n", ""))
        succeeded(user.runs_anew("lock", "spec.toml", environ=victim.environ | bare))
    assert user.packages()["own"]["unbuilt"] and victim.is_unharmed()


def test_a_spec_may_allow_it(tmp_path: Path, victim: Prey, bare: dict[str, str]) -> None:
    with index_of(victim.source()) as index:
        user = builder(tmp_path, index, "own")
        user.spec.write_text(user.spec.read_text().replace("[pip]\n", "[pip]\nbuild.sandbox = false\n"))
        succeeded(user.runs_anew("lock", "spec.toml", "--image", environ=victim.environ | bare))
        assert got(user) == f"GOT = {ALL}\n"


@confined
def test_bubblewrap_that_does_not_work_is_as_none(tmp_path: Path, victim: Prey, bare: dict[str, str]) -> None:
    """As where user namespaces are restricted: the program is there."""
    program = tmp_path / "bin/bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    with index_of(victim.unresolved()) as index:
        message = refused(builder(tmp_path, index, "own").locks(**bare), 6)
    assert "does not work (setting up uid map: Permission denied)" in message


_HOSTILE_CLIENT = f"""
import socket

def _asks(text):
    with socket.create_connection(("127.0.0.1", {PROXY.rpartition(":")[2]}), 5) as client:
        client.sendall(text.encode())
        return client.recv(1 << 16).partition(b"\\r\\n")[0].split()[1].decode()

_PORT = TARGETS["port"]
_got = [
    _asks(f"GET http://127.0.0.1:{{_PORT}}/ HTTP/1.0\\r\\n\\r\\n"),
    _asks(f"CONNECT 127.0.0.1:{{_PORT}} HTTP/1.1\\r\\nHost: 127.0.0.1:{{_PORT}}\\r\\n\\r\\n"),
    _asks("GET /../../etc/passwd HTTP/1.0\\r\\n\\r\\n"),
    _asks("GET /x/whole/files/own/..%2f..%2fetc%2fpasswd HTTP/1.0\\r\\n\\r\\n"),
]
try:
    socket.create_connection(("127.0.0.1", 9), 5)
except OSError as fault:
    _got.append(type(fault).__name__)
import pathlib
pathlib.Path("own", "__init__.py").write_text(f"GOT = {{_got!r}}\\n")
"""


@confined
def test_through_the_index_nothing_else_is_reached(tmp_path: Path, victim: Prey) -> None:
    own = sdist("own", "1.0.0", on_build=victim.probe() + _HOSTILE_CLIENT, metadata_version="2.2")
    with index_of(own) as index:
        user = builder(tmp_path, index, "own")
        succeeded(user.locks("--image"))
    assert set(re.findall(r"'([^']+)'", got(user))) <= {"404", "405", "400", "500", "ConnectionRefusedError"}
    assert "ConnectionRefusedError" in got(user)


@confined
@pytest.mark.parametrize("left", ["compilers", "again", "src/link"])
def test_links_that_a_build_leaves_are_not_followed(left: str, tmp_path: Path) -> None:
    """envspec reads and lays out what lies in the build's folder when it is over."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "secret").write_text("hunter2 cc\n")
    target = mine if left == "again" else mine / "secret"
    leaves = f"""
import os, pathlib, subprocess
subprocess.run(["cc"])
_work = pathlib.Path(os.environ["HOME"]).parent
(_work / "{left}").unlink(missing_ok=True)
(_work / "{left}").symlink_to({str(target)!r})
raise SystemExit("not like this")
"""
    with index_of(sdist("own", "1.0.0", on_build=leaves, metadata_version="2.2")) as index:
        ran = builder(tmp_path, index, "own").locks("--image", **NOTHING, PATH=path_with_bubblewrap(tmp_path / "bin"))
    message = refused(ran, 4 if left == "compilers" else 6)
    assert "hunter2" not in message and [path.name for path in mine.iterdir()] == ["secret"]


@confined
@pytest.mark.skipif(os.geteuid() == 0, reason="not run: root may enter every folder")
def test_folders_that_nobody_may_enter_are_removed(tmp_path: Path) -> None:
    leaves = """
import os, pathlib
_shut = pathlib.Path(os.environ["HOME"], "shut")
(_shut / "inner").mkdir(parents=True, exist_ok=True)
os.chmod(_shut, 0)
os.chmod(_shut.parents[1], 0)
raise SystemExit(f"left <{_shut}>")
"""
    with index_of(sdist("own", "1.0.0", on_build=leaves, metadata_version="2.2")) as index:
        message = refused(builder(tmp_path, index, "own").locks("--image"), 4)
    left = re.search("left <([^>]+)>", message)
    assert left and not Path(left[1]).parents[1].exists()


_NAMES = """
import getpass, pathlib, pwd, os, socket
_found = [getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, socket.gethostbyname("localhost"), os.uname().nodename]
pathlib.Path("own", "__init__.py").write_text(f"GOT = {_found!r}\\n")
"""


@confined
def test_names_are_the_same_everywhere(tmp_path: Path) -> None:
    with index_of(sdist("own", "1.0.0", on_build=_NAMES, metadata_version="2.2")) as index:
        user = builder(tmp_path, index, "own")
        succeeded(user.locks("--image"))
    assert got(user) == "GOT = ['build', 'build', '127.0.0.1', 'localhost']\n"


_SLEEPS = """
import os
os.execv("/bin/sleep", ["sleep", {sleep!r}])
"""


def _until(condition: object, seconds: float = 20) -> bool:
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@confined
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("words", [(), ("--image",)], ids=["resolving", "building"])
def test_a_build_ends_with_envspec(how: signal.Signals, words: tuple[str, ...], tmp_path: Path, victim: Prey) -> None:
    version = "2.2" if words else "2.1"
    own = sdist("own", "1.0.0", on_build=_SLEEPS.format(sleep=victim.sleep), metadata_version=version)
    with index_of(own) as index:
        user = builder(tmp_path, index, "own")
        process = subprocess.Popen(
            [sys.executable, "-m", "envspec", "lock", str(user.spec), *words],
            cwd=user.folder,
            env=user.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert _until(lambda: running(victim.sleep))
            place = Path(f"/proc/{running(victim.sleep)[0]}/cwd").readlink()
        finally:
            process.send_signal(how)
            process.wait(30)
        assert _until(lambda: not running(victim.sleep), 5)
        if words:
            # Where a killed run leaves it, the next one removes it: it is the same place for the same build.
            shutil.rmtree(place.parents[1], ignore_errors=True)


# Bytecode by a Python that only the lock names


def hostile(folder: Path, victim: Prey) -> Python:
    """A standalone build whose interpreter first says what it reaches, and then is none."""
    script = f"""#!/bin/bash
got=
grep -qs hunter2 {victim.home}/.netrc && got+=netrc+
cat /proc/[0-9]*/environ 2>/dev/null | grep -qa {victim.secret} && got+=environ+
(exec 3<>/dev/tcp/127.0.0.1/{victim.port}) 2>/dev/null && got+=loopback+
(echo owned >{victim.home}/owned) 2>/dev/null && got+=home+
setsid sleep {victim.sleep} >/dev/null 2>&1 </dev/null &
echo "GOT(${{got%+}})" >&2
exit 3
"""
    archive = folder / "cpython-hostile.tar.gz"
    files = standalone.made_up() | {f"python/bin/python{SERIES}": Program(script.encode())}
    return Python(VERSION, "standalone", archive.as_uri(), standalone.write(archive, files))


def image_of(folder: Path, python: Python, command: str, *words: str, **environ: str) -> tuple[ImageUser, str]:
    with image_servers(small_wheel("one")) as servers:
        user = servers.user_in(folder)
        lock = user.writes_lock(servers.lock_of(small_wheel("one"), python=python))
        # A process of its own: what is forked has the environment of whoever started it in /proc.
        ran = user.runs_anew("image", command, lock, *words, environ=environ)
    assert ran.status in {1, 6}, ran.stderr
    return user, ran.stderr


@confined
@pytest.mark.parametrize("command", ["build", "id"])
def test_a_python_of_the_lock_reaches_nothing(command: str, tmp_path: Path, victim: Prey) -> None:
    _, stderr = image_of(tmp_path, hostile(tmp_path, victim), command, **victim.environ)
    assert said(stderr) == []
    assert victim.is_unharmed()


def test_unconfined_a_python_of_the_lock_reaches_all(tmp_path: Path, victim: Prey, bare: dict[str, str]) -> None:
    _, stderr = image_of(tmp_path, hostile(tmp_path, victim), "id", "--no-sandbox", **victim.environ, **bare)
    assert said(stderr) == ["netrc", "environ", "loopback", "home"]


def test_where_nothing_confines_it_another_of_that_version_compiles(
    tmp_path: Path, victim: Prey, bare: dict[str, str]
) -> None:
    """The one that runs the tests."""
    with image_servers(small_wheel("one")) as servers:
        user = servers.user_in(tmp_path)
        lock = user.writes_lock(servers.lock_of(small_wheel("one"), python=hostile(tmp_path, victim)))
        assert user.image("build", lock, **victim.environ, **bare).status == 0
    assert victim.is_unharmed()


def test_where_there_is_no_other_it_is_refused(tmp_path: Path, victim: Prey, bare: dict[str, str]) -> None:
    python = hostile(tmp_path, victim)
    future = Python(f"{SERIES}.97", python.source, python.url, python.sha256)
    _, stderr = image_of(tmp_path, future, "build", **victim.environ, **bare)
    assert "nothing on this machine confines it" in stderr
    assert all(word in stderr for word in ("--no-sandbox", "--no-compile-bytecode", "--python"))
    assert victim.is_unharmed()


@confined
def test_confined_or_not_the_image_is_the_same(tmp_path: Path, bare: dict[str, str]) -> None:
    archive = tmp_path / "cpython-mine.tar.gz"
    python = Python(VERSION, "standalone", archive.as_uri(), standalone.write(archive, standalone.of_running()))
    ids = []
    for name, environ in (("a", {}), ("b", bare)):
        with image_servers(small_wheel("one")) as servers:
            user = servers.user_in(tmp_path / name)
            lock = user.writes_lock(servers.lock_of(small_wheel("one"), python=python))
            ids.append(user.id_of(lock, "--no-sandbox", **environ))
            assert (user.cache / "pythons" / str(python.sha256)).is_dir()
    assert ids[0] == ids[1]
