"""The Dockerfile of a lock, built by docker with BuildKit, and with the classic builder for one platform."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pip
import pytest
from docker import DockerClient
from docker.errors import APIError

from tests.support.builders.ecosystem import release
from tests.support.machines import NotRun, standin
from tests.support.machines.engine import removed, run_in
from tests.support.machines.standin import Pushed
from tests.support.servers.apt import AptArchive, Deb
from tests.support.servers.index import IndexServer
from tests.support.user import User

pytestmark = pytest.mark.engine

BUILDERS = pytest.mark.parametrize("buildkit", ["1", "0"], ids=["buildkit", "classic"])

SERIES = ".".join(standin.PYTHON.split(".")[:2])
ODD = 'a  "b" $HOME \\ \\n # ü \''
#: What prints all that the lock decides.
ASK = """
import importlib.metadata, json, os, pathlib, sys
print(json.dumps({
    "installed": {each.name: each.version for each in importlib.metadata.distributions()},
    "odd": os.environ["ODD"], "home": os.environ["HOME"], "uid": os.getuid(), "at": os.getcwd(), "prefix": sys.prefix,
    "own": sorted(str(path) for path in map(pathlib.Path, ("/home/envspec", os.getcwd())) if os.access(path, os.W_OK)),
    "left": sorted(os.listdir("/tmp")),
}))
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Tests have output of their own."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The folder's files on loopback; the address without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def python_archive(path: Path) -> str:
    """A build of Python as far as this test needs one: the base's own under it, and pip. Gives its SHA-256."""
    library = f"python/lib/python{SERIES}/site-packages"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("python", "python3"):
            link = tarfile.TarInfo(f"python/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, f"/usr/bin/python{SERIES}"
            link.uid = link.gid = 4711
            tar.addfile(link)
        config = b"home = /usr/bin\n"
        member = tarfile.TarInfo("python/pyvenv.cfg")
        member.size, member.uid = len(config), 4711
        tar.addfile(member, io.BytesIO(config))
        source = Path(pip.__file__).parent
        tar.add(source, f"{library}/pip", filter=lambda each: None if "__pycache__" in each.name else each)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([release("app", "1.0.0", requires=("lib",)), release("lib", "2.0.0")]) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where the archives of Python are, and the SHA-256 of the one for this architecture."""
    folder = tmp_path_factory.mktemp("www")
    sha256 = python_archive(folder / "mine.tar.gz")
    (folder / "other.tar.gz").write_bytes(b"of another architecture: nobody unpacks it\n")
    with serving(folder) as address:
        yield address, sha256


def spec(base: Pushed, files: tuple[str, str], platforms: str) -> str:
    address, sha256 = files
    other = hashlib.sha256(b"of another architecture: nobody unpacks it\n").hexdigest()
    rows = "".join(
        f'[[facts.python]]\nversion = "{standin.PYTHON}"\nplatform = "{platform}"\nbuild = "20240101"\n'
        f'url = "{address}/{name}.tar.gz"\nsha256 = "{digest}"\nsource = "this test"\n'
        for platform, name, digest in (("linux-64", "mine", sha256), ("linux-aarch64", "other", other))
    )
    return (
        f'[env]\nname = "small"\npython = "{standin.PYTHON}"\npython_source = "standalone"\nplatforms = {platforms}\n'
        f'as_of = 2026-06-01T00:00:00Z\n[pip]\ndependencies = ["app"]\n'
        f'[image]\nbase = "{base.name}@{base.digest}"\nglibc = "{standin.GLIBC}"\nworkdir = "/my work"\n'
        f"[image.env]\nODD = '''{ODD}'''\n[export]\ndockerfile = true\n{rows}"
    )


def remove_steps(engine: DockerClient, lines: Iterable[str]) -> None:
    """Remove the classic builder's image of each step, except images with a name or with another image on top."""
    steps = dict.fromkeys(
        found[1] for line in lines if (found := re.fullmatch(r" ?---> ([0-9a-f]{12})", line.rstrip()))
    )
    for step in reversed(steps):
        with contextlib.suppress(APIError):
            image = engine.images.get(step)
            if not image.attrs["RepoTags"] and not image.attrs["RepoDigests"]:
                engine.images.remove(str(image.id))


class BuildFailed(Exception):
    """The message is the output of `docker build`."""


def docker_with(buildkit: str) -> str:
    """The first docker program on PATH that has this builder: Docker 23 and later have BuildKit only with buildx."""
    for folder in os.get_exec_path():
        path = Path(folder, "docker")
        environ = {**os.environ, "DOCKER_BUILDKIT": buildkit}
        if not path.is_file():
            continue
        if subprocess.run([path, "build", "--help"], check=False, env=environ, capture_output=True).returncode == 0:
            return str(path)
    raise NotRun(f"no docker program that builds with DOCKER_BUILDKIT={buildkit} is installed")


@contextmanager
def built(engine: DockerClient, folder: Path, buildkit: str, index: IndexServer, base: Pushed) -> Iterator[str]:
    """The tag of the image of a lock's folder, which is removed at the end."""
    docker = docker_with(buildkit)
    tag = f"envspec-test/dockerfile:{uuid.uuid4().hex[:8]}"
    words = ("--network=host", f"--build-arg=PIP_INDEX_URL={index.url}", f"--tag={tag}", str(folder))
    with removed(engine, tag, f"{base.name.rpartition(':')[0]}@{base.digest}"):
        done = subprocess.run(
            [docker, "build", *words],
            check=False,
            env={**os.environ, "DOCKER_BUILDKIT": buildkit},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            if done.returncode:
                raise BuildFailed(done.stdout)
            yield tag
        finally:
            remove_steps(engine, done.stdout.splitlines())


@pytest.mark.parametrize(
    ("buildkit", "platforms"),
    [("1", '["linux-64"]'), ("1", '["linux-64", "linux-aarch64"]'), ("0", '["linux-64"]')],
    ids=["buildkit-one", "buildkit-two", "classic-one"],
)
def test_the_image_holds_what_the_lock_says(
    engine: DockerClient,
    standin_base: Pushed,
    index: IndexServer,
    files: tuple[str, str],
    tmp_path: Path,
    buildkit: str,
    platforms: str,
) -> None:
    user = User(tmp_path, index.url)
    user.writes(spec(standin_base, files, platforms))
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    with built(engine, user.lock, buildkit, index, standin_base) as image:
        done = run_in(engine, image, "python", "-c", ASK, network_mode="none")
        assert done.status == 0, done.output
        assert json.loads(done.stdout) == {
            "installed": {"app": "1.0.0", "lib": "2.0.0"},
            "odd": ODD,
            "home": "/root",
            "uid": 0,
            "at": "/my work",
            "prefix": "/opt/env",
            "own": ["/home/envspec", "/my work"],
            "left": [],
        }
        script = "touch ~/.cache/x ~/.config/x ~/.local/x ~/.triton/x /home/envspec/x; bash -lc 'echo $PATH'; "
        script += "python -c 'import getpass; print(getpass.getuser())'"
        anybody = run_in(engine, image, "sh", "-c", script, user="12345:12345", network_mode="none")
        path, name = anybody.output.splitlines()
        assert name == "envspec"
        assert path.startswith("/opt/env/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:")
        owners = run_in(engine, image, "find", "/opt/env", "!", "-user", "root", network_mode="none")
        assert owners.output == ""
        labels = engine.images.get(image).labels
        assert labels["envspec.name"] == "small"
        assert labels["org.opencontainers.image.base.digest"] == standin_base.digest


@BUILDERS
def test_system_packages_are_of_the_locks_date(
    engine: DockerClient,
    standin_layout: standin.Layout,
    registry: str,
    index: IndexServer,
    files: tuple[str, str],
    tmp_path: Path,
    buildkit: str,
) -> None:
    with AptArchive() as archive:
        archive.publish(Deb("tool", "1.0", {"usr/share/tool": "1.0\n"}))
        archive.keep("20260530T000000Z")
        archive.publish(Deb("tool", "1.1", {"usr/share/tool": "1.1\n"}))
        lines = (
            f"# deb {archive.snapshots}/debian/20250301T000000Z bookworm main",
            f"deb [trusted=yes] {archive.url} bookworm main",
        )
        base = standin.push(standin.with_sources(standin_layout, lines, tmp_path / "base"), registry, "dockerfile")
        user = User(tmp_path / "user", index.url)
        user.writes(spec(base, files, '["linux-64"]') + '[system]\napt = ["tool"]\n')
        user.locked()
        with built(engine, user.lock, buildkit, index, base) as image:
            words = "cat /usr/share/tool /etc/apt/sources.list; ls /tmp /etc/apt/sources.list.d"
            done = run_in(engine, image, "sh", "-c", words, network_mode="none")
    expected = ["1.0", *lines, "/etc/apt/sources.list.d:", "", "/tmp:"]
    assert done.stdout.splitlines() == expected, done.output


@BUILDERS
def test_another_python_than_the_locked_one_is_refused(
    engine: DockerClient,
    standin_base: Pushed,
    index: IndexServer,
    files: tuple[str, str],
    tmp_path: Path,
    buildkit: str,
) -> None:
    user = User(tmp_path, index.url)
    user.writes(spec(standin_base, (files[0], "ab" * 32), '["linux-64"]'))
    assert user.locks().status == 0
    with (
        pytest.raises(BuildFailed, match="sha256sum"),
        built(engine, user.lock, buildkit, index, standin_base),
    ):
        pass
