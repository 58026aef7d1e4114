"""requirements.<platform>.txt before its readers: pip, pip-sync and uv, with an index on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from envspec.lockfile.export.requirements import requirements_name, requirements_text
from envspec.models import DEFAULT_INDEX, DIRECT_URL, Dependent, Lock, Package, WheelFile
from envspec.structs import replace
from tests.conftest import Serve
from tests.support.builders.locks import X86, lock, resolution
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, wheel
from tests.support.servers.index import IndexServer

PLAIN = wheel("plain-lib", "1.4", requires=["leaf>=1"])
LEAF = wheel("leaf", "2.0")
NEWER_LEAF = wheel("leaf", "2.1")
CORP = wheel("corp-tools", "0.3", requires=["leaf"])
DIRECT = wheel("tiny-model", "7.0")


def locked(artifact: Artifact, index: str, url: str | None) -> Package:
    file = WheelFile(index, artifact.filename, artifact.sha256, artifact.size_bytes, url)
    return Package(artifact.name, artifact.version, file, (Dependent("spec", artifact.name),), extras=("fast",))


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    """The default index; what the private index and the direct URL hold is no project of it that pip may take."""
    return serve([File(item) for item in (PLAIN, LEAF, NEWER_LEAF)])


@pytest.fixture
def made(index: IndexServer, serve: Serve) -> Lock:
    private = serve([File(CORP), File(DIRECT)])
    secret = private.file_url(CORP.filename).replace("http://", "http://user:hunter2@")
    return lock(
        resolution(
            X86,
            locked(PLAIN, DEFAULT_INDEX, None),
            locked(LEAF, DEFAULT_INDEX, None),
            locked(CORP, "corp", secret),
            locked(DIRECT, DIRECT_URL, private.file_url(DIRECT.filename)),
        )
    )


def run(command: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    """In an environment without this machine's configuration, whose PATH finds this interpreter's tools."""
    environ = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
    }
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=home, check=False)


NAME = requirements_name(X86)
INSTALLERS = pytest.mark.parametrize("way", ["pip install", "uv pip install", "uv pip sync"])


def command(way: str, url: str, target: Path) -> list[str]:
    """Install into a folder: uv checks hashes only when it does install."""
    pip_options = ("--ignore-installed", "--no-cache-dir", "--disable-pip-version-check")
    uv_options = ("--no-cache", "--python", sys.executable)
    words = [*way.split(), *uv_options] if way.startswith("uv") else [sys.executable, "-m", *way.split(), *pip_options]
    file = [NAME] if way.endswith("sync") else ["-r", NAME]
    return [*words, "--target", str(target), "--index-url", url, "--require-hashes", *file]


def test_what_an_override_changes_is_not_looked_for() -> None:
    plain = locked(PLAIN, DEFAULT_INDEX, None)
    for package in (
        replace(plain, removed=("leaf>=1",)),
        replace(plain, required_by=(Dependent("x", "plain-lib", "plain-lib<1"),)),
    ):
        assert "pip install --no-deps --require" in requirements_text("small", resolution(X86, package))
    assert "pip install --require" in requirements_text("small", resolution(X86, plain))


def test_pip_sync_takes_exactly_the_pins(tmp_path: Path, index: IndexServer, made: Lock) -> None:
    text = requirements_text(made.name, made.resolutions[0])
    assert "hunter2" not in text
    (tmp_path / NAME).write_text(text, encoding="utf-8")
    done = run([sys.executable, "-m", "piptools", "sync", "--dry-run", "--index-url", index.url, NAME], tmp_path)
    output = (done.stdout + done.stderr).lower().replace("_", "-")
    # It ends with 1 when a dry run finds something to do.
    assert done.returncode == 1, output
    assert all(package.name in output for package in made.resolutions[0].packages)
    assert "leaf==2.0" in output and "leaf==2.1" not in output


@INSTALLERS
def test_each_installer_installs_exactly_the_pins(tmp_path: Path, index: IndexServer, made: Lock, way: str) -> None:
    (tmp_path / NAME).write_text(requirements_text(made.name, made.resolutions[0]), encoding="utf-8")
    done = run(command(way, index.url, tmp_path / "out"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    installed = {path.name.removesuffix(".dist-info") for path in (tmp_path / "out").glob("*.dist-info")}
    assert installed == {"plain_lib-1.4", "leaf-2.0", "corp_tools-0.3", "tiny_model-7.0"}


@INSTALLERS
def test_each_installer_refuses_another_file(tmp_path: Path, index: IndexServer, made: Lock, way: str) -> None:
    first, *others = made.resolutions[0].packages
    changed = replace(first, file=replace(first.file, sha256="0" * 64))
    (tmp_path / NAME).write_text(requirements_text("small", resolution(X86, changed, *others)), encoding="utf-8")
    done = run(command(way, index.url, tmp_path / "out"), tmp_path)
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()
    assert not list(tmp_path.glob("out/*.dist-info"))


def test_what_an_environment_variable_would_change_is_quoted(tmp_path: Path, index: IndexServer) -> None:
    """pip and uv replace `${HOME}` in requirement files."""
    odd = replace(
        locked(DIRECT, DIRECT_URL, f"{index.root}/${{HOME}}/a b/{DIRECT.filename}"), name="tiny-model", extras=()
    )
    (tmp_path / NAME).write_text(requirements_text("small", resolution(X86, odd)), encoding="utf-8")
    for way in ("pip install", "uv pip install"):
        assert run(command(way, index.url, tmp_path / "out"), tmp_path).returncode != 0
    requested = {request.path for request in index.requests}
    assert f"/${{HOME}}/a b/{DIRECT.filename}" in requested
    assert not any(str(tmp_path) in path for path in requested)
