"""Whoever installs a wheel, the digest of what is installed is the wheel's own."""

from __future__ import annotations

import os
import posixpath
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import pytest
from uv import find_uv_bin

from envspec.image.layers.types import InMemory
from envspec.image.sources.wheel import LockedWheel, Scheme, WheelSource
from envspec.verifier.record import installed_sha256, record_entries, wheel_sha256
from tests.support.builders.environments import BASE, SERIES, installs, make_lock, pin, write_lock
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, wheel
from tests.support.builders.zips import member
from tests.support.servers.index import IndexServer
from tests.support.user import User, succeeded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="paths of scripts and data are others there")

SITE: Final = f"lib/python{SERIES}/site-packages"
WHEELS: Final = (
    wheel("plain", "1.0"),
    wheel(
        "spread",
        "1.0",
        files={
            "spread/__init__.py": b"",
            "spread/with, comma.txt": b"a",
            'spread/with "quotes".txt': b"b",
            "spread/ü.txt": b"c",
            "spread/bin/tool": b"d",
            "spread/include/spread.h": b"e",
            "spread-1.0.data/purelib/spread/pure.py": b"pure = 1\n",
            "spread-1.0.data/platlib/spread/plat.py": b"plat = 1\n",
            "spread-1.0.data/data/share/spread/notes.txt": b"notes\n",
            "spread-1.0.data/data/etc/spread/conf.d/10.toml": b"a = 1\n",
            "spread-1.0.data/data/bin/shell": b"#!/bin/sh\n",
            f"spread-1.0.data/data/{SITE}/spread.pth": b"# nothing\n",
            "spread-1.0.data/headers/spread.h": b"int spread;\n",
            "spread-1.0.data/scripts/script": b"#!python\nprint(1)\n",
            "spread-1.0.dist-info/entry_points.txt": b"[console_scripts]\nspread = spread:main\n",
            "spread-1.0.dist-info/licenses/LICENSE": b"free\n",
            "spread-1.0.dist-info/INSTALLER": b"its builder\n",
        },
    ),
)


def own(artifact: Artifact) -> str | None:
    return wheel_sha256(member(artifact.data, ".dist-info/RECORD"))


def installed(record: str) -> str | None:
    return installed_sha256(record_entries(record), depth=len(SITE.split("/")))


def found(prefix: Path) -> dict[str, str | None]:
    records = (prefix / SITE).glob("*-1.0.dist-info/RECORD")
    return {path.parent.name.partition("-")[0]: installed(path.read_text(encoding="utf-8")) for path in records}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for each in WHEELS:
        (folder / each.filename).write_bytes(each.data)
    return [str(folder / each.filename) for each in WHEELS]


EXPECTED: Final = {each.name: own(each) for each in WHEELS}


def quiet() -> dict[str, str]:
    """No settings of this machine's pip and uv."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def test_digests_differ() -> None:
    assert None not in EXPECTED.values()
    assert len(set(EXPECTED.values())) == len(WHEELS)


@pytest.mark.parametrize("compiled", ["--compile", "--no-compile"])
def test_pip(tmp_path: Path, files: list[str], compiled: str) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "env/bin/python")]
    words = ["install", "--quiet", "--no-index", "--no-deps", compiled]
    subprocess.run([*pip, *words, *files], check=True, env=quiet())
    assert found(tmp_path / "env") == EXPECTED


@pytest.mark.parametrize("compiled", ["--compile-bytecode", "--no-compile-bytecode"])
def test_uv(tmp_path: Path, files: list[str], compiled: str) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    words = [find_uv_bin(), "pip", "install", "--no-config", "--quiet", "--offline", "--no-deps", compiled]
    environ = {**quiet(), "UV_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([*words, "--python", str(tmp_path / "env/bin/python"), *files], check=True, env=environ)
    assert found(tmp_path / "env") == EXPECTED


def test_envspec_install(tmp_path: Path) -> None:
    with IndexServer([File(each) for each in WHEELS]) as index:
        user = User(tmp_path, index.url)
        lock = write_lock(tmp_path / "lock", make_lock(wheels=[pin(each) for each in WHEELS]))
        succeeded(installs(user, lock, "--python", BASE))
    assert found(tmp_path / "env") == EXPECTED


def test_an_image(files: list[str]) -> None:
    locked = tuple(
        LockedWheel(each.name, each.version, each.filename, each.sha256, Path(path))
        for each, path in zip(WHEELS, files, strict=True)
    )
    message = {}
    for entry in WheelSource(locked, Scheme.of(SERIES), None).entries():
        if entry.path.endswith(".dist-info/RECORD") and isinstance(entry.data, InMemory):
            name = posixpath.basename(posixpath.dirname(entry.path)).partition("-")[0]
            message[name] = installed(entry.data.content.decode())
    assert message == EXPECTED
