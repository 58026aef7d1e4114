"""Wheels whose RECORD does not list their files as they are: they were repaired after it was written."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.image.layers.types import PREFIX
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelSource
from envspec.lockfile.folder import read_lock
from envspec.operations.environment import expected_of
from envspec.structs import replace
from envspec.verifier.compare import compare
from envspec.verifier.installed import read_installed
from envspec.verifier.scan import find_environment
from tests.conftest import Serve
from tests.support import preloaded
from tests.support.builders.entries import lay_out
from tests.support.builders.environments import BASE, RUNNING, SERIES, installs
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, padding, wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User, succeeded

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")

LISTED: Final = padding(200_000, seed=1)
#: Larger than the tail of a wheel in which a resolver finds METADATA and RECORD.
LIBRARY: Final = padding(300_000, seed=2)
FILES: Final = {
    "codec/__init__.py": b"",
    "codec/lib.so": LISTED,
    "codec/also.so": padding(100_000, seed=3),
    "codec/gone.so": b"gone",
    "codec/same.so": b"as it was",
    "codec-1.0.data/data/share/codec.txt": b"as it was",
}


BUILT_AT: Final = (2026, 5, 25, 6, 24, 54)
REPAIRED_AT: Final = (2026, 5, 25, 6, 26, 52)


def repaired(original: Artifact, changed: Mapping[str, bytes | None]) -> Artifact:
    """The wheel with other files and its old RECORD, its dist-info first. None removes a file."""
    with zipfile.ZipFile(io.BytesIO(original.data)) as archive:
        content: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    content |= changed
    paths = sorted(content, key=lambda path: (".dist-info/" not in path, path))
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for path in paths:
            if (data := content[path]) is not None:
                archive.writestr(zipfile.ZipInfo(path, REPAIRED_AT if path in changed else BUILT_AT), data)
    return replace(original, data=body.getvalue())


REPAIRED: Final = repaired(
    wheel("codec", "1.0", files=FILES, tag="py3-none-any"),
    {
        "codec/lib.so": LIBRARY,
        # Of the same size: RECORD has a wrong hash alone.
        "codec/same.so": b"as it is.",
        "codec/new.py": b"NEW = 1\n",
        "codec/gone.so": None,
        "codec-1.0.data/data/share/codec.txt": b"as it is now",
    },
)
PLAIN: Final = wheel("plain", "1.0")
EXPECTED: Final[list[dict[str, Any]]] = [
    {"path": "<data>/share/codec.txt", "sha256": hashlib.sha256(b"as it is now").hexdigest()},
    {"path": "codec/gone.so"},
    {"path": "codec/lib.so", "sha256": hashlib.sha256(LIBRARY).hexdigest()},
    {"path": "codec/new.py", "sha256": hashlib.sha256(b"NEW = 1\n").hexdigest()},
    {"path": "codec/same.so", "sha256": hashlib.sha256(b"as it is.").hexdigest()},
]


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(REPAIRED), File(PLAIN)])


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    user = User(tmp_path, index.url)
    user.wants("codec", "plain", python=RUNNING, as_of="2026-06-01T00:00:00Z")
    assert succeeded(user.locks()).warnings == []
    return user


def fetched(index: IndexServer) -> int:
    return len(index.requests_for(index.file_path(REPAIRED.filename)))


def test_the_lock_says_what_the_wheel_contains(user: User) -> None:
    packages = user.packages()
    assert packages["codec"]["wrong_record"] == EXPECTED and "wrong_record" not in packages["plain"]
    whole = user.files()
    succeeded(user.locks("--check", ENVSPEC_CACHE_DIR=str(user.folder / "elsewhere")))
    succeeded(user.locks("--verify"))
    succeeded(user.locks("--offline", "--upgrade"))
    assert user.files() == whole
    shown = succeeded(user.runs("explain", user.lock, "codec")).stdout
    assert "RECORD is wrong about codec/lib.so" in shown and EXPECTED[2]["sha256"] in shown
    assert "RECORD is wrong about codec/gone.so\n      is not in the wheel" in shown


def test_a_record_of_another_wheel_makes_no_rows(tmp_path: Path, serve: Serve) -> None:
    paths = [f"plain/{number:x}" for number in range(2000)]
    foreign = repaired(wheel("plain", "1.0", files=dict.fromkeys(paths, b"")), dict.fromkeys(paths))
    user = User(tmp_path, serve([File(foreign)]).url)
    user.wants("plain", python=RUNNING)
    succeeded(user.locks())
    assert "wrong_record" not in user.packages()["plain"]


def test_an_environment_as_published_matches(user: User, index: IndexServer) -> None:
    succeeded(installs(user, user.lock, "--python", BASE, prefix="one"))
    before = fetched(index)
    assert succeeded(installs(user, user.lock, "--python", BASE, prefix="two")).warnings == []
    assert fetched(index) == before
    for prefix in ("one", "two"):
        succeeded(user.runs("verify", user.lock, "--prefix", prefix))


def test_an_unlisted_file_of_another_package_is_a_conflict(tmp_path: Path, serve: Serve) -> None:
    other = repaired(wheel("other", "1.0"), {"plain/__init__.py": b"import os\n"})
    user = User(tmp_path, serve([File(other), File(PLAIN)]).url)
    user.wants("other", "plain", python=RUNNING)
    (warning,) = succeeded(user.locks()).warnings
    assert "other 1.0 and plain 1.0 install plain/__init__.py with different content" in warning


def test_an_environment_by_pip_matches(user: User) -> None:
    """pip keeps the rows of missing files, and adds rows without a hash."""
    prefix = user.folder / "env"
    subprocess.run([BASE, "-m", "venv", "--without-pip", prefix], check=True)
    command = [sys.executable, "-m", "pip", "--python", str(prefix), "install", "--no-deps", "--require-hashes"]
    environ = {"PIP_INDEX_URL": user.environ["ENVSPEC_DEFAULT_INDEX"], "PIP_CONFIG_FILE": os.devnull}
    command += ["-r", str(user.lock / "requirements.linux-64.txt")]
    subprocess.run(command, check=True, env=environ, capture_output=True)
    succeeded(user.runs("verify", user.lock, "--prefix", "env"))


def test_an_image_of_it_matches(user: User, tmp_path: Path) -> None:
    """Its files, laid out in a folder of this machine."""
    (part,) = read_lock(user.lock).resolutions
    scheme = Scheme.of_venv(SERIES)
    wheels = []
    for each, artifact in zip(part.packages, (REPAIRED, PLAIN), strict=True):
        path = tmp_path / artifact.filename
        path.write_bytes(artifact.data)
        wheels.append(LockedWheel(each.name, each.version, artifact.filename, artifact.sha256, path))
    lay_out(WheelSource(tuple(wheels), scheme, None).entries(), tmp_path)
    found = compare(expected_of(part), read_installed(find_environment(tmp_path / PREFIX)))
    assert found.findings == ()


@pytest.mark.parametrize("path", ["codec/lib.so", "codec/same.so", "codec/new.py", "codec/also.so"])
def test_a_change_is_found(user: User, index: IndexServer, path: str) -> None:
    """What RECORD lists for the library is a change, too."""
    succeeded(installs(user, user.lock, "--python", BASE, prefix="one"))
    file = user.folder / "one" / "lib" / f"python{SERIES}" / "site-packages" / path
    file.write_bytes(LISTED)
    ran = user.runs("verify", user.lock, "--prefix", "one")
    assert ran.status == 8 and f"{path} was changed" in ran.stdout, ran
    before = fetched(index)
    again = succeeded(installs(user, user.lock, "--python", BASE, prefix="two"))
    assert fetched(index) == before + (path != "codec/new.py"), again
