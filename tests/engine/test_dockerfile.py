"""The Dockerfile that a lock brings, built by the real engine: by BuildKit, and by the builder before it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
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

from envspec.engine.build import Build, Builder, BuildFailed, build
from envspec.engine.client import Engine, open_engine
from tests.support import standin
from tests.support.containers import removed, run_in
from tests.support.ecosystem import release
from tests.support.index_server import IndexServer
from tests.support.standin import Pushed
from tests.support.user import User

pytestmark = pytest.mark.engine

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


@pytest.fixture
def opened() -> Iterator[Engine]:
    with open_engine(os.environ) as found:
        yield found


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
        f"[image.env]\nODD = '''{ODD}'''\n{rows}"
    )


def remove_steps(engine: DockerClient, lines: Iterable[str]) -> None:
    """What the older builder keeps of each step, by its log; what has a name, or is below another image, stays."""
    steps = dict.fromkeys(
        found[1] for line in lines if (found := re.fullmatch(r" ?---> ([0-9a-f]{12})", line.rstrip()))
    )
    for step in reversed(steps):
        with contextlib.suppress(APIError):
            image = engine.images.get(step)
            if not image.attrs["RepoTags"] and not image.attrs["RepoDigests"]:
                engine.images.remove(str(image.id))


@contextmanager
def built(
    engine: DockerClient, opened: Engine, folder: Path, builder: Builder, index: IndexServer, base: Pushed
) -> Iterator[str]:
    """The image of a lock's folder, for a while."""
    tag = f"envspec-test/dockerfile:{uuid.uuid4().hex[:8]}"
    lines: list[str] = []
    try:
        with removed(engine, tag, f"{base.name.rpartition(':')[0]}@{base.digest}"):
            asked = Build(folder, tag, {"PIP_INDEX_URL": index.url}, network="host")
            yield build(opened, asked, builder, lines.append)
    finally:
        remove_steps(engine, lines)


@pytest.mark.parametrize("builder", Builder)
@pytest.mark.parametrize("platforms", ['["linux-64"]', '["linux-64", "linux-aarch64"]'], ids=["one", "two"])
def test_the_image_holds_what_the_lock_says(
    engine: DockerClient,
    opened: Engine,
    standin_base: Pushed,
    index: IndexServer,
    files: tuple[str, str],
    tmp_path: Path,
    builder: Builder,
    platforms: str,
) -> None:
    user = User(tmp_path, index.url)
    user.writes(spec(standin_base, files, platforms))
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    with built(engine, opened, user.lock, builder, index, standin_base) as image:
        done = run_in(engine, image, "python", "-c", ASK, network_mode="none")
        assert done.status == 0, done.output
        assert json.loads(done.stdout) == {
            "installed": {"app": "1.0.0", "lib": "2.0.0"},
            "odd": ODD,
            "home": "/root",
            "uid": 0,
            "at": "/my work",
            "prefix": "/opt/env",
            "own": ["/my work"],
            "left": [],
        }
        owners = run_in(engine, image, "find", "/opt/env", "!", "-user", "root", network_mode="none")
        assert owners.output == ""
        labels = engine.images.get(image).labels
        assert labels["envspec.name"] == "small"
        assert labels["org.opencontainers.image.base.digest"] == standin_base.digest


@pytest.mark.parametrize("builder", Builder)
def test_another_python_than_the_locked_one_is_refused(
    engine: DockerClient,
    opened: Engine,
    standin_base: Pushed,
    index: IndexServer,
    files: tuple[str, str],
    tmp_path: Path,
    builder: Builder,
) -> None:
    user = User(tmp_path, index.url)
    user.writes(spec(standin_base, (files[0], "ab" * 32), '["linux-64"]'))
    assert user.locks().status == 0
    with (
        pytest.raises(BuildFailed, match="sha256sum"),
        built(engine, opened, user.lock, builder, index, standin_base),
    ):
        pass


def test_the_command_shows_what_the_builder_says(
    standin_base: Pushed, index: IndexServer, files: tuple[str, str], tmp_path: Path
) -> None:
    user = User(tmp_path, index.url, ENVSPEC_REGISTRY_MIRRORS=f"docker.io={standin_base.registry}")
    user.writes(spec(standin_base, (files[0], "ab" * 32), '["linux-64"]'))
    assert user.locks().status == 0
    tag = f"envspec-test/dockerfile:{uuid.uuid4().hex[:8]}"
    ran = user.runs("image", "build", user.lock, "--builder", "docker", "--no-pyc", "--tag", tag)
    assert (ran.status, ran.stdout) == (6, ""), ran.stderr
    log, _, told = ran.stderr.partition("error: ")
    assert "python.tar.gz: FAILED" in log
    assert "the lines above" in told
