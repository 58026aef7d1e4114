"""sdists that a lock allows: built once by real backends, the same bytes anywhere, recorded, kept and handed on."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from envspec.lockfile.folder import read_lock, write_folder
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.support.builders import ecosystem
from tests.support.builders.environments import BASE, RUNNING, SERIES, run_in
from tests.support.builders.images import ImageUser, RegistryInThread, keep_base, make_base
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.machines.confinement import confined, path_with_bubblewrap
from tests.support.servers.faults import Status
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry
from tests.support.user import SHORT_TIMEOUTS, User, refused, succeeded

pytestmark = confined

AS_OF = "2026-06-01T00:00:00Z"
OWN = sdist("own", "1.0.0", requires=["lib"])
#: What somebody else's machine may say.
HOSTILE = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "UV_INDEX": "x=http://127.0.0.1:9/", "TZ": "Asia/Tokyo"}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


def index_of(*artifacts: Artifact) -> IndexServer:
    rows = [File(each, day("2024-01-01")) for each in artifacts]
    return IndexServer([ecosystem.release("lib", "1.0.0"), *rows])


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with index_of(OWN) as running:
        yield running


def builder(folder: Path, index: IndexServer, *names: str) -> ImageUser:
    """Somebody with a lock of these names, all of which may be sdists."""
    base = make_base()
    found = ImageUser(folder, index.url)
    keep_base(found.cache, base)
    found.wants(
        *names,
        as_of=AS_OF,
        python=RUNNING,
        pip=f"build.packages = {list(names)}\n",
        rest=f'[image]\nbase = "docker.io/nvidia/cuda:1@{base.digest}"\nglibc = "2.36"\npython = "{RUNNING}"\n',
    )
    return found


def recorded(folder: Path, index: IndexServer, *names: str) -> ImageUser:
    found = builder(folder, index, *names)
    ran = found.locks("--image")
    assert ran.status == 0, ran.stderr
    return found


def built_of(user: ImageUser, name: str = "own") -> dict[str, object]:
    found = user.packages()[name]["built"]
    assert isinstance(found, dict)
    return found


def wheel_in(user: ImageUser, name: str = "own") -> Path:
    row = built_of(user, name)
    return user.cache / "archives" / str(row["sha256"]) / str(row["filename"])


def test_lock_image_builds_once_and_records_the_wheel(tmp_path: Path, index: IndexServer) -> None:
    user = recorded(tmp_path, index, "own")
    kept = wheel_in(user)
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == built_of(user)["sha256"]
    assert built_of(user)["size_bytes"] == kept.stat().st_size
    assert user.packages()["own"]["file"]["filename"] == OWN.filename
    assert OWN.sha256 in (user.lock / "requirements.linux-64.txt").read_text()
    assert len(user.document()["image_id"]) == 1
    before = user.files()
    assert user.locks("--image").status == 0
    assert user.files() == before
    assert user.locks("--check").status == 0


def test_two_machines_build_the_same_bytes(tmp_path: Path, index: IndexServer) -> None:
    first, second = (recorded(tmp_path / name, index, "own") for name in ("a", "b"))
    assert wheel_in(first).read_bytes() == wheel_in(second).read_bytes()
    assert first.document()["image_id"] == second.document()["image_id"]


@pytest.mark.parametrize("place", ["", "place"])
def test_an_image_builds_the_wheel_again_if_it_is_gone(tmp_path: Path, index: IndexServer, place: str) -> None:
    """place: one that has something else under its name, which is reported and not used."""
    user = recorded(tmp_path, index, "own")
    expected, built = user.document()["image_id"][0]["id"], built_of(user)
    folder = tmp_path / "place" / str(built["sha256"])
    folder.mkdir(parents=True)
    (folder / str(built["filename"])).write_bytes(b"x" * int(str(built["size_bytes"])))
    for name in ("archives", "built", "image-layers"):
        shutil.rmtree(user.cache / name)
    ran = user.image("build", user.lock, **({"ENVSPEC_BUILT_WHEELS": str(folder.parent)} if place else {}))
    assert (ran.status, ran.stdout.strip()) == (0, expected), ran.stderr
    assert any("its wheel can't be fetched" in text for text in ran.warnings) is bool(place), ran.stderr
    assert wheel_in(user).is_file()


def test_a_wheel_that_comes_out_otherwise_is_refused_with_both_hashes(tmp_path: Path, index: IndexServer) -> None:
    user = recorded(tmp_path, index, "own")
    lock = read_lock(user.lock)
    found = str(built_of(user)["sha256"])
    part = lock.resolutions[0]
    packages = tuple(replace(p, built=replace(p.built, sha256="ab" * 32)) if p.built else p for p in part.packages)
    write_folder(user.lock, lock_files(replace(lock, resolutions=(replace(part, packages=packages),))))
    error = refused(user.image("build", user.lock), 8)
    assert found in error and "ab" * 32 in error and "ENVSPEC_BUILT_WHEELS" in error
    refused(user.locks("--image"), 8)
    # As its hint says, although the date in the spec excludes everything newer.
    assert "envspec lock --upgrade --image SPEC" in error
    succeeded(user.locks("--upgrade", "--image"))
    assert built_of(user)["sha256"] == found


@contextmanager
def place_of(kind: str, user: ImageUser, folder: Path) -> Iterator[str]:
    """A place that has the built wheels of a user."""
    if kind == "cache":
        yield str(user.cache / "archives")
    elif kind == "index":
        path = wheel_in(user)
        uploaded = Artifact("own", "1.0.0", path.name, path.read_bytes(), b"")
        with IndexServer([File(uploaded, day("2024-01-01"))]) as pages:
            yield f"index+{pages.url}"
    elif kind == "registry":
        with RegistryInThread(PushRegistry()) as registry:
            place = f"oci://{registry.host}/team/wheels"
            assert succeeded(user.runs("cache", "publish", user.lock, place)).stdout.startswith(place)
            yield place
    else:
        succeeded(user.runs("cache", "publish", user.lock, folder))
        with serving(folder) as url:
            yield url if kind == "url" else str(folder)


@pytest.mark.parametrize("kind", ["cache", "folder", "url", "index", "registry"])
def test_the_wheel_of_others_is_taken_before_anything_is_built(tmp_path: Path, index: IndexServer, kind: str) -> None:
    first = recorded(tmp_path / "first", index, "own")
    second = builder(tmp_path / "second", index, "own")
    shutil.copytree(first.lock, second.lock)
    index.forget()
    with place_of(kind, first, tmp_path / "place") as place:
        found = second.id_of(second.lock, ENVSPEC_BUILT_WHEELS=place)
    assert found == first.document()["image_id"][0]["id"]
    assert wheel_in(second).read_bytes() == wheel_in(first).read_bytes()
    assert not any(OWN.filename in each.path for each in index.requests)


def test_install_takes_the_built_wheel_and_builds_nothing(tmp_path: Path, index: IndexServer) -> None:
    user = recorded(tmp_path, index, "own")
    for name in ("engines", "uv"):
        shutil.rmtree(user.cache / name, ignore_errors=True)
    index.forget()
    ran = user.runs("install", user.lock, "--prefix", "env", "--python", BASE)
    assert ran.status == 0, ran.stderr
    assert run_in(tmp_path / "env", "python", "-c", "import own; print(own.__version__)") == "1.0.0"
    assert not any(OWN.filename in each.path for each in index.requests)
    info = tmp_path / "env" / "lib" / f"python{SERIES}" / "site-packages" / "own-1.0.0.dist-info"
    assert not (info / "direct_url.json").exists()
    ran = user.runs("verify", user.lock, "--prefix", "env")
    assert (ran.status, "not anchored" in ran.stdout) == (0, False), ran


def with_files(source: Artifact, files: Mapping[str, bytes]) -> Artifact:
    """The sdist with other files, or more."""
    top = source.filename.removesuffix(".tar.gz")
    wanted = {f"{top}/{name}": content for name, content in files.items()}
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(source.data)) as old,
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as new,
    ):
        held = {member.name: file.read() for member in old if (file := old.extractfile(member))}
        for name, data in (held | wanted).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    return replace(source, data=out.getvalue())


def building(on_build: str) -> Artifact:
    return sdist("own", "1.0.0", on_build=on_build, metadata_version="2.2")


def requiring(name: str) -> Artifact:
    """An sdist whose backend comes from the index."""
    pyproject = f'[build-system]\nrequires = ["{name}"]\nbuild-backend = "{name}"\n'
    return with_files(sdist("own", "1.0.0", metadata_version="2.2"), {"pyproject.toml": pyproject.encode()})


#: Metadata of version 2.2 is believed without a build: nothing fails when it is locked.
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            building("raise SystemExit('no luck today')"),
            ("own 1.0.0 (required by the spec): its build failed", "no luck today"),
        ),
        (building("STEM = 'other-1.0.0'"), ("a wheel of other 1.0.0, not of own 1.0.0",)),
        (building("STEM = 'own-1.0.1'"), ("a wheel of own 1.0.1, not of own 1.0.0",)),
        (requiring("gone"), ("gone", "own 1.0.0")),
    ],
    ids=["its last lines", "another name", "another version", "no backend"],
)
def test_a_build_that_fails_is_reported(tmp_path: Path, source: Artifact, words: tuple[str, ...]) -> None:
    with index_of(source) as index:
        error = refused(builder(tmp_path, index, "own").locks("--image"), 4)
    assert not [word for word in words if word not in error], error


def test_a_build_sees_the_moment_of_the_lock_and_nothing_of_this_machine(tmp_path: Path) -> None:
    asks = """
import json, os, sys
text = json.dumps({k: v for k, v in os.environ.items() if "127.0.0.1" not in v}, sort_keys=True)
Path_ = __import__("pathlib").Path
Path_("own", "__init__.py").write_text(f"SEEN = {text!r}\\nAT = {os.getcwd()!r}\\n__version__ = '1.0.0'\\n")
"""
    with index_of(building(asks)) as index:
        users = [builder(tmp_path / name, index, "own") for name in ("a", "b")]
        for user, more in zip(users, ({}, HOSTILE), strict=True):
            ran = user.locks("--image", **more)
            assert ran.status == 0, ran.stderr
    with zipfile.ZipFile(wheel_in(users[0])) as archive:
        text = archive.read("own/__init__.py").decode()
    assert '"SOURCE_DATE_EPOCH": "1780272000"' in text and '"PYTHONHASHSEED": "0"' in text
    for secret in ("PIP_INDEX_URL", "UV_INDEX", "ENVSPEC_CACHE_DIR", "Tokyo", str(tmp_path / "home")):
        assert secret not in text, text


def test_what_a_build_asks_for_is_as_old_as_the_lock(tmp_path: Path) -> None:
    """A backend of the index's, whose newer release would give another wheel."""

    def backend(version: str, uploaded: str) -> File:
        body = _BACKEND.replace("VERSION", version).encode()
        return File(wheel("maker", version, files={"maker.py": body}), day(uploaded))

    rows = [backend("1.0", "2024-01-01"), backend("2.0", "2026-08-01"), File(requiring("maker"), day("2024-01-01"))]
    with IndexServer([ecosystem.release("lib", "1.0.0"), *rows]) as index:
        user = recorded(tmp_path, index, "own")
    with zipfile.ZipFile(wheel_in(user)) as archive:
        assert archive.read("own.py") == b"BY = '1.0'\n"


def test_an_index_that_fails_meanwhile_is_a_network_error(tmp_path: Path) -> None:
    with index_of(requiring("maker")) as index:
        index.fail("/simple/maker/", Status(500))
        error = refused(builder(tmp_path, index, "own").locks("--image", **SHORT_TIMEOUTS), 5)
    assert "500" in error and "maker" in error


COMPILES = """
import subprocess
subprocess.run(["c++", "own.cpp"])
"""


def test_what_needs_a_compiler_is_not_tried_again(tmp_path: Path) -> None:
    with index_of(building(COMPILES + "raise SystemExit('not without it')")) as index:
        user = User(tmp_path, index.url)
        user.wants("own", as_of=AS_OF, python=RUNNING)
        first = refused(user.locks(), 4)
        assert "its build needs c++" in first
        # On this path nothing confines builds.
        assert refused(user.locks(PATH=str(tmp_path)), 4) == first


def test_what_does_without_a_compiler_is_told(tmp_path: Path) -> None:
    with index_of(building(COMPILES)) as index:
        ran = builder(tmp_path, index, "own").locks("--image")
    assert ran.status == 0, ran.stderr
    assert any("own 1.0.0 is built without a compiler, but its build called c++" in text for text in ran.warnings)


#: Compiled, and its wheel requires more than PKG-INFO states.
REQUIRES_MORE = """
import subprocess
from pathlib import Path
subprocess.check_call(["c++"])
needs = ["lib[fast]", "helper<2; python_version >= '3.8'", "absent; sys_platform == 'win32'", "gone"]
info = Path("PKG-INFO")
info.write_text("".join(f"Requires-Dist: {each}\\n" for each in needs) + info.read_text())
"""


def test_a_compiled_wheel_that_requires_more_than_its_sdist_states(tmp_path: Path) -> None:
    source = sdist("own", "1.0.0", requires=["lib"], on_build=REQUIRES_MORE)
    lib = wheel("lib", "2.0.0", extras={"fast": ["lib"]})
    with index_of(source, lib, wheel("helper", "1.5"), wheel("helper", "2.0")) as index:
        user = builder(tmp_path, index, "own")
        removed = 'overrides = [{ requirement = "gone", remove = true, reason = "x" }]\n'
        spec = user.spec.read_text().replace("build.packages", f"{removed}build.packages")
        user.writes(spec)
        assert user.locks().status == 0 and "built" not in user.packages()["own"]
        compiler = tmp_path / "bin" / "c++"
        compiler.parent.mkdir()
        compiler.write_text("#!/bin/sh\n")
        compiler.chmod(0o755)
        words = ("install", user.lock, "--prefix", "env", "--python", BASE)
        path = {"PATH": f"{compiler.parent}:/usr/bin:/bin"}
        assert refused(user.runs(*words, environ=path), 4) == (
            "own 1.0.0: it was locked on linux-64 by what its sdist states, and its wheel requires something else: "
            "lib[fast] (the lock has it without fast); helper<2 (not in the lock)\n"
            '  hint: add "lib[fast]", "helper<2" to [pip] dependencies, and run `envspec lock`'
        )
        assert not (tmp_path / "env").exists()
        user.writes(spec.replace("dependencies = [", 'dependencies = ["lib[fast]", "helper<2", '))
        assert user.locks().status == 0
        ran = user.runs(*words, environ=path)
        assert ran.status == 0, ran.stderr


def test_an_install_compiles_by_what_is_here_and_no_lock_has_its_wheel(tmp_path: Path) -> None:
    made = "import subprocess\nfrom pathlib import Path\n"
    made += "text = subprocess.check_output(['c++'], text=True)\nPath('own', '__init__.py').write_text(text)\n"
    with index_of(building(made)) as index:
        user = builder(tmp_path, index, "own")
        assert user.locks().status == 0
        assert "lock --image" in refused(user.image("build", user.lock), 2)
        compiler = tmp_path / "bin" / "c++"
        compiler.parent.mkdir()
        compiler.write_text("#!/bin/sh\necho 'BY = 1'\n")
        compiler.chmod(0o755)
        path = {"PATH": f"{compiler.parent}:/usr/bin:/bin"}
        ran = user.runs("install", user.lock, "--prefix", "env", "--python", BASE, environ=path)
        assert ran.status == 0, ran.stderr
        assert run_in(tmp_path / "env", "python", "-c", "import own; print(own.BY)") == "1"
        path = {"PATH": path_with_bubblewrap(tmp_path / "bin")}
        ran = user.locks("--image", DOCKER_HOST="unix:///nowhere/docker.sock", **path)
        assert "its build needs c++" in refused(ran, 6)


def test_offline_and_not_in_the_cache_is_said(tmp_path: Path, index: IndexServer) -> None:
    user = recorded(tmp_path, index, "own")
    for name in ("built", "image-layers", f"archives/{OWN.sha256}", f"archives/{built_of(user)['sha256']}"):
        shutil.rmtree(user.cache / name)
    error = refused(user.image("build", user.lock, "--offline"), 5)
    assert "own 1.0.0" in error and "run once with a network" in error


_BACKEND = """
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    info = "own-1.0.0.dist-info"
    content = {
        "own.py": "BY = 'VERSION'\\n",
        f"{info}/METADATA": Path("PKG-INFO").read_text(),
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: maker\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(Path(wheel_directory, "own-1.0.0-py3-none-any.whl"), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return "own-1.0.0-py3-none-any.whl"
"""
