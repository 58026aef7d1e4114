"""Wheels of what is to be compiled: built in a container of the lock's base, by Docker."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from docker import DockerClient

from tests.operations.test_build_sdists import serving, with_files
from tests.support.builders.ecosystem import release
from tests.support.builders.images import tar_of
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist
from tests.support.machines import standin
from tests.support.machines.confinement import confined, path_with_bubblewrap, prey
from tests.support.machines.engine import removed
from tests.support.machines.standin import Pushed
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused, succeeded

pytestmark = [pytest.mark.engine, confined]

SERIES = standin.PYTHON.rpartition(".")[0]
#: A backend that gives a wheel of this platform alone, with what it sees of where it runs.
_BACKEND = """
import os, platform, shutil, subprocess, zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if Path("own.c").exists() and shutil.which("cc"):
        subprocess.run(["cc", "own.c"])
    if Path("broken").exists():
        raise SystemExit("the compiler does not like it")
    info = "own-1.0.0.dist-info"
    tag = f"py3-none-linux_{platform.machine()}"
    seen = {"debian": Path("/etc/debian_version").exists(), "at": os.getcwd(), "cc": os.environ.get("CC")}
    content = {
        "own.py": f"SEEN = {seen!r}\\n",
        f"{info}/METADATA": Path("PKG-INFO").read_text(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: false\\nTag: {tag}\\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*content, f"{info}/RECORD"))
    name = f"own-1.0.0-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return name
"""


def source(*more: str) -> Artifact:
    files = {"backend.py": _BACKEND.encode()} | dict.fromkeys(more, b"int x;\n")
    return with_files(sdist("own", "1.0.0", metadata_version="2.2"), files)


@pytest.fixture(autouse=True)
def pulled(engine: DockerClient, standin_base: Pushed) -> Iterator[None]:
    """What the engine pulls is removed after the test."""
    with removed(engine, f"{standin_base.name.rpartition(':')[0]}@{standin_base.digest}"):
        yield


@pytest.fixture
def pythons(tmp_path: Path) -> Iterator[str]:
    """A `[[facts.python]]` table: the base's own Python, as if it were a standalone build."""
    (tmp_path / "www").mkdir()
    start = f'#!/bin/sh\nexec /usr/bin/python{SERIES} "$@"\n'.encode()
    names = ("python", "python3", f"python{SERIES}")
    archive = gzip.compress(tar_of({f"python/bin/{name}": start for name in names}, 0o755), mtime=0)
    (tmp_path / "www" / "mine.tar.gz").write_bytes(archive)
    sha256 = hashlib.sha256(archive).hexdigest()
    with serving(tmp_path / "www") as address:
        yield (
            f'[[facts.python]]\nversion = "{standin.PYTHON}"\nplatform = "linux-64"\nbuild = "20240101"\n'
            f'url = "{address}mine.tar.gz"\nsha256 = "{sha256}"\nsource = "this test"\n'
        )


def user_of(
    folder: Path,
    index: IndexServer,
    base: Pushed,
    pythons: str,
    pip: str = 'build.packages = ["own"]\n',
    environ: Mapping[str, str] = {},
) -> User:
    user = User(folder, index.url, NO_PROXY="127.0.0.1")
    user.writes(
        f'[env]\nname = "small"\npython = "{standin.PYTHON}"\npython_source = "standalone"\nplatforms = ["linux-64"]\n'
        f'as_of = 2026-06-01T00:00:00Z\n[pip]\ndependencies = ["own"]\n{pip}'
        f'[image]\nbase = "{base.name}@{base.digest}"\nglibc = "{standin.GLIBC}"\n{pythons}'
    )
    succeeded(user.runs("lock", user.spec, environ=environ))
    return user


def index_of(own: Artifact) -> IndexServer:
    return IndexServer([release("lib", "1.0.0"), File(own, day("2024-01-01"))])


@pytest.mark.parametrize("more", [("own.c",), ()], ids=["to be compiled", "found out by the build"])
def test_it_is_built_in_the_base_and_the_same_twice(
    engine: DockerClient, standin_base: Pushed, pythons: str, tmp_path: Path, more: tuple[str, ...]
) -> None:
    found = []
    with index_of(source(*more)) as index:
        for name in ("a", "b"):
            user = user_of(tmp_path / name, index, standin_base, pythons)
            succeeded(user.locks("--image"))
            row = user.packages()["own"]["built"]
            found.append(user.cache / "archives" / row["sha256"] / row["filename"])
    assert found[0].read_bytes() == found[1].read_bytes()
    assert found[0].name.startswith("own-1.0.0-py3-none-linux_")
    with zipfile.ZipFile(found[0]) as archive:
        seen = archive.read("own.py").decode()
    assert "'at': '/.envspec-build/src'" in seen and "'cc': 'gcc'" in seen
    assert not [each for each in engine.containers.list(all=True) if str(each.name).startswith("envspec-build-")]


def test_its_log_is_shown_where_it_fails(standin_base: Pushed, pythons: str, tmp_path: Path) -> None:
    with index_of(source("own.c", "broken")) as index:
        message = refused(user_of(tmp_path, index, standin_base, pythons).locks("--image"), 4)
    assert "its build failed (build_wheel) in" in message and "the compiler does not like it" in message


def test_without_an_engine_it_is_said_what_needs_one(standin_base: Pushed, pythons: str, tmp_path: Path) -> None:
    with index_of(source("own.c")) as index:
        user = user_of(tmp_path, index, standin_base, pythons)
        path = path_with_bubblewrap(tmp_path / "bin")
        ran = user.locks("--image", DOCKER_HOST="unix:///nowhere/docker.sock", PATH=path)
    message = refused(ran, 6)
    assert "is for one platform" in message and "ENVSPEC_BUILT_WHEELS" in message


#: What needs a compiler here is built in a container.
_ELSEWHERE = """
if os.environ["CC"] == "cc":
    import subprocess
    subprocess.run(["cc"])
    raise SystemExit("not here")
"""


@pytest.mark.parametrize("how", ["docker", "docker, where nothing else confines"])
def test_a_build_in_a_container_reaches_nothing(how: str, standin_base: Pushed, pythons: str, tmp_path: Path) -> None:
    """It had this machine's network: its loopback, and the abstract sockets of its programs."""
    environ = {}
    if how != "docker":
        (tmp_path / "bin").mkdir()
        environ = {"PATH": str(tmp_path / "bin")}
    with prey(tmp_path / "home", tmp_path / "cache") as victim:
        own = victim.source("" if "PATH" in environ else _ELSEWHERE)
        with index_of(own) as index:
            user = user_of(tmp_path, index, standin_base, pythons)
            ran = user.runs("lock", "spec.toml", "--image", environ=victim.environ | environ)
        assert ran.status == 0, ran.stderr
        row = user.packages()["own"]["built"]
        with zipfile.ZipFile(user.cache / "archives" / row["sha256"] / row["filename"]) as archive:
            assert archive.read("own/__init__.py") == b"GOT = []\n"
        assert victim.is_unharmed()
